"""Where a search begins. Every candidate draws from its own stream, so batch mates do not change it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Start(Protocol):
    """One candidate's first image (B, C, H, W) in normalised units."""

    def draw(self, shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Normal:
    """Standard normal on the normalised image (Inverting Gradients, App. C)."""

    def draw(self, shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Uniform between `low` and `high` on the normalised image."""

    low: float = 0.0
    high: float = 1.0

    def draw(self, shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype) -> Tensor:
        return self.low + (self.high - self.low) * torch.rand(shape, generator=rng, dtype=dtype)
