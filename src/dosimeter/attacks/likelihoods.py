"""How well a simulated update explains the observed one.

A likelihood gives a loss, -log p(g | x, y) up to constants: smallest where simulated equals observed.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dosimeter.engine import Products


class Likelihood(Protocol):
    """Products (N, P) of the matched tensors -> loss (N,). Tensors left out of the match have products of 0."""

    exact: bool
    """Whether |simulated - observed|^2 must be right to the last digit, by comparing entries."""

    def loss(self, products: Products) -> Tensor: ...


@runtime_checkable
class Entrywise(Protocol):
    """A likelihood that needs every entry; it adds up over entries and tensors."""

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        """(n, entries) of one tensor twice -> (n,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """1 - <g, g'> / (|g| |g'|) over all tensors as one vector (Inverting Gradients, Eq. 4)."""

    exact = False

    def loss(self, products: Products) -> Tensor:
        # A gradient of 0 has no direction; the floor makes its loss 1 and keeps the slope finite.
        simulated, observed = (norm.sum(1).clamp_min(1e-24).sqrt() for norm in (products.simulated, products.observed))
        return 1 - products.cross.sum(1) / simulated / observed


@dataclass(frozen=True, kw_only=True)
class MeanCosine:
    """The mean over tensors of 1 - <g_l, g'_l> / (|g_l| |g'_l|): every layer counts alike."""

    exact = False

    def loss(self, products: Products) -> Tensor:
        simulated, observed = (norm.clamp_min(1e-24).sqrt() for norm in (products.simulated, products.observed))
        counted = (products.observed > 0).to(observed)
        apart = counted * (1 - products.cross / simulated / observed)
        return apart.sum(1) / counted.sum(1).clamp_min(1)


@dataclass(frozen=True, kw_only=True)
class L1:
    """sum |g - g'| over all entries: what Laplace noise on the gradient implies (Bayes, Sec. 4)."""

    def entry_loss(self, simulated: Tensor, observed: Tensor) -> Tensor:
        return (simulated - observed).abs().sum(1)


@dataclass(frozen=True, kw_only=True)
class SquaredL2:
    """|g - g'|^2 over all tensors (DLG; Inverting Gradients, Eq. 3)."""

    exact = True

    def loss(self, products: Products) -> Tensor:
        return products.difference.sum(1)


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """0 for every image: an attacker who never saw the update. The no-gradient baseline."""

    exact = False

    def loss(self, products: Products) -> Tensor:
        return torch.zeros_like(products.cross[:, 0])
