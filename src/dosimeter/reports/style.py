"""How a page looks and what its one script does: no font, image, rule or script comes from elsewhere.

The palette is told apart by people who see no red, green or blue: blue, red and amber of different lightness, and
where an area means something it has a pattern or a word as well.
"""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

PALETTE = {
    "paper": ("#f6f7f8", "#11151a"),
    "card": ("#ffffff", "#1a2027"),
    "well": ("#edf0f3", "#141920"),
    "ink": ("#19202a", "#e6eaee"),
    "soft": ("#56606d", "#a2adb9"),
    "rule": ("#dadfe5", "#2f3842"),
    "accent": ("#1b6498", "#74b8e6"),  # also what is hidden
    "pale": ("#a8cbe2", "#2f5f80"),
    "hot": ("#9f1d1f", "#f2805a"),  # what is read
    "warm": ("#8a6500", "#eec25a"),  # what cannot be told
    "blind": ("#a7b0ba", "#5d6875"),  # what needs no update
    "s2": ("#00795a", "#3fc39a"),
    "s4": ("#87478a", "#d197d3"),
    "s5": ("#3a424d", "#c6cdd6"),
}
"""Colours by name, on a light and on a dark page."""


@cache
def css() -> str:
    """The style sheet, with both palettes."""
    pairs = "".join(f" --{name}: light-dark({light}, {dark});" for name, (light, dark) in PALETTE.items())
    return f":root {{{pairs} }}\n{_text('page.css')}"


@cache
def svg_css() -> str:
    """The rules for a figure that is a file of its own, in the colours of the light page."""
    whole = _text("page.css")
    rules = whole[whole.index("/* figures */") : whole.index("/* end of figures */")]
    pairs = "".join(f" --{name}: {light};" for name, (light, _) in PALETTE.items())
    return f":root {{{pairs} }}\n{rules}svg {{ background: var(--card); font-family: system-ui, sans-serif; }}"


@cache
def script() -> str:
    return _text("page.js")


@cache
def policy() -> str:
    """Should anything slip through, the browser refuses to load or run it: the one script is known by its digest."""
    digest = b64encode(sha256(script().encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _text(name: str) -> str:
    return (files("dosimeter.reports") / name).read_text(encoding="utf-8")
