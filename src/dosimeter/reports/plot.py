"""The parts of a figure in SVG: frame, ticks, axes and lines.

Colours are classes that the page's style sheet fills, so that figures follow its light and dark schemes.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dosimeter.reports.markup import Html, join, tag

WIDTH, HEIGHT = 540, 290

Ticks = list[tuple[float, str]]
"""(place, text) of each."""


class Frame(NamedTuple):
    """The rectangle inside the axes, in the units of the view box; places in it are shares of its sides."""

    left: float = 82
    top: float = 16
    right: float = WIDTH - 16
    bottom: float = HEIGHT - 48

    def x(self, share: float) -> float:
        return self.left + share * (self.right - self.left)

    def y(self, share: float) -> float:
        """0 is the bottom."""
        return self.bottom - share * (self.bottom - self.top)


def figure(title: str, *parts: Html) -> Html:
    """A drawing that a screen reader presents by its title."""
    return tag("svg", tag("title", title), *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)


def axes(frame: Frame, left: Ticks, below: Ticks, *, x: str, y: str) -> Html:
    """Grid lines at the ticks of the left, ticks below, and the names of both axes."""
    parts = []
    for place, text in left:
        parts.append(straight((frame.left, place), (frame.right, place), "grid"))
        parts.append(label(frame.left - 8, place + 4, text, "tick", "end"))
    parts.append(straight((frame.left, frame.bottom), (frame.right, frame.bottom), "axis"))
    for place, text in below:
        parts.append(straight((place, frame.bottom), (place, frame.bottom + 5), "axis"))
        parts.append(label(place, frame.bottom + 20, text, "tick", "middle"))
    parts.append(label((frame.left + frame.right) / 2, HEIGHT - 6, x, "name", "middle"))
    turned = f"translate(13 {(frame.top + frame.bottom) / 2:.0f}) rotate(-90)"
    parts.append(tag("text", y, transform=turned, text_anchor="middle", class_="name"))
    return tag("g", *parts)


def line(xs: Sequence[float], ys: Sequence[float], class_: str) -> Html:
    """A line through the places that are finite, interrupted by those that are not; a lone point is a dot."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if math.isfinite(y):
            pieces[-1].append((x, y))
        else:
            pieces.append([])
    found = []
    for piece in pieces:
        if len(piece) == 1:
            found.append(tag("circle", cx=at(piece[0][0]), cy=at(piece[0][1]), r=2.5, class_=f"dot {class_}"))
        elif piece:
            found.append(tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in piece), class_=class_))
    return join(found)


def straight(start: tuple[float, float], end: tuple[float, float], class_: str) -> Html:
    return tag("line", x1=at(start[0]), y1=at(start[1]), x2=at(end[0]), y2=at(end[1]), class_=class_)


def label(x: float, y: float, text: str, class_: str, anchor: str) -> Html:
    return tag("text", text, x=at(x), y=at(y), class_=class_, text_anchor=anchor)


def at(value: float) -> str:
    """A coordinate, to a tenth of a unit."""
    return f"{value:.1f}"


def short(value: float) -> str:
    """The text of a tick: 0.05, 20, 1e-4."""
    if 1e-3 <= value < 1e5:
        return f"{value:.4g}"
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def log_axis(low: float, high: float) -> tuple[float, float, list[float]]:
    """The ends of a logarithmic axis around positive values, and its ticks, between 2 and 10 of them."""
    if high < 1.001 * low:
        low, high = low / 2, 2 * high
    if high < 3 * low:  # less than half a decade: the ticks of a straight axis
        step = nice((high - low) / 4)
        ticks = [step * k for k in range(max(1, math.floor(low / step)), math.ceil(high / step) + 1)]
        return min(ticks[0], low), max(ticks[-1], high), ticks
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = -(-len(decades) // 8)
    digits = (1, 2, 5) if len(decades) <= 3 else (1,)
    candidates = [float(f"{digit}e{k}") for k in decades[::every] for digit in digits]
    bottom = max((tick for tick in candidates if tick <= low), default=low)
    top = min((tick for tick in candidates if tick >= high), default=high)
    return bottom, top, [tick for tick in candidates if bottom <= tick <= top]


def logarithmic(values: Sequence[float], place: Callable[[float], float]) -> tuple[Callable[[float], float], Ticks]:
    """Where positive values lie on a logarithmic axis around them, and its ticks; `place` is that of a share of it."""
    low, high, ticks = log_axis(min(values), max(values))

    def at(value: float) -> float:
        return place(math.log(max(value, low) / low) / math.log(high / low))

    return at, [(at(tick), short(tick)) for tick in ticks]


def whole_ticks(high: int, *, low: int = 0, most: int = 7) -> list[int]:
    """Whole numbers from low to high that are multiples of 1, 2 or 5 times a power of ten, about `most` of them."""
    step = max(1, round(nice(max(1, high - low) / most)))
    return list(range(-(-low // step) * step, high + 1, step))


def nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten that is not below a positive value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in (1, 2, 5, 10, 20) if digit * power >= value * (1 - 1e-9))
