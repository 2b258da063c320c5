"""What a reader knows of images before it sees an update: a mean and a covariance, or only the scale of pixels."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.errors import SettingError

STD = 0.25
"""Deviation of a pixel by which a direction counts as determined, and of the white prior."""
SHRUNK = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)
"""Weights of the even covariance that are tried."""
HELD = 10
"""Every so many-th image is held out to choose the weight."""


@dataclass(frozen=True, eq=False)
class Known:
    """A prior on images of n numbers, whose covariance is F F^T."""

    name: str
    mean: Tensor  # (n,)
    factor: Tensor  # F (n, n), lower triangular, or its diagonal (n,)

    @cached_property
    def variance(self) -> Tensor:
        """(n,) of every number."""
        return self.factor.square() if self.factor.ndim == 1 else self.factor.square().sum(1)

    @cached_property
    def precision(self) -> Tensor:
        """(n, n) the inverse of the covariance."""
        if self.factor.ndim == 1:
            return torch.diag(1 / self.factor.square())
        return torch.cholesky_inverse(self.factor)

    @property
    def log_precision(self) -> float:
        """Its log-determinant."""
        diagonal = self.factor if self.factor.ndim == 1 else self.factor.diagonal()
        return -2 * float(diagonal.log().sum())

    def spread(self, white: Tensor) -> Tensor:
        """F v of rows v (K, n)."""
        return white * self.factor if self.factor.ndim == 1 else white @ self.factor.T

    def gather(self, rows: Tensor) -> Tensor:
        """F^T v of rows v (K, n)."""
        return rows * self.factor if self.factor.ndim == 1 else rows @ self.factor


@dataclass(frozen=True, kw_only=True)
class White:
    """Every pixel on its own: mean 1/2, one deviation."""

    std: float = STD
    name: str = "white"

    def __post_init__(self) -> None:
        checks.positive("A white prior", "a deviation", self.std)

    def known(self, size: int) -> Known:
        mean = torch.full((size,), 0.5, dtype=torch.float64)
        return Known(self.name, mean, torch.full_like(mean, self.std))


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Mean and covariance of public images (m, C, H, W), shrunk towards an even covariance of the same trace.

        (1 - a) S + a tr(S) / n I

    The weight a is the one under which images that were held out are likeliest.
    """

    images: Tensor
    name: str = "images"

    def known(self, size: int) -> Known:
        rows = self.images.flatten(1).double()
        if rows.shape[1] != size or len(rows) < 2 * HELD:
            raise SettingError(
                f"A prior of images needs at least {2 * HELD} public images of {size} numbers, got {len(rows)} of "
                f"{rows.shape[1]}; give more, or use the white prior."
            )
        held = torch.arange(len(rows)) % HELD == 0
        mean = rows[~held].mean(0)
        centred = (rows[~held] - mean).float()  # whose products need no more than single precision
        plain = (centred.T @ centred).double() / (len(centred) - 1)
        weight = _likeliest(plain, rows[held][:1000] - mean)
        return Known(self.name, mean, torch.linalg.cholesky(_shrunk(plain, weight)))


Prior = White | Images
WHITE = White()


def _shrunk(plain: Tensor, weight: float) -> Tensor:
    even = max(float(plain.diagonal().mean()), 1e-12)
    return (1 - weight) * plain + weight * even * torch.eye(len(plain), dtype=plain.dtype)


def _likeliest(plain: Tensor, held: Tensor) -> float:
    """The weight under which held-out rows (m, n) are likeliest, along a curve that has one top."""
    best, chosen = -math.inf, SHRUNK[-1]
    for weight in SHRUNK:
        factor, wrong = torch.linalg.cholesky_ex(_shrunk(plain, weight))
        if int(wrong):
            continue
        scaled = torch.linalg.solve_triangular(factor, held.T, upper=False)
        likely = -float(scaled.square().sum(0).mean()) / 2 - float(factor.diagonal().log().sum())
        if likely < best:
            break
        best, chosen = likely, weight
    return chosen
