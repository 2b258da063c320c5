"""What a person sees of a page in a browser."""

from io import BytesIO
from typing import Any

from PIL import Image, ImageStat

BLANK = 50
"""Colours that even an empty page has, by the edges of its letters."""

WAIT = 120_000
"""Milliseconds that a busy machine may take for one."""


def check(page: Any, width: int, theme: str) -> None:
    """A screenshot is as wide as the window, bright or dark as the theme is, and not blank."""
    shot = Image.open(BytesIO(page.screenshot(timeout=WAIT))).convert("RGB")
    assert shot.width == width
    assert len(shot.getcolors(shot.width * shot.height) or ()) > BLANK
    brightness = ImageStat.Stat(shot.convert("L")).median[0]
    assert brightness < 64 if theme == "dark" else brightness > 192, brightness
