"""Operations on images that ATS is put together from: on pictures, as clients do them, and on tensors, differentiable.

A client works on 8-bit pictures; an attacker who knows what it did simulates the same without rounding. Clipping,
posterizing and equalizing have their true values and the slope of the identity (straight through), since their own is 0
almost everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from dosimeter.types import Shape

AUTOAUGMENT: tuple[tuple[str, int], ...] = (
    ("invert", 7), ("contrast", 6), ("rotate", 2), ("translate-x", 9), ("sharpness", 1),
    ("sharpness", 3), ("shear-y", 8), ("translate-y", 9), ("autocontrast", 8), ("equalize", 2),
    ("shear-y", 7), ("posterize", 7), ("color", 3), ("brightness", 7), ("sharpness", 9),
    ("brightness", 9), ("equalize", 5), ("equalize", 1), ("contrast", 7), ("sharpness", 5),
    ("color", 7), ("translate-x", 8), ("equalize", 7), ("autocontrast", 8), ("translate-y", 3),
    ("sharpness", 6), ("brightness", 6), ("color", 8), ("solarize", 2), ("invert", 3),
    ("equalize", 0), ("autocontrast", 0), ("equalize", 8), ("equalize", 4), ("color", 9),
    ("equalize", 6), ("autocontrast", 4), ("solarize", 8), ("brightness", 3), ("color", 0),
    ("solarize", 5), ("autocontrast", 3), ("translate-y", 9), ("translate-y", 9), ("autocontrast", 2),
    ("solarize", 3), ("equalize", 8), ("invert", 3), ("translate-y", 9), ("autocontrast", 1),
)  # fmt: skip
"""The 50 operations of AutoAugment's policy for CIFAR-10 (Cubuk et al. 2019, Table 7) in order, with magnitudes of 0
to 9; a policy names them by their places."""

_OTHERWISE = {
    6: 2, 7: 2, 8: 5, 10: 5, 11: 5, 13: 5, 20: 5, 21: 5, 28: 0, 29: 0, 34: 5, 35: 5, 37: 4, 40: 1, 41: 0, 42: 3, 43: 3,
    44: 1, 45: 1, 46: 5, 47: 0, 48: 3,
}  # fmt: skip
"""Places at which the list of ATS's program has another magnitude."""


class Variant(NamedTuple):
    """What a policy's places stand for."""

    operations: tuple[tuple[str, int], ...]
    enhances: float  # enhancers' factors range over 1 +- this
    fill: float  # what is moved in
    turns: tuple[int, ...]  # the directions of a rotation
    smooth: bool  # whether shearing interpolates
    crop: int  # pixels by which images are cropped at random before all else, and flipped

    def options(self, place: int, shape: Shape) -> tuple["Operation", ...]:
        """What may be done at a place, one operation for every direction it may be drawn in."""
        name, magnitude = self.operations[place]
        share = magnitude / 9
        signs = self.turns if name == "rotate" else (1, -1) if name in _DIRECTED else (1,)
        return tuple(self._made(name, share, sign * share, shape) for sign in signs)

    def _made(self, name: str, share: float, moved: float, shape: Shape) -> "Operation":
        _, down, across = shape
        shift = 150 / 331 * moved
        affine = {
            "shear-y": (1, 0, 0, 0.3 * moved, 1, 0),
            "translate-x": (1, 0, shift * across, 0, 1, 0),
            "translate-y": (1, 0, 0, 0, 1, shift * down),
        }
        if name in affine:
            return Operation(name, affine[name], self.fill, self.smooth and name == "shear-y")
        if name in _ENHANCERS:
            return Operation(name, (1 + self.enhances * moved,))
        amounts = {"rotate": 30 * moved, "posterize": 8 - round(4 * share), "solarize": round(256 * (1 - share))}
        return Operation(name, (amounts[name],) if name in amounts else (), 128 / 255)

    def before(self) -> tuple[tuple["Operation", ...], ...]:
        """What comes before a policy: the moves of a crop, and the mirror."""
        span = range(-self.crop, self.crop + 1)
        crops = sorted(((dy, dx) for dy in span for dx in span), key=lambda move: (abs(move[0]) + abs(move[1]), move))
        moves = tuple(Operation("crop", (1, 0, dx, 0, 1, dy)) for dy, dx in crops)
        return (moves, (Operation("keep"), Operation("flip"))) if self.crop else ()


@dataclass(frozen=True)
class Operation:
    """One operation with all that was drawn for it."""

    name: str
    amount: tuple[float, ...] = ()
    fill: float = 0.0
    smooth: bool = False

    def picture(self, picture: Image.Image) -> Image.Image:
        """As a client does it (Cubuk et al. 2019, Table 6)."""
        level = round(255 * self.fill)
        fill = level if picture.mode == "L" else (level, level, level)
        if self.name in _ENHANCERS:
            return _ENHANCERS[self.name](picture).enhance(self.amount[0])
        if len(self.amount) == 6:
            way = Image.Resampling.BICUBIC if self.smooth else Image.Resampling.NEAREST
            return picture.transform(picture.size, Image.Transform.AFFINE, self.amount, way, fillcolor=fill)
        plain: dict[str, Callable[[Image.Image], Image.Image]] = {
            "keep": lambda p: p,
            "flip": ImageOps.mirror,
            "rotate": lambda p: p.rotate(self.amount[0], fillcolor=fill),
            "posterize": lambda p: ImageOps.posterize(p, int(self.amount[0])),
            "solarize": lambda p: ImageOps.solarize(p, int(self.amount[0])),
            "autocontrast": ImageOps.autocontrast,
            "equalize": ImageOps.equalize,
            "invert": ImageOps.invert,
        }
        return plain[self.name](picture)

    def __call__(self, images: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] -> the same, differentiable."""
        if self.name in _ENHANCERS:
            return _clipped(_lerp(_duller(self.name, images), images, self.amount[0]))
        if len(self.amount) == 6 or self.name == "rotate":
            return self._moved(images)
        plain: dict[str, Callable[[Tensor], Tensor]] = {
            "keep": lambda x: x,
            "flip": lambda x: x.flip(-1),
            "posterize": self._posterized,
            "solarize": lambda x: torch.where(x < self.amount[0] / 255, x, 1 - x),
            "autocontrast": _stretched,
            "equalize": _equalized,
            "invert": lambda x: 1 - x,
        }
        return plain[self.name](images)

    def _posterized(self, images: Tensor) -> Tensor:
        step = 2 ** (8 - self.amount[0])
        return _through(images, (images * 255 / step + 1e-4).floor() * step / 255)

    def _moved(self, images: Tensor) -> Tensor:
        """By an affine map of places, to the nearest pixel or between the four around it."""
        *_, down, across = images.shape
        y, x = torch.meshgrid(torch.arange(down) + 0.5, torch.arange(across) + 0.5, indexing="ij")
        a, b, c, d, e, f = self.amount if len(self.amount) == 6 else _turn(self.amount[0], across, down)
        u, v = a * x + b * y + c, d * x + e * y + f
        inside = ((u >= 0) & (u < across) & (v >= 0) & (v < down)).to(images.device)
        flat = images.flatten(-2)

        def at(column: Tensor, row: Tensor) -> Tensor:
            where = row.clamp(0, down - 1) * across + column.clamp(0, across - 1)
            return flat[..., where.long().flatten().to(images.device)].view_as(images)

        if self.smooth:
            left, top = (u - 0.5).floor(), (v - 0.5).floor()
            p, q = (u - 0.5 - left).to(images), (v - 0.5 - top).to(images)
            upper = _lerp(at(left, top), at(left + 1, top), p)
            found = _lerp(upper, _lerp(at(left, top + 1), at(left + 1, top + 1), p), q)
        else:
            found = at(u.floor(), v.floor())
        return torch.where(inside, found, self.fill)


def _turn(degrees: float, across: int, down: int) -> tuple[float, ...]:
    """The affine map of a rotation about the middle."""
    angle = torch.deg2rad(torch.tensor(-degrees, dtype=torch.float64))
    cos, sin, x, y = float(angle.cos()), float(angle.sin()), across / 2, down / 2
    return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y


def _lerp(a: Tensor, b: Tensor, share: float | Tensor) -> Tensor:
    return a + share * (b - a)


def _through(images: Tensor, values: Tensor) -> Tensor:
    """Values with the slope of the identity."""
    return images + (values - images).detach()


def _clipped(images: Tensor) -> Tensor:
    return _through(images, images.clamp(0, 1))


def _grey(images: Tensor) -> Tensor:
    """(n, 1, H, W) luminance (ITU-R 601)."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    weights = torch.tensor([0.299, 0.587, 0.114]).to(images).view(3, 1, 1)
    return (images * weights).sum(1, keepdim=True)


def _duller(name: str, images: Tensor) -> Tensor:
    """What an enhancer takes images away from: black, their mean, their grey, or a blur that spares the edge."""
    if name == "brightness":
        return torch.zeros_like(images)
    if name == "contrast":
        return _grey(images).mean((2, 3), keepdim=True).expand_as(images)
    if name == "color":
        return _grey(images).expand_as(images) if images.shape[1] == 3 else images
    channels = images.shape[1]
    kernel = torch.ones(channels, 1, 3, 3).to(images)
    kernel[:, :, 1, 1] = 5
    inner = F.conv2d(images, kernel / 13, groups=channels)
    edge = torch.zeros_like(images[:1, :1])
    edge[..., 1:-1, 1:-1] = 1
    return torch.where(edge > 0, F.pad(inner, (1, 1, 1, 1)), images)


def _stretched(images: Tensor) -> Tensor:
    low, high = images.detach().amin((2, 3), keepdim=True), images.detach().amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp_min(1e-6), images)


def _equalized(images: Tensor) -> Tensor:
    levels = (images.detach().clamp(0, 1) * 255).round().long().flatten(2)  # (n, C, H * W)
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255
    below = counts.cumsum(2) - counts
    table = ((step // 2 + below) // step.clamp_min(1)).clamp(0, 255)
    found = torch.where(step > 0, table.gather(2, levels), levels)
    return _through(images, found.view_as(images).to(images) / 255)


_ENHANCERS: dict[str, Callable[[Image.Image], ImageEnhance._Enhance]] = {
    "color": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "brightness": ImageEnhance.Brightness,
    "sharpness": ImageEnhance.Sharpness,
}
_DIRECTED = {*_ENHANCERS, "shear-y", "translate-x", "translate-y"}

VARIANTS = {
    "autoaugment": Variant(AUTOAUGMENT, 0.9, 128 / 255, (1, -1), smooth=False, crop=0),
    "released": Variant(
        tuple((name, _OTHERWISE.get(at, size)) for at, (name, size) in enumerate(AUTOAUGMENT)),
        0.5,
        0.0,
        (1,),
        smooth=True,
        crop=4,
    ),
}
"""AutoAugment's own magnitudes, or those of ATS's program."""
