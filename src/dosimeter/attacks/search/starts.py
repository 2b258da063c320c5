"""Where a search begins. Every candidate draws from its own stream, so batch mates do not change it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dosimeter import checks


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

    def __post_init__(self) -> None:
        checks.finite("A uniform start", "a low", self.low)
        checks.positive("A uniform start", "a high minus low", self.high - self.low)

    def draw(self, shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype) -> Tensor:
        return self.low + (self.high - self.low) * torch.rand(shape, generator=rng, dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class Tiled:
    """One small patch, uniform in [0, 1], repeated `across` times in each direction (CPL, "patterned" start)."""

    across: int = 2

    def __post_init__(self) -> None:
        checks.count("A tiled start", "patches across", self.across)

    def draw(self, shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype) -> Tensor:
        *images, height, width = shape
        patch = torch.rand(*images, -(-height // self.across), -(-width // self.across), generator=rng, dtype=dtype)
        return patch.repeat(*[1] * len(images), self.across, self.across)[..., :height, :width]
