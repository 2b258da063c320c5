"""How a search moves. State is a NamedTuple of per-candidate tensors, so candidates can leave the batch."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.attacks.search.cmaes import CMAES
from dosimeter.attacks.search.lbfgs import LBFGS
from dosimeter.attacks.search.stepping import Evaluate, Optimiser, per_row

__all__ = ["CMAES", "LBFGS", "Adam", "Descent", "Evaluate", "Optimiser", "RMSprop", "State"]


class State(NamedTuple):
    """Running moments of the slope and the number of steps taken."""

    first: Tensor  # (N, ...)
    second: Tensor  # (N, ...)
    taken: int  # steps


class _WithMoments(Optimiser[State]):
    def init(self, x: Tensor) -> State:
        return State(torch.zeros_like(x), torch.zeros_like(x), 0)


@dataclass(frozen=True, kw_only=True)
class Adam(_WithMoments):
    """Adam (Kingma and Ba), as torch's; `signed` feeds it the sign of the slope (Inverting Gradients, Sec. 3)."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    signed: bool = False
    varies = ("lr",)

    def __post_init__(self) -> None:
        checks.positive("Adam", "a learning rate lr", self.lr)
        checks.positive("Adam", "an eps", self.eps)
        for beta in self.betas:
            checks.share("Adam", "betas", beta, one=False)

    def step(
        self, x: Tensor, slope: Tensor, scale: Tensor, state: State, *, loss: Tensor, evaluate: Evaluate
    ) -> tuple[Tensor, State]:
        if self.signed:
            slope = slope.sign()
        b1, b2 = self.betas
        taken = state.taken + 1
        first = torch.lerp(state.first, slope, 1 - b1)
        second = b2 * state.second + (1 - b2) * slope.square()
        width = (second / (1 - b2**taken)).sqrt() + self.eps
        rate = per_row(self.lr / (1 - b1**taken) * scale, x)
        return x - rate * first / width, State(first, second, taken)


class Nothing(NamedTuple):
    """What plain descent remembers."""


@dataclass(frozen=True, kw_only=True)
class Descent(Optimiser[Nothing]):
    """Plain gradient descent, which Inverting Gradients' Table 1 puts in Adam's place."""

    lr: float = 0.1
    varies = ("lr",)

    def __post_init__(self) -> None:
        checks.positive("Descent", "a learning rate lr", self.lr)

    def init(self, x: Tensor) -> Nothing:
        return Nothing()

    def step(
        self, x: Tensor, slope: Tensor, scale: Tensor, state: Nothing, *, loss: Tensor, evaluate: Evaluate
    ) -> tuple[Tensor, Nothing]:
        return x - per_row(self.lr * scale, x) * slope, state


@dataclass(frozen=True, kw_only=True)
class RMSprop(_WithMoments):
    """RMSprop with momentum, as torch's: slopes over their running root mean square, gathered up (GRNN's optimiser)."""

    lr: float = 1e-4
    momentum: float = 0.99
    alpha: float = 0.99
    eps: float = 1e-8
    varies = ("lr",)

    def __post_init__(self) -> None:
        checks.positive("RMSprop", "a learning rate lr", self.lr)
        checks.positive("RMSprop", "an eps", self.eps)
        checks.share("RMSprop", "a momentum", self.momentum, one=False)
        checks.share("RMSprop", "an alpha", self.alpha, one=False)

    def step(
        self, x: Tensor, slope: Tensor, scale: Tensor, state: State, *, loss: Tensor, evaluate: Evaluate
    ) -> tuple[Tensor, State]:
        second = self.alpha * state.second + (1 - self.alpha) * slope.square()
        first = self.momentum * state.first + slope / (second.sqrt() + self.eps)
        return x - per_row(self.lr * scale, x) * first, State(first, second, state.taken + 1)
