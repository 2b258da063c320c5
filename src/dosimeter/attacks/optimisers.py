"""How a search moves. State is a NamedTuple of per-candidate tensors, so candidates can leave the batch."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class State(NamedTuple):
    """Running moments of the slope and the number of steps taken."""

    first: Tensor  # (N, ...)
    second: Tensor  # (N, ...)
    taken: int  # steps


class Optimiser(Protocol):
    def init(self, x: Tensor) -> State: ...

    def step(self, x: Tensor, slope: Tensor, scale: Tensor, state: State) -> tuple[Tensor, State]:
        """Move N candidates along their slopes; `scale` (N,) multiplies the learning rate of each."""
        ...


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba), as torch's; `signed` feeds it the sign of the slope (Inverting Gradients, Sec. 3)."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    signed: bool = False

    def init(self, x: Tensor) -> State:
        return State(torch.zeros_like(x), torch.zeros_like(x), 0)

    def step(self, x: Tensor, slope: Tensor, scale: Tensor, state: State) -> tuple[Tensor, State]:
        if self.signed:
            slope = slope.sign()
        b1, b2 = self.betas
        taken = state.taken + 1
        first = torch.lerp(state.first, slope, 1 - b1)
        second = b2 * state.second + (1 - b2) * slope.square()
        width = (second / (1 - b2**taken)).sqrt() + self.eps
        rate = (self.lr / (1 - b1**taken) * scale).reshape(-1, *[1] * (x.ndim - 1))
        return x - rate * first / width, State(first, second, taken)
