"""Images inside a page: PNG as data URIs."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path

from PIL.Image import Resampling
from torch import Tensor

from dosimeter.reports.markup import Html, tag
from dosimeter.store import picture

THUMBNAIL = 128
"""The longest side of a reduced picture; a gallery of large images would weigh hundreds of megabytes."""


def embed_file(path: Path, alt: str, *, side: int = 96) -> Html:
    """A PNG file as an <img> that carries its own pixels, enlarged without smoothing."""
    source = "data:image/png;base64," + b64encode(path.read_bytes()).decode("ascii")
    return tag("img", src=source, alt=alt, width=side, height=side, style="image-rendering: pixelated")


def embed(image: Tensor, alt: str, *, reduce: bool = False) -> Html:
    """An image (C, H, W) in [0, 1] as an <img> that carries its own pixels, unscaled unless it may be reduced."""
    shown = picture(image)
    if reduce and max(shown.size) > THUMBNAIL:
        shown.thumbnail((THUMBNAIL, THUMBNAIL), Resampling.BOX)
    file = BytesIO()
    shown.save(file, format="PNG", optimize=True)
    source = "data:image/png;base64," + b64encode(file.getvalue()).decode("ascii")
    return tag("img", src=source, alt=alt, width=shown.width, height=shown.height, decoding="async")
