"""Likelihoods that do to the simulated update what a defense did to the observed one, before they compare the two.

GGL (Li et al. 2022, Sec. 3) takes the defense's setting from the observation: the norm it was clipped to, the share of
entries that were pruned, the features that Soteria hid. At the true image all of them give back the observed update,
whether or not a defense ran, so none of them moves the solution; they take in more images than a plain match does.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.attacks.search.likelihoods import Entrywise, Likelihood, SquaredL2
from dosimeter.engine import Products
from dosimeter.errors import SettingError, unknown


@dataclass(frozen=True, kw_only=True)
class Clipped(Likelihood):
    """`likelihood` after the simulated update was clipped to the observed one's norm: c g with c = min(1, |g'| / |g|).

    |c g - g'|^2 = c |g - g'|^2 + (1 - c) (|g'|^2 - c |g|^2), which does not cancel where c nears 1.
    """

    likelihood: Likelihood = SquaredL2()
    exact = True

    @property
    def informed(self) -> bool:
        return self.likelihood.informed

    def loss(self, products: Products) -> Tensor:
        cross, simulated, observed, difference = products
        ratio = observed.sum(1, keepdim=True) / simulated.sum(1, keepdim=True).clamp_min(1e-24)
        c = ratio.clamp(1e-24, 1).sqrt()
        apart = (c * difference + (1 - c) * (observed - c * simulated)).clamp_min(0)
        return self.likelihood.loss(Products(c * cross, c.square() * simulated, observed, apart))


@dataclass(frozen=True, kw_only=True)
class Zeroed(Entrywise):
    """|T(g) - g'|^2, where T sets entries of the simulated update to 0 because entries of the observed one are.

    "rate" drops the smallest entries of each tensor, as many as are 0 in the observation: gradient pruning. "places"
    drops the very entries that are 0 there: Soteria's columns, or a mask that was drawn.

    Deviations: GGL's program takes one share of zeros for the whole update, and Soteria's mask from the first row of
    the last weight alone; here each tensor has its own.
    """

    by: Literal["rate", "places"] = "rate"
    sigma: float = 0.5**0.5
    """Deviation of the noise on what is left; by default the loss is the plain squared distance."""
    noise: Literal["gaussian", "laplace"] = "gaussian"
    """Laplace noise has the width sigma, and the loss is |T(g) - g'| / sigma."""

    def __post_init__(self) -> None:
        if self.noise not in ("gaussian", "laplace"):
            raise SettingError(unknown("noise", self.noise, ("gaussian", "laplace")))
        if self.by not in ("rate", "places"):
            raise SettingError(unknown("way to drop entries", self.by, ("rate", "places")))
        checks.positive("A density", "a sigma", self.sigma)

    @property
    def informed(self) -> bool:
        return self.sigma != Zeroed.sigma or self.noise == "laplace"

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        gone = observed == 0
        kept = ~gone if self.by == "places" else _largest(simulated.detach().abs(), gone.sum(1))
        apart = torch.where(kept, simulated, 0) - observed
        if self.noise == "laplace":
            return apart.abs().sum(1) / self.sigma
        return apart.square().sum(1) / (2 * self.sigma**2)


def _largest(sizes: Tensor, dropped: Tensor) -> Tensor:
    """Which entries (n, E) stay when so many (n,) of the smallest are dropped, those of equal size with them."""
    last = sizes.sort(1).values.gather(1, (dropped - 1).clamp_min(0)[:, None])
    return (sizes > last) | (dropped == 0)[:, None]
