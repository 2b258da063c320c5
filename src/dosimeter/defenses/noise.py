"""Noise on the gradient, the plainest perturbation (PPP, Sec. 5.2; Bayes, Sec. 6)."""

from dataclasses import dataclass

import torch

from dosimeter import checks
from dosimeter.channel import Facts, Noise
from dosimeter.defenses.base import Defense
from dosimeter.types import Gradient, Moment

LEVELS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Of noise, from weak to strong."""


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Defense):
    """g + e with e ~ N(0, sigma^2) on every entry, without clipping."""

    sigma: float = 1e-2

    def __post_init__(self) -> None:
        checks.at_least("Noise", "a standard deviation sigma", self.sigma, 0)

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        return {
            name: g + self.sigma * torch.randn(g.shape, generator=rng, dtype=g.dtype).to(g.device)
            for name, g in gradient.items()
        }

    def channel(self, moment: Moment) -> Facts:
        return (Noise("gaussian", self.sigma),) if self.sigma else ()

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"sigma": LEVELS}


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(Defense):
    """g + e with e from the Laplace density exp(-|e| / scale) / (2 scale) on every entry (Bayes, Sec. 6)."""

    scale: float = 1e-2

    def __post_init__(self) -> None:
        checks.at_least("Noise", "a scale", self.scale, 0)

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        noisy = {}
        for name, g in gradient.items():
            u = torch.rand(g.shape, generator=rng, dtype=torch.float64) - 0.5
            e = -u.sign() * torch.log1p(-2 * u.abs().clamp_max(0.5 - 1e-12))
            noisy[name] = g + self.scale * e.to(g)
        return noisy

    def channel(self, moment: Moment) -> Facts:
        return (Noise("laplace", self.scale),) if self.scale else ()

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"scale": LEVELS}
