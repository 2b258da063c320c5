"""What is done to the entries of a gradient: noise (PPP, Sec. 5.2; Bayes, Sec. 6), zeros, rounding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.channel import Facts, Mask, Noise, Rounding
from dosimeter.defenses.base import Defense
from dosimeter.types import Gradient, Moment

LEVELS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Of noise, from weak to strong."""
RATIOS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
"""Of entries that are pruned, from weak to strong."""


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


@dataclass(frozen=True, kw_only=True)
class Pruning(Defense):
    """Gradient compression: of every tensor the share `ratio` of entries that are smallest in size becomes 0.

    PPP, Sec. 5.2, and CVB, Sec. VI-C: ratio 0.9 is their GC90, 0.99 their GC99.
    """

    ratio: float = 0.9

    def __post_init__(self) -> None:
        checks.share("Pruning", "a ratio", self.ratio)

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        return {name: prune(g, self.ratio) for name, g in gradient.items()}

    def channel(self, moment: Moment) -> Facts:
        return (Mask(self.ratio, "size"),) if self.ratio else ()

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"ratio": RATIOS}


def prune(g: Tensor, ratio: float) -> Tensor:
    """The tensor without round(ratio * entries) of its smallest entries; of equal ones the first go."""
    gone = round(ratio * g.numel())
    if not gone:
        return g
    flat = g.flatten()
    order = flat.abs().argsort(stable=True)
    kept = torch.ones_like(flat, dtype=torch.bool)
    kept[order[:gone]] = False
    return torch.where(kept, flat, 0).reshape(g.shape)


@dataclass(frozen=True, kw_only=True)
class RandomPruning(Defense):
    """Every entry becomes 0 with probability `rate`, whatever its size (Bayes, Sec. 6).

    `random-prune:rate=0.5|noise:sigma=0.1` is the paper's pruning with Gaussian noise.
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        checks.share("Pruning", "a rate", self.rate)

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        return {
            name: torch.where(torch.rand(g.shape, generator=rng).to(g.device) < self.rate, 0, g)
            for name, g in gradient.items()
        }

    def channel(self, moment: Moment) -> Facts:
        return (Mask(self.rate, "random"),) if self.rate else ()

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"rate": (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)}


@dataclass(frozen=True, kw_only=True)
class Quantisation(Defense):
    """Every tensor as whole numbers of `bits` bits times one step, its largest entry over 2^(bits - 1) - 1."""

    bits: int = 8

    def __post_init__(self) -> None:
        checks.count("Quantisation", "bits", self.bits, 2, 16)

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        return {name: quantise(g, self.bits) for name, g in gradient.items()}

    def channel(self, moment: Moment) -> Facts:
        return (Rounding(1 / (2 ** (self.bits - 1) - 1), relative=True),)

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"bits": (16, 12, 10, 8, 6, 5, 4, 3, 2)}


def quantise(g: Tensor, bits: int) -> Tensor:
    step = g.abs().max() / (2 ** (bits - 1) - 1)
    return g if step == 0 else (g / step).round() * step
