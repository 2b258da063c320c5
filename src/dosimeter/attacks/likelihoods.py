"""How well a simulated update explains the observed one.

A likelihood gives a loss, -log p(g | x, y) up to constants: smallest where simulated equals observed.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dosimeter.engine import Products


class Likelihood(Protocol):
    """Products (N, P) of the matched tensors -> loss (N,). Tensors left out of the match have products of 0."""

    def loss(self, products: Products) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """1 - <g, g'> / (|g| |g'|) over all tensors as one vector (Inverting Gradients, Eq. 4)."""

    def loss(self, products: Products) -> Tensor:
        # A gradient of 0 has no direction; the floor makes its loss 1 and keeps the slope finite.
        simulated, observed = (norm.sum(1).clamp_min(1e-24).sqrt() for norm in (products.simulated, products.observed))
        return 1 - products.cross.sum(1) / simulated / observed


@dataclass(frozen=True, kw_only=True)
class SquaredL2:
    """|g - g'|^2 over all tensors (DLG; Inverting Gradients, Eq. 3)."""

    def loss(self, products: Products) -> Tensor:
        return products.difference.sum(1)


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """0 for every image: an attacker who never saw the update. The no-gradient baseline."""

    def loss(self, products: Products) -> Tensor:
        return torch.zeros_like(products.cross[:, 0])
