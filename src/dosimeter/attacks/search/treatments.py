"""What a search supposes of the numbers that a client draws inside its model, such as PRECODE's and CVB's noise.

    Known       the threat model reveals them: the oracle beside every other treatment
    Resampled   a new draw at every step; several draws are averaged
    Guessed     one draw for the whole search, which is wrong
    Joint       unknowns beside the images
    Mean        left at their mean, 0

Noise on the gradient is not drawn inside the model: a likelihood integrates it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.types import Secrets


class Treatment:
    """The start of all treatments."""

    granted = False
    """Whether the threat model must reveal the draws."""
    draws = 1
    """How many draws a step averages over."""
    searched = False
    """Whether the draws are unknowns of the search."""

    def values(self, revealed: Secrets, drawn: Secrets, searched: Secrets) -> Secrets:
        """What candidates suppose at a step, {name: (n, ...)}.

        Args:
            revealed: what the threat model reveals.
            drawn: fresh draws.
            searched: the search's own unknowns.
        """
        raise NotImplementedError

    def loss(self, searched: Secrets) -> Tensor | float:
        """(n,): -log p(u) of the search's own unknowns."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Known(Treatment):
    """Revealed by the threat model; what an attack would reach if the draws hid nothing."""

    granted = True

    def values(self, revealed: Secrets, drawn: Secrets, searched: Secrets) -> Secrets:
        return revealed


@dataclass(frozen=True, kw_only=True)
class Resampled(Treatment):
    """A fresh draw at every step, as in the plain attacks on PRECODE and CVB; the mean over `draws` of them."""

    draws: int = 1

    def __post_init__(self) -> None:
        checks.count("A mean over draws", "draws", self.draws, most=10_000)

    def values(self, revealed: Secrets, drawn: Secrets, searched: Secrets) -> Secrets:
        return drawn


@dataclass(frozen=True, kw_only=True)
class Guessed(Treatment):
    """One draw from the standard normal, kept for the whole search: a wrong key, say, that is taken for the right one.

    It has the start of `Joint` and does not move from there.
    """

    searched = True

    def values(self, revealed: Secrets, drawn: Secrets, searched: Secrets) -> Secrets:
        return {name: value.detach() for name, value in searched.items()}


@dataclass(frozen=True, kw_only=True)
class Mean(Treatment):
    """At their mean of 0: the model without its noise, where layers that drop units drop none and scale none."""

    def values(self, revealed: Secrets, drawn: Secrets, searched: Secrets) -> Secrets:
        return {name: torch.zeros_like(value) for name, value in drawn.items()}


@dataclass(frozen=True, kw_only=True)
class Joint(Treatment):
    """Optimised together with the images, under the standard normal they were drawn from.

    `weight` scales mean(u^2) / 2. This is the most probable pair of image and draw, not the best image on average.
    """

    weight: float = 1e-3
    searched = True

    def __post_init__(self) -> None:
        checks.at_least("The draws' own density", "a weight", self.weight, 0)

    def values(self, revealed: Secrets, drawn: Secrets, searched: Secrets) -> Secrets:
        return searched

    def loss(self, searched: Secrets) -> Tensor | float:
        squares = [value.flatten(1).square() for value in searched.values()]
        return self.weight * torch.cat(squares, 1).mean(1) / 2 if squares else 0.0
