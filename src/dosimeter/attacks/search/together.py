"""Searches that differ in a few numbers ride in one batch, beside victims and restarts.

A part says which of its numbers may differ (`varies`): its arithmetic takes one value a candidate, (n,), in their
place. Which tensors are matched may differ freely, since that is a matrix of weights in any case.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from dosimeter.attacks.search import masks

if TYPE_CHECKING:
    from dosimeter.attacks.search.search import Search

T = TypeVar("T")


def shared(search: "Search") -> object:
    """All in which searches must agree to ride together; never equal to another's where one has to run alone."""
    if search.samples > 1 or search.prior.siblings or search.optimiser.alone:
        return object()
    return _without_numbers(replace(search, name="", only=masks.Everything()))


def _without_numbers(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(map(_without_numbers, part))
    if not is_dataclass(part):
        return part
    held = {field.name: _without_numbers(getattr(part, field.name)) for field in fields(part)}
    numbers = getattr(part, "varies", ())
    return (type(part), *((name, None if name in numbers else value) for name, value in held.items()))


def stacked(parts: Sequence[T], which: Tensor, like: Tensor) -> T:
    """One part that has for candidate n the numbers of part number which[n] (n,); all agree in what is `shared`."""
    first: Any = parts[0]
    if all(part == first for part in parts):
        return parts[0]
    if isinstance(first, tuple):
        return tuple(stacked(each, which, like) for each in zip(*parts, strict=True))  # type: ignore[return-value]
    made = copy(first)
    for field in fields(first):
        if field.name == "only":  # whose weights the objective has setting by setting
            continue
        values = [getattr(part, field.name) for part in parts]
        if field.name in getattr(first, "varies", ()):
            numbers = torch.tensor(values, dtype=like.dtype, device=like.device)[which]
            object.__setattr__(made, field.name, numbers)  # each was checked when its own part was made
        elif is_dataclass(values[0]) or isinstance(values[0], tuple):
            object.__setattr__(made, field.name, stacked(values, which, like))
    found: T = made
    return found
