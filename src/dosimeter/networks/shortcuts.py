"""Places in a network that a shortcut leads around: what a layer hides there goes past it all the same."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dosimeter.networks.hooks import hooked
from dosimeter.networks.look import blanks, evaluating
from dosimeter.types import Shape, call


def bypassed(model: nn.Module, shape: Shape, places: Collection[str]) -> bool:
    """Whether the output depends on the image although nothing of it gets into these modules."""
    return _cut(model, shape, places).bypassed


def behind_first_block(model: nn.Module, shape: Shape, order: Sequence[str], first: str) -> str:
    """`first`, or where a shortcut leads around it the first module behind its block that none leads around.

    The block is the innermost module around `first`, though not around the model's first layer too, that no shortcut
    leads around. Where all places are bypassed it stays with `first`.

    Args:
        order: the model's modules as it runs them.
        first: a convolution or linear layer among them.
    """

    def free(place: str) -> bool:
        found = _cut(model, shape, [place])
        return found.inputs == [1] and not found.bypassed  # a module that runs twice has two places

    if free(first):
        return first
    start = next(path for path in order if isinstance(model.get_submodule(path), nn.Linear | nn.Conv2d))
    parts = first.split(".")
    around = [".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1)]
    block = next((p for p in around if p in order and not start.startswith(f"{p}.") and free(p)), first)
    later = (path for path in order[order.index(first) + 1 :] if not path.startswith(f"{block}."))
    return next(filter(free, later), first)


class _Cut(NamedTuple):
    bypassed: bool
    inputs: list[int]  # of every run of the modules that were cut off


def _cut(model: nn.Module, shape: Shape, places: Collection[str]) -> _Cut:
    """One pass in which the first input of these modules is cut off from the image."""
    inputs: list[int] = []

    def cut(_path: str, _layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        inputs.append(len(given) + len(named))
        return tuple(x.detach() if isinstance(x, Tensor) and not at else x for at, x in enumerate(given)), named

    fixed = {name: p.detach() for name, p in model.named_parameters()}
    images = blanks(model, shape).requires_grad_().clone()
    where = hooked(model, cut, lambda path, _layer: path in places, before=True, with_kwargs=True)
    with torch.enable_grad(), evaluating(model), where:
        output = call(model, fixed, images)
    return _Cut(isinstance(output, Tensor) and output.requires_grad, inputs)
