"""The form of a defense: one frozen dataclass that overrides one method.

    @dataclass(frozen=True, kw_only=True)
    class Round(Defense):
        '''Send three decimals only.'''

        def on_gradient(self, gradient, moment, rng):
            return {name: g.round(decimals=3) for name, g in gradient.items()}

Defenses compose from left to right with `|`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from dosimeter.types import Gradient, Shape


class Moment(NamedTuple):
    """When a defense acts."""

    round: int = 0
    batch: int = 1  # images in the update


@dataclass(frozen=True, kw_only=True)
class Defense:
    """Leaves model and update as they are; subclasses change what they need."""

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        """The model that all train, for instance with layers added; a copy where it differs.

        New weights are drawn from torch's global generator, which an audit sets by its seed.
        """
        return model

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        """The update that leaves the client. Draw only from `rng`, so that a rerun is the same run."""
        return gradient

    def __or__(self, after: "Defense") -> "Defense":
        return Chain(parts=(*_parts(self), *_parts(after)))


@dataclass(frozen=True, kw_only=True)
class NoDefense(Defense):
    """The update as it is."""


@dataclass(frozen=True, kw_only=True)
class Chain(Defense):
    """Defenses one after another, in the order in which they were joined."""

    parts: tuple[Defense, ...] = ()

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        for part in self.parts:
            model = part.on_model(model, shape)
        return model

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        for part in self.parts:
            gradient = part.on_gradient(gradient, moment, rng)
        return gradient


def _parts(defense: Defense) -> tuple[Defense, ...]:
    return defense.parts if isinstance(defense, Chain) else (defense,)
