"""One pass of all images through the model, written down so that every image's parameter gradients can be told apart.

The model runs once on the images of all candidates. Each layer with parameters notes what went in; what comes back to
it is then taken from one backward pass that never forms a gradient of a parameter. From the two follow the parts of
every image's gradient: an outer product a position for linear layers and convolutions, a vector for all that is small.
"""

import copy
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dosimeter.engine.attention import PlainAttention
from dosimeter.engine.patches import Window, unfold
from dosimeter.engine.threads import clone_modules
from dosimeter.types import Secrets, Statistics, Target

WIDE = 16
"""Matrix products with fewer columns than this run at half speed; convolutions are padded to it with zeros."""

PATCHES_UP_TO = 200_000
"""Numbers in one image's windows up to which a convolution runs as a matrix product; larger ones run natively."""


READS = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy"}
"""How a model's program reads numbers off tensors, usually to decide what to do next."""


class Branches(TorchFunctionMode):
    """Notices a model that reads its data: what is right for one candidate may then be wrong for several at once."""

    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= func.__name__ in READS
        return func(*args, **(kwargs or {}))


class Outer(NamedTuple):
    """The gradient sum_p back_p inputs_p^T of a weight (O, I), one image a row."""

    name: str
    inputs: Tensor  # (n, L, I)
    back: Tensor  # (n, L, O)
    kernel: tuple[int, int] | None = None  # of a convolution, whose inputs are windows (kernel, kernel, C)
    outputs: int | None = None  # O where `back` was padded with zeros beyond it


class Conv(NamedTuple):
    """The gradient of a convolution's weight, left in the form that native kernels take."""

    name: str
    inputs: Tensor  # (n, C, H, W), padded as the layer pads
    back: Tensor  # (n, O, H', W')
    layer: nn.Conv2d


class Vector(NamedTuple):
    """A gradient that is small enough to be written out."""

    name: str
    value: Tensor  # (n, size)


Part = Outer | Conv | Vector
Note = tuple[Tensor, int, Callable[[Tensor], list[Part]]]
"""A layer's output, how often it had been written to, and the parts given what came back to it."""


class Tape:
    """A copy of the model whose layers note what passes through them.

    Raises what the model raises; parameters that no layer noted are in `missed`.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._model = clone_modules(target.model)
        self._batch = 1
        self._notes: list[Note] = []
        self.how: dict[str, str] = {}
        self.branches: bool | None = None  # whether the model read its data in the first call
        self._given: Statistics = {}
        self._secrets = target.secrets
        self._paths = {id(layer): path for path, layer in self._model.named_modules()}
        names = {id(p): name for name, p in self._model.named_parameters() if p.requires_grad}
        trained = set(names.values())
        for layer in self._model.modules():
            if isinstance(getattr(layer, "inplace", None), bool):
                setattr(layer, "inplace", False)  # noqa: B010  overwriting an output would overwrite the note of it
            for kind, twin in _TWINS.items():
                own = {key: names.get(id(p)) for key, p in layer.named_parameters(recurse=False)}
                if type(layer) is kind and (own or twin is _batch_norm):
                    layer.forward = types.MethodType(self._bind(twin, own), layer)
        self._expanded = self._raw_parameters(trained)
        for parameter in self._model.parameters():
            parameter.requires_grad_(False)

    def _bind(self, twin: Callable[..., Tensor], own: dict[str, str | None]) -> Callable[..., Tensor]:
        def forward(layer: nn.Module, x: Tensor) -> Tensor:
            return twin(self, layer, x, own)

        return forward

    def _raw_parameters(self, trained: set[str]) -> dict[str, nn.Parameter]:
        """Parameters outside known layers that broadcast over images, such as a ViT's positions and class token."""
        known = {
            f"{path}.{key}".removeprefix(".")
            for path, layer in self._model.named_modules()
            if type(layer) in _TWINS
            for key, _ in layer.named_parameters(recurse=False)
        }
        raw = {name: p for name, p in self._model.named_parameters() if name in trained and name not in known}
        return {name: p for name, p in raw.items() if p.ndim > 1 and p.shape[0] == 1}

    def __call__(self, images: Tensor, labels: Tensor, statistics: Statistics, secrets: Secrets) -> list[Part]:
        """The parts of all gradients of images (N, B, C, H, W); rows are images, those of a candidate together.

        `statistics` are the means and variances (N, C) of the batch norms for which they are given, `secrets` what was
        drawn inside the model, (N, B, ...) or (N, ...).
        """
        n, self._batch = images.shape[:2]
        self._given = statistics
        self._notes = []
        replaced = {name: self._by_image(name, value) for name, value in secrets.items()}
        for name, parameter in self._expanded.items():
            copies = parameter.expand(n * self._batch, *parameter.shape[1:]).clone().requires_grad_()
            replaced[name] = copies
            self.note(copies, _whole(name))
            self.how[name] = "one copy an image"
        flat = images.flatten(0, 1)
        if not flat.requires_grad:
            flat = flat.detach().requires_grad_()  # what comes back to layers is taken by differentiating
        with PlainAttention(), nullcontext() if self.branches is not None else Branches() as watched:
            output: Tensor = torch.func.functional_call(self._model, replaced, (flat,))
        if watched is not None:
            self.branches = watched.found
        notes, self._notes = self._notes, []
        loss = total_loss(self._target, output.reshape(n, self._batch, *output.shape[1:]), labels)
        extra = self._target.penalty(self._model) if self._secrets else None
        loss = loss if extra is None else loss + extra.sum() / self._batch
        if any(out._version != version for out, version, _ in notes):
            raise RuntimeError("the model overwrites the output of a layer")
        backs = torch.autograd.grad(loss, [out for out, *_ in notes], create_graph=True, materialize_grads=True)
        return [part for (*_, parts), back in zip(notes, backs, strict=True) for part in parts(back)]

    def _by_image(self, name: str, value: Tensor) -> Tensor:
        """What was drawn for a buffer, one row an image."""
        return value.flatten(0, 1) if self._secrets[name].scope == "image" else value.repeat_interleave(self._batch, 0)

    def note(self, output: Tensor, parts: Callable[[Tensor], list[Part]]) -> None:
        """Write a layer's output down, with what to make of what comes back to it."""
        if not output.requires_grad:  # it depends on no image, as a layer of a client's key
            output.requires_grad_()
        self._notes.append((output, output._version, parts))

    def given(self, layer: nn.Module) -> tuple[Tensor, Tensor] | None:
        """Mean and variance (n, C) that a layer was given, one row an image."""
        pair = self._given.get(self._paths[id(layer)])
        if pair is None:
            return None
        mean, variance = (t.repeat_interleave(self._batch, 0) for t in pair)
        return mean, variance

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of (n, C, ...) over the images and places of each candidate, (n, C, 1, ...)."""
        grouped = x.reshape(-1, self._batch, *x.shape[1:])
        axes = [axis for axis in range(1, grouped.ndim) if axis != 2]
        mean, variance = grouped.mean(axes, keepdim=True), grouped.var(axes, correction=0, keepdim=True)
        mean, variance = (t.expand(-1, self._batch, *t.shape[2:]).flatten(0, 1) for t in (mean, variance))
        return mean, variance


def _whole(name: str) -> Callable[[Tensor], list[Part]]:
    return lambda back: [Vector(name, back.flatten(1))]


def plain_classes(outputs: Tensor, labels: Tensor) -> bool:
    """One class an image, none of them to be ignored: what cross-entropy can be summed over in one go."""
    return outputs.ndim == 3 and labels.ndim == 2 and labels.dtype == torch.long and bool((labels >= 0).all())


def total_loss(target: Target, outputs: Tensor, labels: Tensor) -> Tensor:
    """The sum of all candidates' losses for outputs (N, B, ...)."""
    if target.loss is F.cross_entropy and plain_classes(outputs, labels):
        each = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(0, 1), reduction="sum")
        return each / labels.shape[1]
    return torch.func.vmap(target.loss)(outputs, labels).sum()


def _linear(tape: Tape, layer: nn.Linear, x: Tensor, own: dict[str, str | None]) -> Tensor:
    z = F.linear(x, layer.weight, layer.bias)
    inputs = x.reshape(x.shape[0], -1, x.shape[-1])  # (n, L, I)
    tape.note(z, lambda back: _outer(tape, own, inputs, back.reshape(*inputs.shape[:2], -1)))
    return z


def _outer(
    tape: Tape,
    own: dict[str, str | None],
    inputs: Tensor,
    back: Tensor,
    kernel: tuple[int, int] | None = None,
    outputs: int | None = None,
) -> list[Part]:
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


def _conv(tape: Tape, layer: nn.Conv2d, x: Tensor, own: dict[str, str | None]) -> Tensor:
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
        tape.note(z, lambda back: _native(tape, own, layer, x, back, padding))
        return z
    inputs = unfold(x.permute(0, 2, 3, 1), window)  # (n, L, k * k * C)
    weight, bias, outputs = layer.weight.permute(0, 2, 3, 1).flatten(1), layer.bias, len(layer.weight)
    if outputs < WIDE and inputs.shape[1] > 1:
        weight = F.pad(weight, (0, 0, 0, WIDE - outputs))
        bias = None if bias is None else F.pad(bias, (0, WIDE - outputs))
    z = F.linear(inputs, weight, bias)
    tape.note(z, lambda back: _outer(tape, own, inputs, back, window.kernel, outputs))
    return z[..., :outputs].reshape(-1, height, width, outputs).permute(0, 3, 1, 2)


def _native(
    tape: Tape, own: dict[str, str | None], layer: nn.Conv2d, x: Tensor, back: Tensor, padding: tuple[int, int]
) -> list[Part]:
    parts: list[Part] = []
    weight = own.get("weight")
    if weight is not None:
        tape.how[weight] = "native kernels, one candidate at a time"
        geometry = copy.copy(layer)
        geometry.padding = padding
        parts.append(Conv(weight, x, back, geometry))
    bias = own.get("bias")
    if bias is not None:
        tape.how[bias] = "a vector"
        parts.append(Vector(bias, back.sum((2, 3))))
    return parts


def _affine(tape: Tape, own: dict[str, str | None], normal: Tensor, layer: Any, axes: tuple[int, ...]) -> Tensor:
    """normal * weight + bias with parameters along `axes`; their gradients are sums over all other axes."""
    shape = [normal.shape[axis] if axis in axes else 1 for axis in range(1, normal.ndim)]
    others = tuple(axis for axis in range(1, normal.ndim) if axis not in axes)
    z: Tensor = normal * layer.weight.view(shape)
    if layer.bias is not None:
        z = z + layer.bias.view(shape)

    def over(value: Tensor) -> Tensor:
        return (value.sum(others) if others else value).flatten(1)

    def parts(back: Tensor) -> list[Part]:
        found: list[Part] = []
        for key in ("weight", "bias"):
            name = own.get(key)
            if name is not None:
                tape.how[name] = "a vector"
                found.append(Vector(name, over(back * normal if key == "weight" else back)))
        return found

    tape.note(z, parts)
    return z


def _batch_norm(tape: Tape, layer: Any, x: Tensor, own: dict[str, str | None]) -> Tensor:
    """Statistics that were given, else running ones where the layer has them and is in evaluation mode, else those of
    each candidate."""
    shape = (-1, x.shape[1], *[1] * (x.ndim - 2))
    given = tape.given(layer)
    if given is not None:  # the value that was sent, with the slope of the candidate's own, as a client has it
        pairs = zip(tape.statistics(x), given, strict=True)
        mean, variance = (own + (told.view(shape) - own).detach() for own, told in pairs)
    elif layer.running_mean is not None and not layer.training:
        mean, variance = layer.running_mean.view(shape), layer.running_var.view(shape)
    else:
        mean, variance = tape.statistics(x)
    normal = (x - mean) * (variance + layer.eps).rsqrt()
    return _affine(tape, own, normal, layer, (1,)) if own else normal


def _layer_norm(tape: Tape, layer: nn.LayerNorm, x: Tensor, own: dict[str, str | None]) -> Tensor:
    normal = F.layer_norm(x, layer.normalized_shape, None, None, layer.eps)
    return _affine(tape, own, normal, layer, tuple(range(x.ndim - len(layer.normalized_shape), x.ndim)))


def _group_norm(tape: Tape, layer: nn.GroupNorm, x: Tensor, own: dict[str, str | None]) -> Tensor:
    return _affine(tape, own, F.group_norm(x, layer.num_groups, None, None, layer.eps), layer, (1,))


def two(value: Any) -> tuple[int, int]:
    """A setting of a convolution, (vertical, horizontal)."""
    return (int(value[0]), int(value[1])) if isinstance(value, tuple) else (int(value), int(value))


_PADDING = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}

_TWINS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
