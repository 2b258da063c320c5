"""The form of a dishonest server: one frozen dataclass whose call changes the model before clients get it."""

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dosimeter import networks
from dosimeter.errors import ModelError
from dosimeter.types import Shape


@dataclass(frozen=True, kw_only=True)
class Tamper:
    """Sends the model as it was agreed; subclasses change it. They compose from left to right with `|`."""

    @property
    def name(self) -> str:
        """What threat models and the command line call it: `PermutedRows` is permuted-rows."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__).lower()

    @property
    def weights_only(self) -> bool:
        """Whether names and shapes of the state dict, and the program, stay as agreed."""
        return True

    def __call__(self, model: nn.Module, *, shape: Shape, batch: int) -> nn.Module:
        """The model that clients are sent; the one given stays as it is.

        Args:
            model: as it was agreed.
            shape: (C, H, W) of the images.
            batch: images in every update, which a server knows.
        """
        return model

    def __or__(self, after: "Tamper") -> "Tamper":
        return Chain(parts=(*_parts(self), *_parts(after)))


@dataclass(frozen=True, kw_only=True)
class Honest(Tamper):
    """The model as it was agreed."""


@dataclass(frozen=True, kw_only=True)
class Chain(Tamper):
    """Tampers one after another."""

    parts: tuple[Tamper, ...] = ()

    @property
    def name(self) -> str:
        return "+".join(part.name for part in self.parts)

    @property
    def weights_only(self) -> bool:
        return all(part.weights_only for part in self.parts)

    def __call__(self, model: nn.Module, *, shape: Shape, batch: int) -> nn.Module:
        for part in self.parts:
            model = part(model, shape=shape, batch=batch)
        return model


def _parts(tamper: Tamper) -> tuple[Tamper, ...]:
    return tamper.parts if isinstance(tamper, Chain) else (tamper,)


def watch(model: nn.Module, images: Tensor) -> tuple[list[networks.Call], Tensor]:
    """The layers with parameters that a pass through a copy of the model calls, in this order, and its output."""
    copied = networks.clone_modules(model).eval()
    outputs: list[Tensor] = []
    with torch.no_grad():
        calls = networks.watch(copied, lambda: outputs.append(copied(images)), _learned)
    return calls, outputs[0]


def _learned(name: str, layer: nn.Module) -> bool:
    return networks.is_leaf(name, layer) and networks.has_parameters(name, layer)


def blanks(model: nn.Module, shape: Shape) -> Tensor:
    """(2, C, H, W): a black and a white image in the precision and place of the model."""
    like = next(model.parameters())
    return torch.stack([torch.zeros(shape), torch.ones(shape)]).to(like)


def find_classifier(model: nn.Module, shape: Shape) -> str:
    """The name of the linear layer that gives the model's output."""
    calls, output = watch(model, blanks(model, shape))
    for name, layer, _, given in calls:
        if isinstance(layer, nn.Linear) and given is output:
            return name
    raise ModelError(
        "This server changes the classifier, but the model does not end in a linear layer; choose another --server."
    )
