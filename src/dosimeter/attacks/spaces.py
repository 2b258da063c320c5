"""Where a search looks for images: from flat unknowns to normalised images.

`Pixels` are the images themselves. Generators' spaces are in `generators`: their unknowns are a latent or weights.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dosimeter.attacks.starts import Start
from dosimeter.types import Target


class Field(Protocol):
    """A space made for one task; `size` unknowns a candidate."""

    size: int

    def draw(self, start: Start, rng: torch.Generator) -> Tensor:
        """One candidate's first unknowns (size,)."""
        ...

    def images(self, unknowns: Tensor) -> Tensor:
        """(n, size) -> normalised images (n, B, C, H, W)."""
        ...

    def logits(self, unknowns: Tensor) -> Tensor | None:
        """(n, B, classes) where the space makes labels too."""
        ...

    def loss(self, unknowns: Tensor) -> Tensor | float:
        """(n,): -log p of the unknowns themselves, where the space has a prior of its own."""
        ...

    def boxed(self, unknowns: Tensor) -> Tensor:
        """Unknowns whose images are in [0, 1]."""
        ...


class Space(Protocol):
    def check(self, target: Target) -> None:
        """Refuse a task that this space has no images for."""
        ...

    def footprint(self, target: Target, batch: int, classes: int) -> int:
        """Numbers that a candidate takes beside its simulated step."""
        ...

    def field(self, target: Target, batch: int, classes: int) -> Field:
        """The space for updates of `batch` images; `classes` of the labels that are searched, 0 where none are."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """The images themselves, in normalised units."""

    def check(self, target: Target) -> None:
        pass

    def footprint(self, target: Target, batch: int, classes: int) -> int:
        return 0  # few beside what the model makes of them

    def field(self, target: Target, batch: int, classes: int) -> "PixelField":
        return PixelField(target, batch)


class PixelField:
    """Images (B, C, H, W), flat."""

    def __init__(self, target: Target, batch: int) -> None:
        self._shape = (batch, *target.shape)
        self._dtype = target.mean.dtype
        box = ((edge - target.mean) / target.std for edge in (0, 1))
        self._low, self._high = (edge.expand(self._shape).flatten() for edge in box)
        self.size = len(self._low)

    def draw(self, start: Start, rng: torch.Generator) -> Tensor:
        return start.draw(self._shape, rng, self._dtype).flatten()

    def images(self, unknowns: Tensor) -> Tensor:
        return unknowns.reshape(-1, *self._shape)

    def logits(self, unknowns: Tensor) -> None:
        return None

    def loss(self, unknowns: Tensor) -> float:
        return 0.0

    def boxed(self, unknowns: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(unknowns, self._low), self._high)
