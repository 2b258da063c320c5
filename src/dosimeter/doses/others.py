"""What other clients' updates hide of one, as Gaussian noise of their covariance C beside noise D of all clients' own.

    J^T (D + a C)^-1 J = J^T D^-1 J - B^T (I + a G D^-1 G^T)^-1 a B,     C = G^T G,  B = G D^-1 J

with the m public updates around their mean, over sqrt(m - 1), as rows of G (see `aggregation`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

NONE = 1e-13
"""The size of a direction, beside the largest, below which it is rounding."""


class Bent(NamedTuple):
    """How a tensor counts: its weight, and what clipping makes of its slope, scale (I - g g^T / norm^2)."""

    weight: float
    scale: float
    along: Tensor  # (N,) J^T g / norm of all that is clipped together
    norm: float


class Others(NamedTuple):
    """What other clients' updates hide of one victim's."""

    factor: float  # (n - 1) / (m - 1)
    grams: Mapping[str, Tensor]  # (m, m)
    pulls: Mapping[str, Tensor]  # (N, m) J^T g of every public update
    dots: Mapping[str, Tensor]  # (m,) own gradient times public ones

    def hides(self, bent: Mapping[str, Bent]) -> Tensor:
        """(N, N) J^T D^-1 J - J^T (D + (n - 1) C)^-1 J on these tensors."""
        inner = torch.zeros_like(next(iter(self.grams.values())))
        side: Tensor | None = None
        for name, (weight, scale, along, norm) in bent.items():
            inner = inner + self.factor * weight * self.grams[name]
            own = self.pulls[name]
            own = own if scale >= 1 else scale * (own - torch.outer(along, self.dots[name]) / norm)
            side = weight * own if side is None else side + weight * own
        assert side is not None
        sizes, vectors = torch.linalg.eigh(inner)
        real = sizes > NONE * sizes[-1]  # updates around their mean have one direction less than there are of them
        found = (side @ vectors[:, real]) / (1 + sizes[real]).sqrt()
        hidden: Tensor = self.factor * (found @ found.T)
        return hidden
