"""Figures over several results: lines over rounds, points of two scores; and the page that holds them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dosimeter import files
from dosimeter.reports import plot
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.plot import Frame
from dosimeter.reports.sections import document
from dosimeter.reports.style import CSS

COLOURS = 6
"""Series that differ in colour; of more, colours come again."""

Point = tuple[float, float]
Ends = tuple[float, float, list[float]]
"""Of an axis: its lower and upper end, and its ticks."""


def lines(series: Mapping[str, Sequence[Point]], *, x: str, y: str, top: float | None = None) -> Html:
    """A line for every series through its (x, y) points, which are marked.

    Args:
        top: the upper end of the axis, by default a round number above all values.
    """
    points = [point for found in series.values() for point in found if math.isfinite(point[1])]
    if not points:
        return tag("p", f"There is no {y} to draw.", class_="note")
    scale = _Scale.around(points, top)
    drawn = []
    for at, (name, found) in enumerate(series.items()):
        colour = f"s{at % COLOURS}"
        places = sorted(point for point in found if math.isfinite(point[1]))
        if len(places) > 1:
            drawn.append(
                plot.line([scale.x(p[0]) for p in places], [scale.y(p[1]) for p in places], f"series {colour}")
            )
        drawn += [_dot(scale.x(px), scale.y(py), colour, f"{name}: {x} {px:g}, {y} {py:.3g}") for px, py in places]
    return plot.figure(f"{y} over {x}: {', '.join(series)}.", scale.axes(x, y), *drawn)


def scatter(series: Mapping[str, Sequence[Point]], *, x: str, y: str, threshold: float | None = None) -> Html:
    """Points of every series; `threshold` is a line across at that height."""
    points = [point for found in series.values() for point in found]
    if not points:
        return tag("p", "There are no points to draw.", class_="note")
    heights = [*points, *([] if threshold is None else [(points[0][0], threshold)])]
    scale = _Scale.around(heights, 1.0 if max(p[1] for p in heights) <= 1 else None, zero=False)
    drawn = []
    for at, (name, found) in enumerate(series.items()):
        drawn += [
            _dot(scale.x(px), scale.y(py), f"s{at % COLOURS}", f"{name}: {x} {px:.3g}, {y} {py:.3g}")
            for px, py in found
        ]
    if threshold is not None:
        height = scale.y(threshold)
        drawn.append(plot.straight((scale.frame.left, height), (scale.frame.right, height), "threshold"))
    return plot.figure(f"{y} against {x}: {', '.join(series)}.", scale.axes(x, y), *drawn)


def bars(values: Mapping[str, float], *, x: str, threshold: float | None = None) -> Html:
    """A bar for every value between 0 and 1, to the right, with its name on the left and its figure at its end."""
    step, left = 26, 250
    frame = Frame(left=left, top=8, right=plot.WIDTH - 50, bottom=8 + step * len(values))
    drawn = []
    for at, (name, value) in enumerate(values.items()):
        top, width = frame.top + step * at + 4, max(0.0, min(1.0, value)) * (frame.right - frame.left)
        kind = "hit" if threshold is not None and value >= threshold else "with"
        place = {"x": plot.at(left), "y": plot.at(top), "width": plot.at(width), "height": plot.at(step - 8)}
        drawn.append(plot.label(left - 8, top + 14, name, "tick", "end"))
        drawn.append(tag("rect", **place, rx=1.5, class_=kind))
        drawn.append(plot.label(left + width + 6, top + 14, f"{value:.3f}", "mark", "start"))
    if threshold is not None:
        drawn.append(plot.straight((frame.x(threshold), frame.top), (frame.x(threshold), frame.bottom), "threshold"))
    drawn.append(plot.straight((left, frame.top), (left, frame.bottom), "axis"))
    drawn.append(plot.label((frame.left + frame.right) / 2, frame.bottom + 20, x, "name", "middle"))
    title = f"{x}: {', '.join(f'{name} {value:.3f}' for name, value in values.items())}."
    box = f"0 0 {plot.WIDTH} {frame.bottom + 30:.0f}"
    return tag("svg", tag("title", title), *drawn, viewBox=box, role="img", aria_label=title)


def write_svg(path: str | Path, drawing: Html) -> None:
    """A figure as a file of its own, in the colours of the light page."""
    light, figures = CSS[: CSS.index("@media")], CSS[CSS.index("svg {") : CSS.index("\n.swatch {")]
    style = tag(
        "style", Html(f"{light}{figures}svg {{ background: var(--card); font-family: system-ui, sans-serif; }}")
    )
    start = drawing.index(">") + 1
    head = drawing[:start].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    files.replace(path, f"{head}{style}{drawing[start:]}\n")


def legend(names: Sequence[str]) -> Html:
    """What colour is which series."""
    return join(
        [tag("span", tag("i", class_=f"swatch s{k % COLOURS}"), name, class_="key") for k, name in enumerate(names)]
    )


def side_by_side(*figures: Html) -> Html:
    """As many beside each other as the page has room for, at least two."""
    return tag("div", *figures, *([Html("<div></div>")] if len(figures) == 1 else []), class_="figures")


def write_charts(path: str | Path, title: str, about: str, parts: Sequence[tuple[str, Html]]) -> None:
    """One self-contained page of sections, each with a heading."""
    top = tag("header", tag("p", "dosimeter", class_="brand"), tag("h1", title), tag("p", about, class_="about"))
    body = [tag("section", tag("h2", name), content) for name, content in parts]
    files.replace(path, document(title, top, tag("main", *body)))


def _dot(cx: float, cy: float, colour: str, said: str) -> Html:
    return tag("circle", cx=plot.at(cx), cy=plot.at(cy), r=4, class_=f"point {colour}", aria_label=said)


class _Scale(NamedTuple):
    """Two straight axes around points, by their ends and ticks, and where values lie between them."""

    across: Ends
    up: Ends
    frame: Frame = Frame()

    @classmethod
    def around(cls, points: Sequence[Point], top: float | None, *, zero: bool = True) -> "_Scale":
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        low = min(0.0, *ys) if zero else min(ys)
        return cls(_ends(min(xs), max(xs)), _ends(low, max(ys) if top is None else top))

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


def _ends(low: float, high: float) -> Ends:
    """A straight axis around values: its ends and its ticks."""
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    step = plot.nice((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [round(step * k, 12) for k in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks
