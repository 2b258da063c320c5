"""Pictures side by side in one file: a row a defense, a column a victim."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor

from dosimeter.store import picture

SIDE, LABEL, GAP = 64, 190, 4
MOST = 8
"""Pictures in a row."""


def write_grid(path: str | Path, rows: Sequence[tuple[str, Tensor]]) -> None:
    """A PNG of rows, each with a name and images (V, C, H, W) in [0, 1]; of many victims the first."""
    across = min(MOST, max(len(images) for _, images in rows))
    size = (LABEL + across * (SIDE + GAP), len(rows) * (SIDE + GAP) + GAP)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for at, (name, images) in enumerate(rows):
        top = GAP + at * (SIDE + GAP)
        pen.text((GAP, top + SIDE // 2 - 6), name[:34], fill="black")
        for column, image in enumerate(images[:across]):
            shown = picture(image).convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST)
            sheet.paste(shown, (LABEL + column * (SIDE + GAP), top))
    sheet.save(path, format="PNG", optimize=True)
