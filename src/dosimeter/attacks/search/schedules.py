"""How the step size shrinks: a factor on the learning rate for every candidate."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter import checks


class State(NamedTuple):
    scale: Tensor  # (N,) the factor now
    best: Tensor  # (N,) lowest loss so far
    waited: Tensor  # (N,) steps since then


def init(n: int, like: Tensor) -> State:
    """The state before the first step."""
    ones = torch.ones(n, dtype=like.dtype, device=like.device)
    return State(ones, torch.full_like(ones, torch.inf), torch.zeros_like(ones))


class Schedule:
    """The start of all schedules."""

    varies: tuple[str, ...] = ()
    """Numbers that candidates of one batch may have of their own; see `together`."""

    def update(self, step: int, steps: int, loss: Tensor, state: State) -> State:
        """After the loss (N,) of step number `step` (from 0) of `steps` is known, before the move."""
        return state

    def within(self, steps: int) -> "Schedule":
        """The same for one of several legs of a search, of so many steps."""
        return self


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The learning rate as it is."""


@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """Times `factor` at fixed fractions of the run: 3/8, 5/8 and 7/8 (Inverting Gradients, App. C)."""

    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    factor: float = 0.1
    varies = ("factor",)

    def __post_init__(self) -> None:
        checks.share("A step size that shrinks", "a factor", self.factor, zero=False)
        for fraction in self.at:
            checks.share("A step size that shrinks", "places `at`", fraction)

    def update(self, step: int, steps: int, loss: Tensor, state: State) -> State:
        passed = sum(step >= round(fraction * steps) for fraction in self.at)
        return state._replace(scale=torch.ones_like(state.scale) * self.factor**passed)


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """Times `factor` at every step (Bayes, Sec. 6)."""

    factor: float = 0.98
    varies = ("factor",)

    def __post_init__(self) -> None:
        checks.share("A step size that shrinks", "a factor", self.factor, zero=False)

    def update(self, step: int, steps: int, loss: Tensor, state: State) -> State:
        return state._replace(scale=torch.ones_like(state.scale) * self.factor**step)


@dataclass(frozen=True, kw_only=True)
class CosineDecay(Schedule):
    """(1 + cos(pi t)) / 2 at the share t of the run, and never less than `floor` of the rate."""

    floor: float = 0.01

    def __post_init__(self) -> None:
        checks.share("A step size that shrinks", "a floor", self.floor)

    def update(self, step: int, steps: int, loss: Tensor, state: State) -> State:
        factor = max(self.floor, (1 + math.cos(math.pi * step / steps)) / 2)
        return state._replace(scale=torch.full_like(state.scale, factor))


@dataclass(frozen=True, kw_only=True)
class Plateau(Schedule):
    """Times `factor` when a candidate's loss has not fallen for `patience` steps (CVB, Sec. V-B).

    A fall counts when it is larger than the share `threshold` of the best loss, as in torch's scheduler.
    """

    patience: int = 400
    factor: float = 0.1
    threshold: float = 1e-4

    def __post_init__(self) -> None:
        checks.count("A plateau", "a patience", self.patience)
        checks.share("A step size that shrinks", "a factor", self.factor, zero=False)
        checks.share("A plateau", "a threshold", self.threshold, one=False)

    def within(self, steps: int) -> "Plateau":
        """With a patience that is over a few times in each leg."""
        return replace(self, patience=min(self.patience, max(1, steps // 8)))

    def update(self, step: int, steps: int, loss: Tensor, state: State) -> State:
        better = loss < state.best * (1 - self.threshold)
        best = torch.where(better, loss, state.best)
        waited = torch.where(better, 0, state.waited + 1)
        full = waited > self.patience
        return State(torch.where(full, state.scale * self.factor, state.scale), best, torch.where(full, 0, waited))
