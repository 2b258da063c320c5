"""Images inside a page: PNG as data URIs, pixel by pixel."""

from base64 import b64encode
from io import BytesIO
from math import isqrt
from pathlib import Path

from PIL.Image import Resampling
from torch import Tensor

from dosimeter.reports.markup import Html, tag
from dosimeter.store import picture

SMALL, THUMBNAIL = 64, 128
"""The longest side of pictures that are never reduced, and of those that are, where there are few of them."""
BUDGET = 24_000_000
"""Bytes of pixels in a gallery; more would open slowly."""


def embed_file(path: Path, alt: str, *, side: int = 96) -> Html:
    """A PNG file as an <img> that carries its own pixels."""
    return tag("img", src=_source(path.read_bytes()), alt=alt, width=side, height=side)


def embed(image: Tensor, alt: str, *, side: int | None = None) -> Html:
    """An image (C, H, W) in [0, 1] as an <img> that carries its own pixels, reduced where it is longer than `side`."""
    shown = picture(image)
    if side is not None and max(shown.size) > side:
        shown.thumbnail((side, side), Resampling.BOX)
    file = BytesIO()
    shown.save(file, format="PNG", optimize=True)
    lazy = {"loading": "lazy", "decoding": "async"} if side else {}
    return tag("img", src=_source(file.getvalue()), alt=alt, width=shown.width, height=shown.height, **lazy)


def side_of(many: int, channels: int) -> int:
    """The longest side that so many pictures may have."""
    return max(SMALL, min(THUMBNAIL, isqrt(BUDGET // max(1, many * min(channels, 3)))))


def _source(png: bytes) -> str:
    return "data:image/png;base64," + b64encode(png).decode("ascii")
