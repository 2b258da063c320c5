"""The layer that sees the image first, found by watching the model run rather than from a list of models."""

import copy
from dataclasses import replace
from math import prod
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn

from dosimeter import networks
from dosimeter.errors import SettingError
from dosimeter.networks.remember import remembered
from dosimeter.networks.trace import Trace
from dosimeter.types import Target

_EXACT: WeakSet[nn.Module] = WeakSet()

SEARCH = "use a search instead (--attack ig)"


class FirstLayer(NamedTuple):
    """A fully connected layer whose input is `scale * image + offset`, pixel by pixel."""

    weight: str  # the parameter's name, (m, C * H * W)
    bias: str | None  # (m,); None where it has none or does not train it
    scale: Tensor  # (C, H, W)
    offset: Tensor  # (C, H, W)

    def image(self, inputs: Tensor) -> Tensor:
        """(C, H, W): the image behind the layer's input (C * H * W,), in [0, 1] where it is the right one."""
        return (inputs.reshape(self.scale.shape) - self.offset) / self.scale


@remembered
def in_double(target: Target) -> Target:
    """A private copy of the target in float64, where solving costs no digits; of such a copy, the same."""
    if target.model in _EXACT:
        return target
    model = copy.deepcopy(target.model).double()
    _EXACT.add(model)
    return replace(target, model=model, mean=target.mean.double(), std=target.std.double())


@remembered
def find_first_layer(target: Target) -> FirstLayer | None:
    """The first layer with parameters; None where it is not fully connected, a refusal where it is and not solvable."""
    probes = probes_of(target)  # (3, C, H, W)
    if not isinstance(_first_called(target.model, probes[:1]), nn.Linear):
        return None
    with torch.no_grad():
        calls = networks.watch(target.model, lambda: target.model(probes), _is_learned)
    if not calls or not isinstance(calls[0].layer, nn.Linear):
        return None
    name, layer, inputs, _ = calls[0]
    if not isinstance(inputs, Tensor) or inputs.numel() != probes.numel() or layer.in_features != prod(target.shape):
        raise SettingError(
            f"The first layer {name!r} sees parts of the image one by one ({layer.in_features} of "
            f"{prod(target.shape)} numbers), so that its gradient is a sum over them; {SEARCH}."
        )
    if sum(call.layer is layer for call in calls) > 1:
        raise SettingError(f"The first layer {name!r} is used more than once, so its gradient is a sum; {SEARCH}.")
    trained = {id(p): key for key, p in target.model.named_parameters() if p.requires_grad}
    weight = trained.get(id(layer.weight))
    if weight is None:
        raise SettingError(f"The first layer {name!r} is not trained, so the update says nothing of it; {SEARCH}.")
    black, white, mixed = inputs.reshape(probes.shape)
    scale, offset = white - black, black
    if not (scale != 0).all() or not torch.allclose(scale * probes[2] + offset, mixed, rtol=1e-9, atol=1e-9):
        raise SettingError(
            f"The model does more to the image than scale its pixels before its first layer {name!r}; {SEARCH}."
        )
    return FirstLayer(weight, trained.get(id(layer.bias)), scale, offset)


class _CalledError(Exception):
    """Ends a run at a layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__("called")
        self.layer = layer


def _first_called(model: nn.Module, images: Tensor) -> nn.Module | None:
    """The layer with parameters that comes first, which is as far as the model is run."""

    def see(_name: str, layer: nn.Module, *_: object) -> None:
        raise _CalledError(layer)

    try:
        with torch.no_grad(), networks.hooked(model, see, _is_learned):
            model(images)
    except _CalledError as called:
        return called.layer
    return None


@remembered
def traced(target: Target) -> Trace:
    """One run on the probe in which no two pixels are the same."""
    return Trace(target.model, probes_of(target)[2:])


def probes_of(target: Target) -> Tensor:
    """(3, C, H, W): black, white, and one in which no two pixels are the same."""
    mixed = torch.linspace(0, 1, prod(target.shape)).sqrt().reshape(target.shape)
    return torch.stack([torch.zeros_like(mixed), torch.ones_like(mixed), mixed]).to(target.mean)


def _is_learned(_name: str, module: nn.Module) -> bool:
    """A module with layers inside is no layer, whatever else it holds."""
    return not list(module.children()) and bool(list(module.parameters()))
