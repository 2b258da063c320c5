"""What layers with parameters give, and the parts of every candidate's gradient that follow from it.

From what went into a layer and what came back to it follow outer products, one a position, for linear layers and
convolutions, and a vector for all that is small. A layer gets the images of all candidates one after another, or any
number of rows for each, and `tape` knows how many candidates there are.
"""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter.engine.patches import Window, unfold

if TYPE_CHECKING:
    from dosimeter.engine.tape import Tape

WIDE = 16
"""Matrix products with fewer columns than this run at half speed; convolutions are padded to it with zeros."""

PATCHES_UP_TO = 200_000
"""Numbers in one image's windows up to which a convolution runs as a matrix product; larger ones run natively."""


class Outer(NamedTuple):
    """The gradient sum_p back_p inputs_p^T of a weight (O, I), one candidate a row."""

    name: str
    inputs: Tensor  # (N, P, I)
    back: Tensor  # (N, P, O)
    kernel: tuple[int, int] | None = None  # of a convolution, whose inputs are windows (kernel, kernel, C)
    outputs: int | None = None  # O where `back` was padded with zeros beyond it


class Conv(NamedTuple):
    """The gradient of a convolution's weight, left in the form that native kernels take."""

    name: str
    inputs: Tensor  # (N * B, C, H, W), padded as the layer pads
    back: Tensor  # (N * B, O, H', W')
    layer: nn.Conv2d
    batch: int  # B


class Vector(NamedTuple):
    """A gradient that is written out."""

    name: str
    value: Tensor  # (N, size)


Part = Outer | Conv | Vector


Own = dict[str, str | None]
"""{a layer's own name of a parameter: its name in the model, None where it is frozen}"""


def _linear(tape: "Tape", layer: nn.Linear, x: Tensor, own: Own) -> Tensor:
    return tape.note(F.linear(x, layer.weight, layer.bias), lambda back: _outer(tape, own, x, back))


def _outer(
    tape: "Tape",
    own: Own,
    inputs: Tensor,
    back: Tensor,
    kernel: tuple[int, int] | None = None,
    outputs: int | None = None,
) -> list[Part]:
    """Of inputs (n, ..., I) and what came back (n, ..., O)."""
    inputs, back = (t.reshape(tape.candidates, -1, t.shape[-1]) for t in (inputs, back))
    parts: list[Part] = []
    weight = own.get("weight")
    if weight is not None:
        tape.how[weight] = "outer products"
        parts.append(Outer(weight, inputs, back, kernel, outputs))
    bias = own.get("bias")
    if bias is not None:
        tape.how[bias] = "a vector"
        parts.append(Vector(bias, (back[:, 0] if back.shape[1] == 1 else back.sum(1))[:, :outputs]))
    return parts


def _conv(tape: "Tape", layer: nn.Conv2d, x: Tensor, own: Own) -> Tensor:
    """As a matrix product over windows where that is small, natively otherwise."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=_PADDING[layer.padding_mode])
        padding = (0, 0)
    else:
        padding = (int(layer.padding[0]), int(layer.padding[1]))
    window = Window(*(two(v) for v in (layer.kernel_size, layer.stride, padding, layer.dilation)))
    height, width = window.output(x.shape[2], x.shape[3])
    size = height * width * layer.weight[0].numel()
    if layer.groups > 1 or size > PATCHES_UP_TO:
        z = F.conv2d(x, layer.weight, layer.bias, window.stride, padding, window.dilation, layer.groups)
        return tape.note(z, lambda back: _native(tape, own, layer, x, back, padding))
    inputs = unfold(x.permute(0, 2, 3, 1), window)  # (n, L, k * k * C)
    weight, bias, outputs = layer.weight.permute(0, 2, 3, 1).flatten(1), layer.bias, len(layer.weight)
    if outputs < WIDE and inputs.shape[1] > 1:
        weight = F.pad(weight, (0, 0, 0, WIDE - outputs))
        bias = None if bias is None else F.pad(bias, (0, WIDE - outputs))
    z = F.linear(inputs, weight, bias)
    z = tape.note(z, lambda back: _outer(tape, own, inputs, back, window.kernel, outputs))
    return z[..., :outputs].reshape(-1, height, width, outputs).permute(0, 3, 1, 2)


def _native(tape: "Tape", own: Own, layer: nn.Conv2d, x: Tensor, back: Tensor, padding: tuple[int, int]) -> list[Part]:
    parts: list[Part] = []
    weight = own.get("weight")
    if weight is not None:
        tape.how[weight] = "native kernels, one candidate at a time"
        geometry = copy.copy(layer)
        geometry.padding = padding
        parts.append(Conv(weight, x, back, geometry, len(x) // tape.candidates))
    bias = own.get("bias")
    if bias is not None:
        tape.how[bias] = "a vector"
        parts.append(Vector(bias, tape.summed(back.sum((2, 3)))))
    return parts


def _affine(tape: "Tape", own: Own, normal: Tensor, layer: Any, axes: tuple[int, ...]) -> Tensor:
    """normal * weight + bias with parameters along `axes`; their gradients are sums over all other axes."""
    shape = [normal.shape[axis] if axis in axes else 1 for axis in range(1, normal.ndim)]
    others = tuple(axis for axis in range(1, normal.ndim) if axis not in axes)
    z: Tensor = normal * layer.weight.view(shape)
    if layer.bias is not None:
        z = z + layer.bias.view(shape)

    def over(value: Tensor) -> Tensor:
        return tape.summed((value.sum(others) if others else value).flatten(1))

    def parts(back: Tensor) -> list[Part]:
        found: list[Part] = []
        for key in ("weight", "bias"):
            name = own.get(key)
            if name is not None:
                tape.how[name] = "a vector"
                found.append(Vector(name, over(back * normal if key == "weight" else back)))
        return found

    return tape.note(z, parts)


def _batch_norm(tape: "Tape", layer: Any, x: Tensor, own: Own) -> Tensor:
    """Statistics that were given, else running ones where the layer has them and is in evaluation mode, else those of
    each candidate."""
    shape = (-1, x.shape[1], *[1] * (x.ndim - 2))
    given = tape.given(layer, len(x))
    if given is not None:  # the value that was sent, with the slope of the candidate's own, as a client has it
        pairs = zip(tape.statistics(x), given, strict=True)
        mean, variance = (now + (told.view(shape) - now).detach() for now, told in pairs)
    elif layer.running_mean is not None and not layer.training:
        mean, variance = layer.running_mean.view(shape), layer.running_var.view(shape)
    else:
        mean, variance = tape.statistics(x)
    normal = (x - mean) * (variance + layer.eps).rsqrt()
    return _affine(tape, own, normal, layer, (1,)) if own else normal


def _layer_norm(tape: "Tape", layer: nn.LayerNorm, x: Tensor, own: Own) -> Tensor:
    normal = F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)
    return _affine(tape, own, normal, layer, tuple(range(x.ndim - len(layer.normalized_shape), x.ndim)))


def _group_norm(tape: "Tape", layer: nn.GroupNorm, x: Tensor, own: Own) -> Tensor:
    return _affine(tape, own, F.group_norm(x, layer.num_groups, None, None, layer.eps), layer, (1,))


def two(value: Any) -> tuple[int, int]:
    """A setting of a convolution, (vertical, horizontal)."""
    return (int(value[0]), int(value[1])) if isinstance(value, tuple) else (int(value), int(value))


_PADDING = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}

TWINS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
"""Layers that are run in a way of their own: (tape, layer, rows, names of its parameters) -> what the layer gives."""
