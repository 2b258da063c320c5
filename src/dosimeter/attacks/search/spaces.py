"""Where a search looks for images: from flat unknowns to normalised images.

`Pixels` are the images themselves. Generators' spaces are in `generators`: their unknowns are a latent or weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dosimeter import rng
from dosimeter.attacks.search.starts import Start
from dosimeter.types import Target


class Field:
    """A space made for one task; `size` unknowns a candidate."""

    size: int

    def draw(self, start: Start, rng: torch.Generator) -> Tensor:
        """One candidate's first unknowns (size,)."""
        raise NotImplementedError

    def images(self, unknowns: Tensor) -> Tensor:
        """(n, size) -> normalised images (n, B, C, H, W)."""
        raise NotImplementedError

    def found(self, unknowns: Tensor) -> Tensor:
        """The images that are given back, where they are others than those whose update is simulated."""
        return self.images(unknowns)

    def logits(self, unknowns: Tensor) -> Tensor | None:
        """(n, B, classes) where the space makes labels too."""
        return None

    def loss(self, unknowns: Tensor) -> Tensor | float:
        """(n,): -log p of the unknowns themselves, where the space has a prior of its own."""
        return 0.0

    def boxed(self, unknowns: Tensor) -> Tensor:
        """Unknowns whose images are in [0, 1], as those of a generator always are."""
        return unknowns


class Space:
    """The start of all spaces."""

    def check(self, target: Target) -> None:
        """Refuse a task that this space has no images for."""

    def footprint(self, target: Target, batch: int, classes: int) -> int:
        """Numbers that a candidate takes beside its simulated step."""
        return 0

    def nearest(self, target: Target, start: Start, images: Tensor) -> Tensor | None:
        """The images of this space that are nearest to given ones (V, B, C, H, W); None where all are in it.

        An auditor asks for them who knows the images; no attack does.
        """
        return None

    def field(self, target: Target, batch: int, classes: int) -> Field:
        """The space for updates of `batch` images; `classes` of the labels that are searched, 0 where none are."""
        raise NotImplementedError


def fitted(field: Field, target: Target, start: Start, images: Tensor, *, steps: int, lr: float) -> Tensor:
    """Images of the field fitted to given ones (V, B, C, H, W) by Adam, in the mean square of pixels."""
    first = field.draw(start, rng.stream(0, "nearest")).to(target.mean)
    unknowns = first.repeat(len(images), 1).requires_grad_()
    wanted, by = (images.to(target.mean) - target.mean) / target.std, torch.optim.Adam([unknowns], lr=lr)
    for _ in range(steps):
        loss = (field.images(unknowns) - wanted).square().flatten(1).mean(1).sum()
        (unknowns.grad,) = torch.autograd.grad(loss, unknowns)
        by.step()
    with torch.no_grad():
        return field.images(unknowns) * target.std + target.mean


@dataclass(frozen=True, kw_only=True)
class Pixels(Space):
    """The images themselves, in normalised units."""

    def field(self, target: Target, batch: int, classes: int) -> "PixelField":
        return PixelField(target, batch)


class PixelField(Field):
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

    def boxed(self, unknowns: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(unknowns, self._low), self._high)
