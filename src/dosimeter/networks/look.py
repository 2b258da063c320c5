"""A look at a network that leaves it as it was."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter.networks.hooks import hooked
from dosimeter.types import Shape


def blanks(model: nn.Module, shape: Shape) -> Tensor:
    """(2, C, H, W): grey images in the precision and place of the model; batch norm by the batch refuses a single."""
    return torch.full((2, *shape), 0.5).to(next(model.parameters())).detach()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A look at a model without dropout and by running statistics, which the look must not change."""
    training = [layer for layer in model.modules() if layer.training]
    model.eval()
    try:
        yield
    finally:
        for layer in training:
            layer.training = True


def run_order(model: nn.Module, shape: Shape) -> dict[str, tuple[int, ...]]:
    """{module: shape of what goes into it}, in the order in which an image meets them."""
    shapes: dict[str, tuple[int, ...]] = {}

    def note(path: str, _layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], Tensor):
            shapes.setdefault(path, tuple(inputs[0].shape[1:]))

    with torch.no_grad(), evaluating(model), hooked(model, note, lambda path, _layer: bool(path), before=True):
        model(blanks(model, shape))
    return shapes


def has_tokens(model: nn.Module, shape: Shape) -> bool:
    """Whether an image becomes a row of tokens, each of which goes through the same linear layers, as in a ViT."""
    met = run_order(model, shape)
    layers = dict(model.named_modules())
    return any(isinstance(layers[path], nn.Linear) and len(size) == 2 and size[0] > 1 for path, size in met.items())


def has_parameters(_name: str, layer: nn.Module) -> bool:
    """Whether a layer has parameters of its own."""
    return next(layer.parameters(recurse=False), None) is not None


def norms_by_batch(model: nn.Module) -> bool:
    """Whether batch norms mix the images of a batch, since they have no running statistics to use instead."""
    return any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in model.modules())


def clone_modules(model: nn.Module) -> nn.Module:
    """A model for another thread: modules of its own, weights in the same memory, which caches then hold once.

    While torch.func runs a model, the parameters of its modules are exchanged for all threads.
    """
    shared = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, dict(shared))
