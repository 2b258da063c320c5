"""Our figures as PNG, for documents that show no SVG: lines, rectangles, circles and words, in the page's colours."""

import re
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image, ImageDraw, ImageFont

from dosimeter.reports.markup import Html
from dosimeter.reports.style import PALETTE

SCALE = 2
"""Pixels of a unit of the view box."""
INK = "#333333"
_NAMES = {
    "s0": "accent", "s1": "hot", "s2": "s2", "s3": "warm", "s4": "s4", "s5": "s5", "axis": "soft",
    "grid": "rule", "thin": "accent", "bold": "accent", "threshold": "ink", "with": "pale", "hit": "hot",
    "without": "blind", "blind": "blind",
}  # fmt: skip
"""What the page's style sheet gives each class, series first."""


def write_png(path: str | Path, drawing: Html) -> None:
    """Draw a figure of ours; whatever else an SVG may hold is left out."""
    root = ElementTree.fromstring(str(drawing))
    _, _, width, height = (float(each) for each in root.attrib["viewBox"].split())
    sheet = Image.new("RGB", (round(SCALE * width), round(SCALE * height)), "white")
    _draw(root, ImageDraw.Draw(sheet), sheet)
    sheet.save(path, format="PNG", optimize=True)


def _draw(element: ElementTree.Element, pen: ImageDraw.ImageDraw, sheet: Image.Image) -> None:
    for each in element:
        kind, given = each.tag.rpartition("}")[2], each.attrib
        number = {key: SCALE * float(value) for key, value in given.items() if _is_number(value)}
        colour = _colour(given.get("class", ""))
        if kind == "line":
            pen.line((number["x1"], number["y1"], number["x2"], number["y2"]), fill=colour, width=SCALE)
        elif kind == "polyline":
            points = [SCALE * float(v) for pair in given["points"].split() for v in pair.split(",")]
            pen.line(points, fill=colour, width=SCALE + 1)
        elif kind == "rect":
            left, top = number["x"], number["y"]
            fill = given.get("fill", colour)
            pen.rectangle((left, top, left + number["width"], top + number["height"]), fill=fill)
        elif kind == "circle":
            x, y, r = number["cx"], number["cy"], number["r"]
            pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        elif kind == "text":
            _write(each, pen, sheet, number)
        _draw(each, pen, sheet)


def _write(each: ElementTree.Element, pen: ImageDraw.ImageDraw, sheet: Image.Image, number: dict[str, float]) -> None:
    words, font = each.text or "", ImageFont.load_default(size=11 * SCALE)
    turned = re.match(r"translate\(([\d.]+) ([\d.]+)\) rotate\(-90\)", each.attrib.get("transform", ""))
    if turned:
        x, y = (SCALE * float(value) for value in turned.groups())
        left, top, right, bottom = font.getbbox(words)
        tile = Image.new("RGB", (round(right - left) + 4, round(bottom - top) + 6), "white")
        ImageDraw.Draw(tile).text((0, -top + 1), words, fill=INK, font=font)
        tile = tile.rotate(90, expand=True)
        sheet.paste(tile, (max(0, round(x - tile.width)), round(y - tile.height / 2)))
        return
    anchor = {"middle": "ms", "end": "rs"}.get(each.attrib.get("text-anchor", ""), "ls")
    pen.text((number["x"], number["y"]), words, fill=each.attrib.get("fill", INK), font=font, anchor=anchor)


def _is_number(value: str) -> bool:
    return re.fullmatch(r"-?[\d.]+", value) is not None


def _colour(classes: str) -> str:
    """That of a series, or else that of what it is."""
    return next((PALETTE[name][0] for word, name in _NAMES.items() if word in classes.split()), INK)
