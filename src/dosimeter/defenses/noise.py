"""Noise on the gradient, the plainest perturbation (PPP, Sec. 4; CVB, Sec. V; Bayes, Sec. 4)."""

import math
from dataclasses import dataclass

import torch

from dosimeter.defenses.base import Defense, Moment
from dosimeter.errors import SettingError
from dosimeter.types import Gradient


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Defense):
    """g + e with e ~ N(0, sigma^2) on every entry, without clipping."""

    sigma: float = 1e-2

    def __post_init__(self) -> None:
        if not (self.sigma >= 0 and math.isfinite(self.sigma)):
            raise SettingError(f"Noise needs a standard deviation sigma of at least 0, got {self.sigma}.")

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        return {
            name: g + self.sigma * torch.randn(g.shape, generator=rng, dtype=g.dtype).to(g.device)
            for name, g in gradient.items()
        }
