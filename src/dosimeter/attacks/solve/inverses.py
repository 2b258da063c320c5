"""Activations undone: from what a neuron gave to what it was given, and its slope there.

A value that no input gives (rounding or noise put it there) is moved to the nearest that one gives and not trusted.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Undone(NamedTuple):
    """All of the shape of the values."""

    inputs: Tensor
    slopes: Tensor
    trusted: Tensor  # whether the input is known
    below: Tensor  # whether all that is known of the input is that it is not above 0


Inverse = Callable[[Tensor, float], Undone]
"""(values, the largest of them that is taken for 0)"""

EDGE = 1e-14


def _smooth(inverse: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], low: float, high: float) -> Inverse:
    """An increasing function with values between `low` and `high`."""

    def undo(values: Tensor, zero: float) -> Undone:
        trusted = (values > low) & (values < high)
        inside = values.clamp(low + EDGE, high - EDGE)
        return Undone(inverse(inside), slope(inside), trusted, torch.zeros_like(trusted))

    return undo


def sigmoid() -> Inverse:
    return _smooth(torch.logit, lambda a: a * (1 - a), 0.0, 1.0)


def tanh() -> Inverse:
    return _smooth(torch.atanh, lambda a: 1 - a.square(), -1.0, 1.0)


def softplus(beta: float = 1, threshold: float = 20) -> Inverse:
    """log(1 + exp(beta z)) / beta; beyond the threshold torch gives z itself, which differs by less than 1e-8."""

    def inverse(a: Tensor) -> Tensor:
        return torch.where(a * beta > threshold, a, a + torch.log(-torch.expm1(-beta * a)) / beta)

    return _smooth(inverse, lambda a: -torch.expm1(-beta * a), 0.0, torch.inf)


def elu(alpha: float = 1.0) -> Inverse:
    return _smooth(
        lambda a: torch.where(a > 0, a, torch.log1p(a.clamp_max(0) / alpha)),
        lambda a: torch.where(a > 0, torch.ones_like(a), a + alpha),
        -alpha,
        torch.inf,
    )


def leaky_relu(negative_slope: float = 0.01) -> Inverse:
    if negative_slope == 0:
        return relu()

    def undo(values: Tensor, zero: float) -> Undone:
        slopes = torch.where(values > 0, 1.0, negative_slope).to(values)
        trusted = torch.ones_like(values, dtype=torch.bool)
        return Undone(values / slopes, slopes, trusted, ~trusted)

    return undo


def relu() -> Inverse:
    """Known where it is active (Inverting Gradients, Prop. 2); elsewhere its input is not above 0, its slope 0."""

    def undo(values: Tensor, zero: float) -> Undone:
        active = values > zero
        return Undone(values * active, active.to(values), active, ~active)

    return undo


INVERSES: dict[str, Callable[..., Inverse]] = {
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": softplus,
    "elu": elu,
    "leaky_relu": leaky_relu,
    "relu": relu,
}
"""By the name of torch's function; its settings beside the values are passed on."""
