"""Which tensors of the update are matched."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dosimeter.errors import SettingError


class Mask(Protocol):
    """Squared norms (V, P) of the observed tensors -> weights (V, P) of the match."""

    def weights(self, norms: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Everything:
    """Every tensor counts alike."""

    def weights(self, norms: Tensor) -> Tensor:
        return torch.ones_like(norms)


@dataclass(frozen=True, kw_only=True)
class Largest:
    """Only the N tensors with the largest observed norm (Inverting Gradients, Eq. 7, "top-N")."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 1:
            raise SettingError(f"Matching the largest tensors needs n of at least 1, got {self.n}.")

    def weights(self, norms: Tensor) -> Tensor:
        chosen = norms.topk(min(self.n, norms.shape[1]), dim=1).indices
        return torch.zeros_like(norms).scatter(1, chosen, 1.0)
