"""What a client trains with: torch.optim's rules as pure functions, differentiable in the slopes.

A rule says where to go, theta' = theta - lr * move. None of them knows the learning rate, so that the sum of the moves
is the client's whole change of weights in units of it.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.errors import SettingError
from dosimeter.types import Gradient

S = TypeVar("S")


class Optimiser(Protocol[S]):
    """A rule with a state of its own, such as a momentum: a tree of tensors."""

    @property
    def linear(self) -> bool:
        """Whether moves are sums of slopes."""
        ...

    @property
    def copies(self) -> tuple[float, int]:
        """How often all weights are held, by a step that is to be differentiated and by the state."""
        ...

    def init(self, parameters: Gradient) -> S:
        """The state before the first step."""
        ...

    def move(self, slope: Gradient, parameters: Gradient, state: S, step: int) -> tuple[Gradient, S]:
        """Where to go from the parameters at which the loss has this slope, in the first step or a later one, and the
        state after it."""
        ...


@dataclass(frozen=True, kw_only=True)
class SGD:
    """b' = momentum * b + slope, move = b', or slope + momentum * b' (Nesterov): torch.optim.SGD without dampening."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    linear = True

    def __post_init__(self) -> None:
        checks.share("Local training", "a momentum", self.momentum, one=False)
        checks.at_least("Local training", "a weight decay", self.weight_decay, 0)
        if self.nesterov and not self.momentum:
            raise SettingError("Nesterov's step needs a momentum above 0; give one or leave nesterov out.")

    @property
    def copies(self) -> tuple[float, int]:
        return 2, bool(self.momentum)

    def init(self, parameters: Gradient) -> Gradient:
        return {name: torch.zeros_like(value) for name, value in parameters.items()} if self.momentum else {}

    def move(self, slope: Gradient, parameters: Gradient, state: Gradient, step: int) -> tuple[Gradient, Gradient]:
        slope = _decayed(slope, parameters, self.weight_decay)
        if not self.momentum:
            return slope, state
        state = {name: self.momentum * state[name] + g for name, g in slope.items()}
        if not self.nesterov:
            return state, state
        return {name: g + self.momentum * state[name] for name, g in slope.items()}, state


class _Moments(NamedTuple):
    first: Gradient
    second: Gradient


@dataclass(frozen=True, kw_only=True)
class Adam:
    """move = m / (sqrt(v) + eps) with the corrected means m of slopes and v of their squares: torch.optim.Adam.

    Its first move is nearly the sign of every slope, which tells an attacker less and hardly changes with the image.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    linear = False

    def __post_init__(self) -> None:
        checks.share("Local training", "a beta1", self.beta1, one=False)
        checks.share("Local training", "a beta2", self.beta2, one=False)
        checks.at_least("Local training", "a weight decay", self.weight_decay, 0)
        checks.positive("Local training", "an eps", self.eps)

    @property
    def copies(self) -> tuple[float, int]:
        return 12, 2  # roots and quotients keep what they were made of

    def init(self, parameters: Gradient) -> _Moments:
        zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
        return _Moments(zeros, zeros)

    def move(self, slope: Gradient, parameters: Gradient, state: _Moments, step: int) -> tuple[Gradient, _Moments]:
        slope = _decayed(slope, parameters, self.weight_decay)
        first = {name: self.beta1 * state.first[name] + (1 - self.beta1) * g for name, g in slope.items()}
        second = {name: self.beta2 * state.second[name] + (1 - self.beta2) * g.square() for name, g in slope.items()}
        short, long = 1 - self.beta1**step, math.sqrt(1 - self.beta2**step)
        moves = {name: m / short / (_root(second[name]) / long + self.eps) for name, m in first.items()}
        return moves, _Moments(first, second)


def _root(v: Tensor) -> Tensor:
    """sqrt(v) whose derivative at 0, where a weight has never had a slope, is 0 and not infinite."""
    flat = v == 0
    return torch.where(flat, 0.0, torch.where(flat, 1.0, v).sqrt())


def _decayed(slope: Gradient, parameters: Gradient, weight_decay: float) -> Gradient:
    """The slope of the loss plus weight_decay / 2 |theta|^2."""
    if not weight_decay:
        return slope
    return {name: g + weight_decay * parameters[name] for name, g in slope.items()}
