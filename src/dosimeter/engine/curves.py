"""Functions of single numbers with their first and second derivatives, of whole tensors at once."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Curve(NamedTuple):
    """A function of single numbers with its first and second derivative; None is zero."""

    z: Tensor
    slope: Tensor
    bend: Tensor | None


def _gelu(a: Tensor, one: Tensor) -> Curve:
    """a Phi(a); slope Phi + a phi; bend (2 - a^2) phi, in as few passes as there can be."""
    scale = 1 / math.sqrt(2 * math.pi)
    bend = torch.addcmul(a.new_zeros(()), a, a, value=-0.5).exp_()
    bend.mul_(torch.addcmul(a.new_full((), 2 * scale), a, a, value=-scale))
    return Curve(F.gelu(a), torch.ops.aten.gelu_backward(one, a), bend)


def _gelu_tanh(a: Tensor, _one: Tensor) -> Curve:
    """a (1 + t) / 2 with t = tanh(u), u = k (a + c a^3)."""
    k, c = math.sqrt(2 / math.pi), 0.044715
    square = a * a
    t = torch.tanh((square * c + 1) * a * k)
    first, second = (square * (3 * c) + 1) * k, a * (6 * c * k)  # of u
    steep = 1 - t * t
    z, half = (t + 1) * a * 0.5, steep * a * 0.5
    return Curve(z, (t + 1) * 0.5 + half * first, steep * first + half * (second - 2 * t * first * first))


def _relu(a: Tensor, _one: Tensor) -> Curve:
    return Curve(torch.relu(a), (a > 0).to(a.dtype), None)


def _tanh(a: Tensor, _one: Tensor) -> Curve:
    z = torch.tanh(a)
    slope = 1 - z * z
    return Curve(z, slope, slope * z * -2)


def _sigmoid(a: Tensor, _one: Tensor) -> Curve:
    z = torch.sigmoid(a)
    slope = z - z * z
    return Curve(z, slope, slope - slope * z * 2)


def _silu(a: Tensor, one: Tensor) -> Curve:
    s, first, second = _sigmoid(a, one)
    assert second is not None
    return Curve(a * s, s + a * first, first * 2 + a * second)


CURVES: dict[str, Callable[[Tensor, Tensor], Curve]] = {
    "gelu": _gelu,
    "gelu tanh": _gelu_tanh,
    "relu": _relu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "silu": _silu,
}
"""Of a tensor, given ones of its shape."""
