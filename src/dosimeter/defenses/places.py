"""Places in a network: in what order it runs its layers, which are its own, and a new layer before one of them."""

import copy
from collections.abc import Callable, Sequence

from torch import nn

from dosimeter import checks
from dosimeter.errors import SettingError, unknown
from dosimeter.networks import bypassed, run_order
from dosimeter.types import Shape


class Added(nn.Module):
    """A layer that a defense puts into the model; no other defense takes its parts for the model's own layers."""

    def settle(self) -> None:
        """Weights or biases were changed from outside; what was computed of them has to be computed again."""


class Guarded(nn.Sequential):
    """A layer with a bottleneck before it."""

    def __init__(self, bottleneck: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.bottleneck = bottleneck
        self.layer = layer


def check_place(owner: str, position: int | Sequence[int] | None, before: str | Sequence[str] | None) -> None:
    """Refuse a position that no layer has, and a place that is given twice."""
    if before and position is not None:
        raise SettingError(f"{owner} stands at a position or before a layer, got {position=} and {before=}; give one.")
    for at in position if isinstance(position, Sequence) else (position,):
        checks.count(owner, "a position", at)


def insert(
    model: nn.Module,
    shape: Shape,
    make: Callable[[tuple[int, ...]], nn.Module],
    *,
    position: int | None,
    before: str | None,
) -> nn.Module:
    """A copy of the model with a new layer before the one at `position` (counted from 0) or of the name `before`.

    Args:
        model: takes images of `shape`.
        make: from the shape of what goes in there, without the batch, to the new layer.
        position: which of the model's own convolutions and linear layers, in the order in which it runs them; the last
            of them by default.
        before: the name of any module instead.
    """
    model = copy.deepcopy(model)
    shapes = run_order(model, shape)
    order = list(shapes)
    if before is None:
        before = weighted(model, shape, position)
    elif before not in shapes:
        raise SettingError(unknown("layer", before, order))
    layer = model.get_submodule(before)
    added = make(shapes[before]).to(next(model.parameters()))
    parent, _, name = before.rpartition(".")
    setattr(model.get_submodule(parent), name, Guarded(added, layer))
    return model


def weighted(model: nn.Module, shape: Shape, position: int | None) -> str:
    """The model's own convolution or linear layer at that position, from 0 in the order in which it runs them."""
    found = [path for path in own_order(model, shape) if isinstance(model.get_submodule(path), nn.Linear | nn.Conv2d)]
    at = len(found) - 1 if position is None else position
    if not 0 < at < len(found):
        raise SettingError(
            f"A layer stands behind one of the model's {len(found)} convolutions and linear layers and before "
            f"another, expected position 1 to {len(found) - 1}, got {position}."
        )
    return found[at]


def before_flatten(model: nn.Module, shape: Shape, place: str) -> str:
    """`place`, or where a vector goes into it the model's `nn.Flatten` since the last convolution or linear layer."""
    order = own_order(model, shape)
    for path in reversed(order[: order.index(place)]) if len(run_order(model, shape)[place]) == 1 else ():
        layer = model.get_submodule(path)
        if isinstance(layer, nn.Flatten):
            return path
        if isinstance(layer, nn.Linear | nn.Conv2d):
            break
    return place


def own_order(model: nn.Module, shape: Shape) -> list[str]:
    """The model's own modules in the order in which an image meets them."""
    own = own_modules(model)
    return [path for path in run_order(model, shape) if path in own]


def own_modules(model: nn.Module) -> dict[str, nn.Module]:
    """{name: module} of a model without what defenses put in."""
    added = [path for path, layer in model.named_modules() if isinstance(layer, Added)]
    return {
        path: layer for path, layer in model.named_modules() if not any(f"{path}.".startswith(f"{at}.") for at in added)
    }


def shortcuts(model: nn.Module, shape: Shape) -> dict[str, str]:
    """What a report should say of a model whose shortcuts lead around all that was put into it."""
    places = [path for path, layer in model.named_modules() if isinstance(layer, Guarded)]
    if not places or not bypassed(model, shape, places):
        return {}
    return {"shortcut": f"carries the image around the noise before {', '.join(places)}"}
