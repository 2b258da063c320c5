"""Forward derivatives of an update: how what every layer saw and what came back to it move with images and draws.

The gradient of a linear layer or a convolution is g = D^T A with one row a position: A (P, k) what went in, D (P, m)
what came back. Along a direction it moves by

    dg = dD^T A + D^T dA

so the derivatives of A and D are enough, and the network is run on a batch of directions instead of on a batch of
images. All other parameters have their gradient written out.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from dosimeter.errors import ModelError
from dosimeter.networks import clone_modules, hooked, watch
from dosimeter.types import Gradient, Secrets, Target

FORWARD = threading.Lock()
"""Held while there are forward derivatives: torch counts their levels for all threads of a process at once."""
IMAGES = "images"
"""The name of the private images among what an update depends on."""

Point = dict[str, Tensor]
"""{images or name of a secret: values} of one update."""


class Layout(NamedTuple):
    """Where each unknown has its coordinates: images first, one after another, then what was drawn."""

    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, point: Point) -> "Layout":
        return cls({name: tuple(value.shape) for name, value in point.items()})

    @property
    def spans(self) -> dict[str, slice]:
        spans, start = {}, 0
        for name, shape in self.shapes.items():
            size = int(torch.Size(shape).numel())
            spans[name] = slice(start, start + size)
            start += size
        return spans

    @property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def tangents(self, rows: Tensor) -> Point:
        """Directions (c, N) as values of every unknown, (c, ...) each."""
        return {name: rows[:, span].reshape(-1, *self.shapes[name]) for name, span in self.spans.items()}

    def flat(self, values: Point) -> Tensor:
        """(c, N) of values (c, ...)."""
        return torch.cat([values[name].flatten(1) for name in self.shapes], 1)


class Passed(NamedTuple):
    """One pass: what went into known layers, what came back, and gradients of all other parameters."""

    inputs: Point
    backs: Point
    written: dict[str, Tensor]


class Positions(NamedTuple):
    """A layer whose gradient is a sum over positions: how its inputs become rows and rows become inputs again."""

    rows: Callable[[Tensor], Tensor]  # (c, *X) -> (c, P, k)
    place: Callable[[Tensor], Tensor]  # its adjoint, (c, P, k) -> (c, X)
    backs: Callable[[Tensor], Tensor]  # (c, *output) -> (c, P, m)


def positions(layer: nn.Module, shape: torch.Size) -> Positions | None:
    """Of a linear layer or a plain convolution that gets inputs of a shape (B, ...); None for any other."""
    if type(layer) is nn.Linear:
        return Positions(
            lambda x: x.reshape(len(x), -1, x.shape[-1]),
            lambda rows: rows.flatten(1),
            lambda d: d.reshape(len(d), -1, d.shape[-1]),
        )
    if not (type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"):
        return None
    if isinstance(layer.padding, str) or len(shape) != 4:
        return None
    batch, size = shape[0], (shape[2], shape[3])
    how: dict[str, Any] = {
        "kernel_size": layer.kernel_size, "stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation,
    }  # fmt: skip

    (kh, kw), (sh, sw), (ph, pw) = layer.kernel_size, layer.stride, layer.padding

    def rows(x: Tensor) -> Tensor:
        if layer.dilation == (1, 1):  # one copy of strided windows, sooner than F.unfold and what turns it around
            seen = F.pad(x, (pw, pw, ph, ph)).unfold(-2, kh, sh).unfold(-2, kw, sw)  # (c, B, k, h, w, kh, kw)
            return seen.permute(0, 1, 3, 4, 2, 5, 6).reshape(len(x), -1, x.shape[2] * kh * kw)
        found = F.unfold(x.flatten(0, 1), **how).transpose(1, 2)  # (c * B, places, k)
        return found.reshape(len(x), -1, found.shape[-1])

    def place(found: Tensor) -> Tensor:
        columns = found.reshape(len(found) * batch, -1, found.shape[-1]).transpose(1, 2)
        return F.fold(columns, size, **how).reshape(len(found), -1)

    return Positions(rows, place, lambda d: d.flatten(3).transpose(2, 3).reshape(len(d), -1, d.shape[2]))


class Network:
    """The client's model as a function of its images and draws, with what is needed to differentiate its update.

    Args:
        target: what the client ran, in the precision of the result.
        images: (B, C, H, W) what it ran it on, with labels (B, ...).
        drawn: what it drew inside its model, of which those in `unknown` are to be differentiated by.
    """

    def __init__(self, target: Target, images: Tensor, labels: Tensor, drawn: Secrets, unknown: tuple[str, ...]):
        self.target = replace(target, model=clone_modules(target.model), drawn=dict(drawn))
        self.labels = labels
        self.point: Point = {IMAGES: images, **{name: drawn[name] for name in unknown}}
        self.layout = Layout.of(self.point)
        self._parameters = {name: p.detach() for name, p in self.target.model.named_parameters() if p.requires_grad}
        self.gradient = {name: g.detach() for name, g in self.update(self.point).items()}
        self.layers: dict[str, Positions] = {}
        self._weights: dict[str, str] = {}  # {layer: name of its weight}
        self._biases: dict[str, str] = {}
        self._empty: Point = {}
        if target.step is None:
            self._find()
        self.now = self._passed(self.point)
        self._check()

    def _drawn(self, point: Point) -> Target:
        drawn = {**self.target.drawn, **{name: value for name, value in point.items() if name != IMAGES}}
        return replace(self.target, drawn=drawn)

    def update(self, point: Point) -> Gradient:
        """The update as the client computes it, before its defense acts on it."""
        target = self._drawn(point)
        if target.step is not None:
            return target.step(target, self._parameters, point[IMAGES], self.labels)
        slopes: Gradient = grad(target.objective)(self._parameters, point[IMAGES], self.labels)
        return slopes

    def _find(self) -> None:
        """The layers that are called once and have positions."""
        model, target = self.target.model, self._drawn(self.point)
        names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}

        def run() -> object:
            with torch.no_grad():
                return target.objective(self._parameters, self.point[IMAGES], self.labels)

        calls = watch(model, run, lambda _name, layer: isinstance(layer, nn.Linear | nn.Conv2d))
        own = {
            name: dict(model.get_submodule(name).named_parameters(recurse=False)) for name in {c.name for c in calls}
        }
        for call in calls:
            once = sum(other.name == call.name for other in calls) == 1
            weight = names.get(id(own[call.name].get("weight")))
            found = positions(call.layer, call.inputs.shape) if once and isinstance(call.inputs, Tensor) else None
            if found is None or weight is None:
                continue
            self.layers[call.name], self._weights[call.name] = found, weight
            bias = names.get(id(own[call.name].get("bias")))
            if bias is not None:
                self._biases[call.name] = bias
            self._empty[call.name] = torch.zeros_like(call.output)

    def _check(self) -> None:
        """Leave to be written out what a layer does not explain, such as a weight that another use shares."""
        for name in list(self.layers):
            weight, bias = self._weights[name], self._biases.get(name)
            made = {weight: self.weight_slope(name, self.now)} | (
                {bias: self.bias_slope(name, self.now)} if bias else {}
            )
            if any(not _close(slope, self.gradient[key]) for key, slope in made.items()):
                for kept in (self.layers, self._weights, self._biases, self._empty):
                    kept.pop(name, None)
                self.now = self._passed(self.point)

    def weight_slope(self, name: str, passed: Passed) -> Tensor:
        a, d = self.rows(name, passed)
        return (d.transpose(1, 2) @ a)[0].reshape(self.gradient[self._weights[name]].shape)

    def bias_slope(self, name: str, passed: Passed) -> Tensor:
        return self.rows(name, passed)[1].sum(1)[0]

    def rows(self, name: str, passed: Passed) -> tuple[Tensor, Tensor]:
        """What went into a layer (1, P, k) and what came back to it (1, P, m)."""
        found = self.layers[name]
        return found.rows(passed.inputs[name][None]), found.backs(passed.backs[name][None])

    def applied(self, name: str, inputs: Tensor) -> Tensor:
        """The linear part of a layer on inputs (c, B, ...)."""
        layer = self.target.model.get_submodule(name)
        with torch.no_grad():
            given: Tensor = layer(inputs.flatten(0, 1)) - layer(torch.zeros_like(inputs[0, :1]))
        return given.reshape(*inputs.shape[:2], *given.shape[1:])

    def tensors(self, name: str) -> tuple[str, str | None]:
        """The weight and the bias of a layer."""
        return self._weights[name], self._biases.get(name)

    def _passed(self, point: Point, added: Point | None = None) -> Passed:
        """As a pure function of the unknowns: noughts are added to what layers give, to differentiate by."""
        explained = {*self._weights.values(), *self._biases.values()}
        raw = {name: p for name, p in self._parameters.items() if name not in explained}
        target = self._drawn(point)
        if target.step is not None:
            return Passed({}, {}, dict(self.update(point)))

        def loss(added: Point, other: dict[str, Tensor]) -> tuple[Tensor, Point]:
            seen: Point = {}

            def note(name: str, _layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
                seen[name] = inputs[0].clone()
                return output + added[name]

            with hooked(target.model, note, lambda name, _layer: name in self._empty):
                value = target.objective({**self._parameters, **other}, point[IMAGES], self.labels)
            return value, seen

        (backs, written), seen = grad(loss, argnums=(0, 1), has_aux=True)({**self._empty, **(added or {})}, raw)
        return Passed(seen, backs, written)

    def moved(self, rows: Tensor) -> Passed:
        """The derivative of one pass along directions (c, N), each tensor (c, ...)."""
        return self._moved(self._passed, self.point, self.layout.tangents(rows))

    def behind(self, name: str) -> tuple[Callable[[Point], Passed], Point]:
        """One pass as a function of what a layer gives and of the draws, in place of the images; and where it is."""
        point = {name: self._empty[name], **{key: value for key, value in self.point.items() if key != IMAGES}}

        def passed(at: Point) -> Passed:
            drawn = {key: value for key, value in at.items() if key != name}
            return self._passed({**self.point, **drawn}, {name: at[name]})

        return passed, point

    def moved_behind(self, name: str, tangents: Point) -> Passed:
        """The derivative of one pass along directions of what a layer gives, (c, ...), and of the draws."""
        return self._moved(*self.behind(name), tangents)

    @staticmethod
    def _moved(passed: Callable[[Point], Passed], point: Point, tangents: Point) -> Passed:
        def along(tangent: Point) -> Passed:
            found: Passed = jvp(passed, (point,), (tangent,))[1]
            return found

        try:
            with FORWARD, warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, on its first forward derivative
                moved: Passed = vmap(along)(tangents)
        except RuntimeError as reason:
            raise ModelError(
                f"The dose needs forward derivatives of the client's step, which this model does not have: "
                f"{str(reason).splitlines()[0]}."
            ) from reason
        return moved


def directions(size: int, chunk: int, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """All unit directions (c, size), so many at a time."""
    for start in range(0, size, chunk):
        span = slice(start, min(start + chunk, size))
        rows = like.new_zeros(span.stop - start, size)
        rows[:, span].fill_diagonal_(1)
        yield span, rows


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= 1e-6 * b.norm().clamp_min(torch.finfo(b.dtype).tiny))
