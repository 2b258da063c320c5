"""Figures over several results: lines over rounds, points of two scores, bars."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dosimeter import files
from dosimeter.reports import plot, style
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.plot import Frame

COLOURS = 6
"""Series that differ in colour; of more, colours come again."""

WITHOUT = "without the update"
"""The series of what an attack reaches by its prior alone."""

Point = tuple[float, float]
Ends = tuple[float, float, list[float]]
"""Of an axis: its lower and upper end, and its ticks."""


CROWDED = 40
"""Points of a line beyond which they are not marked."""


def lines(
    series: Mapping[str, Sequence[Point]], *, x: str, y: str, top: float | None = None, keys: bool = False
) -> Html:
    """A line for every series through its (x, y) points, which are marked unless they are more than `CROWDED`.

    Args:
        top: the upper end of the axis, by default a round number above all values.
        keys: whether to say in the figure which colour is which series.
    """
    points = [point for found in series.values() for point in found if math.isfinite(point[1])]
    if not points:
        return tag("p", f"There is no {y} to draw.", class_="note")
    scale = _Scale.around(points, top)
    drawn = []
    for at, (name, found) in enumerate(series.items()):
        hue = colour(name, at)
        places = sorted(point for point in found if math.isfinite(point[1]))
        if len(places) > 1:
            path = plot.line([scale.x(p[0]) for p in places], [scale.y(p[1]) for p in places], f"series {hue}")
            drawn.append(tag("g", tag("title", name), path))
        if len(places) > CROWDED:
            continue
        drawn += [_dot(scale.x(px), scale.y(py), hue, f"{name}: {x} {px:g}, {y} {py:.3g}") for px, py in places]
    drawn += _keys(list(series), scale.frame) if keys else []
    return plot.figure(f"{y} over {x}: {', '.join(series)}.", scale.axes(x, y), *drawn)


def scatter(
    series: Mapping[str, Sequence[Point]],
    *,
    x: str,
    y: str,
    threshold: float | None = None,
    marks: Mapping[float, str] | None = None,
    diagonal: bool = False,
    named: bool = False,
    links: Mapping[str, str] | None = None,
    keys: bool = False,
) -> Html:
    """Points of every series.

    Args:
        threshold: a line across at that height.
        marks: {height: name} of more such lines.
        diagonal: a line where both are equal.
        named: have the name of its series beside every point.
        links: {series: what its points lead to}, places on the same page.
        keys: as in `lines`.
    """
    points = [point for found in series.values() for point in found]
    if not points:
        return tag("p", "There are no points to draw.", class_="note")
    lines_ = dict(marks or {}) | ({} if threshold is None else {threshold: ""})
    around = [*points, *((points[0][0], height) for height in lines_)]
    around += [(v, v) for point in points for v in point] if diagonal else []
    scale = _Scale.around(around, 1.0 if lines_ and max(p[1] for p in around) <= 1 else None, zero=False)
    drawn = [_across(scale, height, name) for height, name in lines_.items()]
    if diagonal:
        low, high = (pick(around_ for p in around for around_ in p) for pick in (min, max))
        ends = [(scale.x(v), scale.y(v)) for v in (low, high)]
        drawn.append(plot.straight(ends[0], ends[1], "threshold"))
    places = [(scale.x(px), scale.y(py)) for px, py in points]
    taken = [Box(px - 6, py - 6, px + 6, py + 6) for px, py in places]
    for at, (name, found) in enumerate(series.items()):
        for px, py in found:
            dot = _dot(scale.x(px), scale.y(py), colour(name, at), f"{name}: {x} {px:.3g}, {y} {py:.3g}", r=6)
            if links and name in links:
                dot = tag("a", dot, href=f"#{links[name]}", aria_label=f"Pictures of {name}")
            drawn.append(dot)
            if named:
                drawn.append(_beside(scale.frame, scale.x(px), scale.y(py), name, taken))
    drawn += _keys(list(series), scale.frame) if keys else []
    return plot.figure(f"{y} against {x}: {', '.join(series)}.", scale.axes(x, y), *drawn)


def _across(scale: "_Scale", height: float, name: str) -> Html:
    """A line across at a height, with its name at the right above it."""
    frame, place = scale.frame, scale.y(height)
    line = plot.straight((frame.left, place), (frame.right, place), "paper" if name else "threshold")
    return join([line, plot.label(frame.left + 4, place - 4, name, "tick", "start") if name else None])


class Box(NamedTuple):
    """A rectangle in a figure, in which nothing else may be written."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def _beside(frame: Frame, x: float, y: float, name: str, taken: list[Box]) -> Html:
    """The name of a point, beside, above or below it, at the nearest place that is free."""
    wide = 7.4 * len(name)
    places = [
        (shift, x + 10 if right else x - 10 - wide)
        for shift in (0, -15, 15, -30, 30, -45, 45)
        for right in (True, False)
    ]
    boxes = [Box(left, y + shift - 8, left + wide, y + shift + 6) for shift, left in places]
    inside = [
        b for b in boxes if b.left >= frame.left and b.right <= plot.WIDTH and b.top > 0 and b.bottom < frame.bottom
    ]
    free = next((box for box in inside if not any(box.meets(other) for other in taken)), boxes[0])
    taken.append(free)
    return plot.label(free.left, free.bottom - 1.5, name, "mark", "start")


def bars(values: Mapping[str, float], *, x: str, threshold: float | None = None) -> Html:
    """A bar for every value between 0 and 1, to the right, with its name on the left and its figure at its end."""
    step, left = 26, min(250, 30 + max((7.2 * len(name) for name in values), default=0.0))
    frame = Frame(left=left, top=8, right=plot.WIDTH - 50, bottom=8 + step * len(values))
    drawn = []
    for at, (name, value) in enumerate(values.items()):
        top, width = frame.top + step * at + 4, max(0.0, min(1.0, value)) * (frame.right - frame.left)
        kind = "hit" if threshold is not None and value >= threshold else "with"
        place = {"x": plot.at(left), "y": plot.at(top), "width": plot.at(width), "height": plot.at(step - 8)}
        drawn.append(plot.label(left - 8, top + 14, _cut(name), "tick", "end"))
        drawn.append(tag("rect", **place, rx=1.5, class_=kind))
        drawn.append(plot.label(left + width + 6, top + 14, f"{value:.3f}", "mark", "start"))
    if threshold is not None:
        drawn.append(plot.straight((frame.x(threshold), frame.top), (frame.x(threshold), frame.bottom), "threshold"))
    drawn.append(plot.straight((left, frame.top), (left, frame.bottom), "axis"))
    drawn.append(plot.label((frame.left + frame.right) / 2, frame.bottom + 20, x, "name", "middle"))
    title = f"{x}: {', '.join(f'{name} {value:.3f}' for name, value in values.items())}."
    box = f"0 0 {plot.WIDTH} {frame.bottom + 30:.0f}"
    return tag("svg", tag("title", title), *drawn, viewBox=box, role="img", aria_label=title)


Measured = tuple[float, float | None]
"""A mean and its spread, where there is one."""


def pairs(rows: Sequence[tuple[str, Measured, Measured]], *, x: str) -> Html:
    """A line for each row: a dot at what was measured, a ring at what was published, spreads as bars across them."""
    step, left = 24, min(290, 30 + max((6.8 * len(name) for name, *_ in rows), default=0.0))
    frame = Frame(left=left, top=8, right=plot.WIDTH - 20, bottom=8 + step * len(rows))
    ends = [v + way * (s or 0.0) for _, *both in rows for v, s in both for way in (-1, 1)]
    room = 0.04 * (max(ends) - min(ends)) or 0.5
    low, high = min(ends) - room, max(ends) + room
    ticks = [tick for tick in _ends(low, high)[2] if low <= tick <= high]

    def across(value: float) -> float:
        return frame.x((value - low) / (high - low))

    drawn = [plot.straight((across(t), frame.top), (across(t), frame.bottom), "grid") for t in ticks]
    drawn += [plot.label(across(t), frame.bottom + 16, f"{t:g}", "tick", "middle") for t in ticks]
    for at, (name, *both) in enumerate(rows):
        height = frame.top + step * (at + 0.5)
        drawn.append(plot.label(left - 8, height + 4, _cut(name, 40), "tick", "end"))
        for (value, spread), kind, shift in zip(both, ("s0", "ring"), (-3, 3), strict=True):
            place = height + shift
            if spread:
                drawn.append(
                    plot.straight((across(value - spread), place), (across(value + spread), place), f"bar {kind}")
                )
            said = f"{name}: {'published' if kind == 'ring' else 'measured'} {value:.3g}"
            drawn.append(_dot(across(value), place, kind, said, r=5))
    drawn.append(plot.label((frame.left + frame.right) / 2, frame.bottom + 36, x, "name", "middle"))
    title = f"{x}, measured and published: " + "; ".join(f"{n} {m[0]:.3g} and {p[0]:.3g}" for n, m, p in rows) + "."
    box = f"0 0 {plot.WIDTH} {frame.bottom + 44:.0f}"
    return tag("svg", tag("title", title), *drawn, viewBox=box, role="img", aria_label=title)


def _cut(name: str, most: int = 34) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def write_svg(path: str | Path, drawing: Html) -> None:
    """A figure as a file of its own, in the colours of the light page."""
    style_ = tag("style", Html(style.svg_css()))
    start = drawing.index(">") + 1
    head = drawing[:start].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    files.replace(path, f"{head}{style_}{drawing[start:]}\n")


def colour(name: str, at: int) -> str:
    """The class of a series, by its place; what needs no update is grey."""
    return "blind" if name == WITHOUT else f"s{at % COLOURS}"


def legend(names: Sequence[str]) -> Html:
    """What colour is which series."""
    return join(
        [tag("span", tag("i", class_=f"swatch {colour(name, k)}"), name, class_="key") for k, name in enumerate(names)]
    )


def side_by_side(*figures: Html) -> Html:
    """As many beside each other as the page has room for, at least two."""
    return tag("div", *figures, *([Html("<div></div>")] if len(figures) == 1 else []), class_="figures")


def _keys(names: Sequence[str], frame: Frame) -> list[Html]:
    """What colour is which series, inside a figure, at its upper right."""
    drawn = []
    for at, name in enumerate(names):
        height = frame.top + 10 + 18 * at
        drawn.append(plot.label(frame.right - 14, height + 5, name, "mark", "end"))
        drawn.append(_dot(frame.right - 5, height, colour(name, at), name))
    return drawn


def _dot(cx: float, cy: float, colour: str, said: str, *, r: float = 4) -> Html:
    return tag("circle", tag("title", said), cx=plot.at(cx), cy=plot.at(cy), r=r, class_=f"point {colour}")


class _Scale(NamedTuple):
    """Two straight axes around points, by their ends and ticks, and where values lie between them."""

    across: Ends
    up: Ends
    frame: Frame = Frame()

    @classmethod
    def around(cls, points: Sequence[Point], top: float | None, *, zero: bool = True) -> "_Scale":
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        low = min(0.0, *ys) if zero else min(ys)
        whole = all(float(each).is_integer() for each in xs)
        return cls(_ends(min(xs), max(xs), whole=whole), _ends(low, max(ys) if top is None else top))

    def x(self, value: float) -> float:
        low, high, _ = self.across
        return self.frame.x((value - low) / (high - low))

    def y(self, value: float) -> float:
        low, high, _ = self.up
        return self.frame.y((value - low) / (high - low))

    def axes(self, x: str, y: str) -> Html:
        left = [(self.y(tick), f"{tick:g}") for tick in self.up[2]]
        below = [(self.x(tick), f"{tick:g}") for tick in self.across[2]]
        return plot.axes(self.frame, left, below, x=x, y=y)


def _ends(low: float, high: float, *, whole: bool = False) -> Ends:
    """A straight axis around values: its ends and its ticks, whole numbers alone where only these make sense."""
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    step = max(plot.nice((high - low) / 5), 1.0 if whole else 0.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(step * k, 12) for k in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks
