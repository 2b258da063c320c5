"""The layer that sees an image in patches, and the positions whose gradients say what came back to its tokens."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from dosimeter.attacks.solve.first_layer import traced
from dosimeter.networks.remember import remembered
from dosimeter.networks.trace import CONV, Call, Section, Trace, arguments
from dosimeter.types import Gradient, Target

CLOSE = 1e-6
"""Relative error up to which a relation is taken to hold in float64."""

Linear = Callable[[Tensor], Tensor]


class Embedding(NamedTuple):
    """A layer that sees an image in patches, and how to read off what came back to its tokens."""

    weight: str
    patches: Linear  # (C, H, W) -> (T, k)
    image: Linear  # (T, k) -> (C, H, W)
    positions: dict[str, Linear]  # {parameter: its gradient -> D (T, m)}

    def returned(self, observed: Gradient) -> Tensor:
        """(T, m): D, the mean of what all positions say."""
        return torch.stack([read(observed[name]) for name, read in self.positions.items()]).mean(0)

    def equations(self, observed: Gradient) -> Tensor:
        """(m, k): dL/dW"""
        return observed[self.weight].flatten(1)


class Cut(NamedTuple):
    """The first layer with weights in a run of a model, which sees an image in patches."""

    trace: Trace
    first: Call
    patches: Linear  # (C, H, W) -> (T, k)
    image: Linear  # (T, k) -> (C, H, W)


@remembered
def find_cut(target: Target) -> Cut | None:
    """The first layer with weights, if it sees patches, found by running the model, which is in float64."""
    trace = traced(target)
    probe = trace.images[0]
    seen = trace.after([trace.images])
    first = next((c for c in trace.calls if _weighs(c) and id(c.inputs[0]) in seen), None)
    patches = None if first is None else _patches(trace, first)
    image = None if patches is None else _undo(patches, probe)
    return None if first is None or patches is None or image is None else Cut(trace, first, patches, image)


@remembered
def find_embedding(target: Target) -> Embedding | None:
    """The first layer with weights, if it sees patches and the gradients of positions say what came back to them.

    That the equations hold is tried on an image of the attacker's own.

    Args:
        target: the model, in float64.
    """
    trained = {id(p): name for name, p in target.model.named_parameters() if p.requires_grad}
    cut = find_cut(target)
    if cut is None or id(cut.first.inputs[1]) not in trained:
        return None
    positions = dict(_positions(cut.trace, cut.first, trained))
    if not positions:
        return None
    found = Embedding(trained[id(cut.first.inputs[1])], cut.patches, cut.image, positions)
    gradient = probe_gradient(target, cut)
    patches, slopes = cut.patches(cut.trace.images[0]), found.equations(gradient)
    holding = {
        name: read for name, read in found.positions.items() if near(read(gradient[name]).T @ patches, slopes)
    }  # no way from the tokens to the loss leads around these
    return found._replace(positions=holding) if holding else None


def probe_gradient(target: Target, cut: Cut) -> Gradient:
    """The update of the image that was run."""
    return target.gradient(cut.trace.images, _some_labels(target, cut.trace.output))


def _weighs(call: Call) -> bool:
    return call.name in ("linear", "conv2d") and len(call.inputs) > 1


def _patches(trace: Trace, first: Call) -> Linear | None:
    """From an image to the patches that a layer multiplies by its weight; None where it does something else."""
    before = Section(trace, trace.images, first.inputs[0])
    if first.name == "linear":
        return lambda image: before(image[None]).flatten(0, -2)
    weight, _, stride, padding, dilation, groups = arguments(first.args[1:], first.kwargs, **CONV)
    if groups != 1 or isinstance(padding, str):
        return None
    kernel = tuple(weight.shape[2:])

    def cut(image: Tensor) -> Tensor:
        return F.unfold(before(image[None]), kernel, dilation, padding, stride)[0].T

    return cut


def _undo(patches: Linear, probe: Tensor) -> Linear | None:
    """From patches to the image, the mean where they overlap; None where pixels are more than scaled and ordered."""
    offset, back = _transposed(patches, torch.zeros_like(probe))
    slope = patches(torch.ones_like(probe)) - offset
    often = back(slope)

    def image(cut: Tensor) -> Tensor:
        return back(cut - offset) / often

    right = bool((often > 0).all()) and near(image(patches(probe)), probe)
    return image if right and near(image(patches(probe.flip(-1).square())), probe.flip(-1).square()) else None


def _positions(trace: Trace, first: Call, trained: dict[int, str]) -> Iterator[tuple[str, Linear]]:
    """Parameters that are added to a layer's output, each with how its gradient says what came back to that."""
    tokens = first.outputs[0]
    later = trace.after([tokens])
    for name, parameter in trace.model.named_parameters():
        if id(parameter) not in trained:
            continue
        own = trace.after([parameter])
        alone = own - later  # what no image has come to
        sums = (
            call.outputs[0]
            for call in trace.calls
            if call.name in ("add", "iadd", "radd", "add_")
            and any(id(t) in alone for t in call.inputs)
            and any(id(t) in later and (id(t) not in own or t is call.out) for t in call.inputs)
        )
        total = next(sums, None)
        if total is not None:
            yield name, _reader(trace, parameter.detach(), parameter, tokens, total, first.name)


def _reader(trace: Trace, value: Tensor, parameter: Tensor, tokens: Tensor, total: Tensor, kind: str) -> Linear:
    """How the gradient of a parameter p says that of tokens z where  total = A z + B p:  A^T B (B^T B)^-1 dL/dp."""
    ahead, behind = Section(trace, parameter, total), Section(trace, tokens, total)
    nothing, lowered = _transposed(ahead, torch.zeros_like(value))
    often = lowered(ahead(torch.ones_like(value)) - nothing)
    _, back = _transposed(behind, tokens)

    def read(gradient: Tensor) -> Tensor:
        lifted = ahead(gradient / often.clamp(min=1)) - nothing
        came = back(lifted)
        return came[0].flatten(1).T if kind == "conv2d" else came.flatten(0, -2)

    return read


def _transposed(linear: Linear, at: Tensor) -> tuple[Tensor, Linear]:
    """What a function gives there, and the transpose of its slope.

    By plain autograd where that works, since `torch.func` takes seconds to load.
    """
    at = at.detach().requires_grad_()
    try:
        with torch.enable_grad():
            value = linear(at.clone())
    except RuntimeError:  # such as a step in place
        return _by_func(linear, at.detach())

    def back(given: Tensor) -> Tensor:
        total = (value * given).sum()  # since torch takes a second to load what it checks a given slope by
        return torch.autograd.grad(total, at, retain_graph=True)[0].detach()

    return (value.detach(), back) if value.requires_grad else _by_func(linear, at.detach())


def _by_func(linear: Linear, at: Tensor) -> tuple[Tensor, Linear]:
    value, back = vjp(linear, at)  # type: ignore[misc]
    return value.detach(), lambda given: back(given)[0].detach()


def _some_labels(target: Target, output: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.long, device=output.device) if target.classification else torch.ones_like(output)


def near(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same up to `CLOSE`."""
    return one.shape == other.shape and bool(torch.linalg.norm(one - other) <= CLOSE * torch.linalg.norm(other))
