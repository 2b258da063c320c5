"""How well a simulated update explains the observed one.

A likelihood gives a loss, -log p(g | x, y) up to constants: smallest where simulated equals observed.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.engine import Products
from dosimeter.errors import SettingError, unknown


class Likelihood:
    """Products (N, P) of the matched tensors -> loss (N,). Tensors left out of the match have products of 0."""

    exact = False
    """Whether |simulated - observed|^2 must be right to the last digit, by comparing entries."""

    @property
    def informed(self) -> bool:
        """Whether it takes settings of the defense, which the threat model must grant."""
        return False

    def loss(self, products: Products) -> Tensor:
        raise NotImplementedError


class Entrywise(Likelihood):
    """A likelihood that needs every entry; it adds up over entries and tensors."""

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        """(n, entries) of one tensor twice -> (n,)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Cosine(Likelihood):
    """1 - <g, g'> / (|g| |g'|) over all tensors as one vector (Inverting Gradients, Eq. 4)."""

    def loss(self, products: Products) -> Tensor:
        # A gradient of 0 has no direction; the floor makes its loss 1 and keeps the slope finite.
        simulated, observed = (norm.sum(1).clamp_min(1e-24).sqrt() for norm in (products.simulated, products.observed))
        return 1 - products.cross.sum(1) / simulated / observed


@dataclass(frozen=True, kw_only=True)
class MeanCosine(Likelihood):
    """The mean over tensors of 1 - <g_l, g'_l> / (|g_l| |g'_l|): every layer counts alike."""

    def loss(self, products: Products) -> Tensor:
        simulated, observed = (norm.clamp_min(1e-24).sqrt() for norm in (products.simulated, products.observed))
        counted = (products.observed > 0).to(observed)
        apart = counted * (1 - products.cross / simulated / observed)
        return apart.sum(1) / counted.sum(1).clamp_min(1)


@dataclass(frozen=True, kw_only=True)
class MeanChord(Likelihood):
    """The mean over tensors of |g_l / |g_l| - g'_l / |g'_l||, which is the root of twice the cosine distance.

    Unlike the cosine distance it does not flatten out near the solution, so that a tensor that others dominate still
    pulls at the image; ours, for searches that must fit every tensor exactly.
    """

    def loss(self, products: Products) -> Tensor:
        simulated, observed = (norm.clamp_min(1e-24).sqrt() for norm in (products.simulated, products.observed))
        counted = (products.observed > 0).to(observed)
        apart = (2 - 2 * products.cross / simulated / observed).clamp_min(0)
        return (counted * (apart + 1e-6).sqrt()).sum(1) / counted.sum(1).clamp_min(1)


@dataclass(frozen=True, kw_only=True)
class L1(Entrywise):
    """sum |g - g'| over all entries: what Laplace noise on the gradient implies (Bayes, Sec. 6)."""

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        return (simulated - observed).abs().sum(1)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Likelihood):
    """|g - g'|^2 / (2 sigma^2): Gaussian noise of deviation `sigma` on every entry (Bayes, Sec. 4)."""

    sigma: float
    informed = True

    def __post_init__(self) -> None:
        checks.positive("A density", "a sigma", self.sigma)

    def loss(self, products: Products) -> Tensor:
        return products.difference.sum(1) / (2 * self.sigma**2)


@dataclass(frozen=True, kw_only=True)
class Laplace(Entrywise):
    """sum |g - g'| / scale: Laplace noise on every entry (Bayes, Sec. 6)."""

    scale: float
    informed = True

    def __post_init__(self) -> None:
        checks.positive("A density", "a scale", self.scale)

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        return (simulated - observed).abs().sum(1) / self.scale


@dataclass(frozen=True, kw_only=True)
class Pruned(Entrywise):
    """Entries that are set to 0 with probability `rate`, then noise on all: a mixture over the unknown mask.

    -sum log((1 - rate) p(g' - g) + rate p(g')) with Gaussian or Laplace noise p of width `scale` (Bayes, Sec. 6, prune
    and noise). Where the threat model grants the mask, as the paper's program does, there is no mixture.
    """

    rate: float
    scale: float
    noise: Literal["gaussian", "laplace"] = "gaussian"
    informed = True

    def __post_init__(self) -> None:
        checks.positive("A density", "a scale", self.scale)
        checks.share("Pruning, which keeps some entries and drops others,", "a rate", self.rate, zero=False, one=False)
        if self.noise not in ("gaussian", "laplace"):
            raise SettingError(unknown("noise", self.noise, ("gaussian", "laplace")))

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        kept = math.log(1 - self.rate) + self._log(observed - simulated)
        gone = math.log(self.rate) + self._log(observed)
        return -torch.logaddexp(kept, gone).sum(1)

    def _log(self, apart: Tensor) -> Tensor:
        return -(apart / self.scale).square() / 2 if self.noise == "gaussian" else -(apart / self.scale).abs()


@dataclass(frozen=True, kw_only=True)
class Survived(Entrywise):
    """For gradients pruned by size: match the entries that survived, and let those that did not be small.

    An entry that is 0 was at most as large as the smallest one that is not, in its tensor; only what is beyond that
    counts, squared. The loss is divided by the tensor's observed squared norm, so that tensors count alike.
    """

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        kept = observed != 0
        bound = torch.where(kept, observed.abs(), torch.inf).amin(1, keepdim=True)
        beyond = torch.where(kept, simulated - observed, (simulated.abs() - bound).clamp_min(0))
        return beyond.square().sum(1) / observed.square().sum(1).clamp_min(1e-24)


@dataclass(frozen=True, kw_only=True)
class Interval(Entrywise):
    """For gradients rounded to whole steps: every entry was within half a step of what is seen.

    `step` is absolute, or a share of the tensor's largest entry, which the update tells: 1 / (2^(bits - 1) - 1)
    for whole numbers of so many bits. Only what is beyond half of it counts, squared, on the scale of the tensor's
    observed squared norm.
    """

    step: float = 1 / 127
    relative: bool = True
    informed = True

    def __post_init__(self) -> None:
        checks.positive("An interval", "a step", self.step)

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        step = self.step * observed.abs().amax(1, keepdim=True) if self.relative else self.step
        beyond: Tensor = ((simulated - observed).abs() - step / 2).clamp_min(0)
        return beyond.square().sum(1) / observed.square().sum(1).clamp_min(1e-24)


@dataclass(frozen=True, kw_only=True)
class SquaredL2(Likelihood):
    """|g - g'|^2 over all tensors (DLG; Inverting Gradients, Eq. 3)."""

    exact = True

    def loss(self, products: Products) -> Tensor:
        return products.difference.sum(1)


@dataclass(frozen=True, kw_only=True)
class RelativeL2(Likelihood):
    """|g - g'|^2 / |g|^2 over all tensors: squared L2 on a scale that does not depend on the update's norm."""

    def loss(self, products: Products) -> Tensor:
        return products.difference.sum(1) / products.observed.sum(1).clamp_min(1e-24)


@dataclass(frozen=True, kw_only=True)
class L2AndSquare(Likelihood):
    """|g - g'|^2 + |g - g'| over all tensors: what is left of GRNN's distances in its program, where the second, which
    pulls harder near the solution, goes by the name of Wasserstein."""

    exact = True

    def loss(self, products: Products) -> Tensor:
        apart = products.difference.sum(1)
        return apart + apart.clamp_min(1e-24).sqrt()


@dataclass(frozen=True, kw_only=True)
class Nothing(Likelihood):
    """0 for every image: an attacker who never saw the update. The no-gradient baseline."""

    def loss(self, products: Products) -> Tensor:
        return torch.zeros_like(products.cross[:, 0])
