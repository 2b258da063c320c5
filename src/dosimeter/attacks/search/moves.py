"""What is done to candidates after every step of the optimiser, in the order in which a search lists it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter import checks
from dosimeter.attacks.search import spaces
from dosimeter.attacks.search.objective import Unknowns
from dosimeter.errors import SettingError
from dosimeter.types import Target


class Moved(NamedTuple):
    """What a move may look at beside the unknowns (n, D) themselves."""

    step: int  # from 0
    scale: Tensor  # (n,) the step size's factor
    streams: Sequence[torch.Generator]  # (n,) of each candidate's own draws
    unknowns: Unknowns  # what the rows hold


class Move:
    """The start of all moves: nothing is done."""

    def check(self, space: spaces.Space, target: Target | None = None) -> None:
        """Refuse a space, or a task in it, where this means nothing."""

    def __call__(self, x: Tensor, at: Moved) -> Tensor:
        """(n, D) -> (n, D)"""
        return x


@dataclass(frozen=True, kw_only=True)
class Box(Move):
    """Pixels are clamped to [0, 1] (Inverting Gradients, App. C)."""

    def __call__(self, x: Tensor, at: Moved) -> Tensor:
        return at.unknowns.boxed(x)


@dataclass(frozen=True, kw_only=True)
class Langevin(Move):
    """Normal noise of this size, times the step size's factor, on all unknowns (Bayes, App. A.7)."""

    size: float

    def __post_init__(self) -> None:
        checks.at_least("Langevin noise", "a size", self.size, 0)

    def __call__(self, x: Tensor, at: Moved) -> Tensor:
        noise = torch.stack([torch.randn(x.shape[1], generator=stream) for stream in at.streams])
        return x + self.size * at.scale[:, None] * noise.to(x)


@dataclass(frozen=True, kw_only=True)
class Median(Move):
    """A 3x3 median filter over the images, every so many steps (Inverting Gradients, Sec. 3)."""

    every: int

    def __post_init__(self) -> None:
        checks.count("A median filter", "a number of steps between two uses", self.every)

    def check(self, space: spaces.Space, target: Target | None = None) -> None:
        if not isinstance(space, spaces.Pixels):
            raise SettingError("A median filter works on pixels, but this search has other unknowns; leave it out.")
        if target is not None and min(target.shape[1:]) < 2:
            raise SettingError(f"A median filter is for images, got vectors of shape {target.shape}; leave it out.")

    def __call__(self, x: Tensor, at: Moved) -> Tensor:
        if (at.step + 1) % self.every:
            return x
        return at.unknowns.with_images(x, median_filter(at.unknowns.normalised(x)))


@dataclass(frozen=True, kw_only=True)
class Coarse(Move):
    """Images of a quarter of the waves across and down for so many steps, of half of them for as many, then of all.

    The waves are those of the cosine transform, so that what is kept is a subspace and staying in it costs nothing.
    """

    steps: int

    def __post_init__(self) -> None:
        checks.count("Coarse to fine", "a number of steps", self.steps)

    def check(self, space: spaces.Space, target: Target | None = None) -> None:
        if not isinstance(space, spaces.Pixels):
            raise SettingError("Coarse to fine works on pixels, but this search has other unknowns; leave it out.")

    def __call__(self, x: Tensor, at: Moved) -> Tensor:
        if at.step >= 2 * self.steps:
            return x
        images = at.unknowns.normalised(x)
        return at.unknowns.with_images(x, low_waves(images, 4 if at.step < self.steps else 2))


def low_waves(images: Tensor, times: int) -> Tensor:
    """Images (..., H, W) of the lowest 1 / `times` of their waves across and down, and at least one."""
    down, across = (_keeping(size, max(1, size // times)).to(images) for size in images.shape[-2:])
    return down @ images @ across


@cache
def _keeping(size: int, waves: int) -> Tensor:
    """The symmetric (size, size) that keeps the first cosine waves and drops the others."""
    places = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    basis = F.normalize(torch.cos(torch.pi * torch.arange(waves, dtype=torch.float64)[:, None] * places))
    return basis.T @ basis


def median_filter(images: Tensor) -> Tensor:
    """Each pixel of (..., H, W) becomes the median of the 3x3 pixels around it, edges repeated."""
    *others, height, width = images.shape
    flat = F.pad(images.reshape(-1, 1, height, width), (1, 1, 1, 1), mode="replicate")
    windows = F.unfold(flat, 3)  # (n, 9, H * W)
    middle = windows.median(1).values
    return middle.reshape(*others, height, width)
