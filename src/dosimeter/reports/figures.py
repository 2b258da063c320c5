"""The figures of a report: the matching loss on its way down, and SSIM with and without the update."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dosimeter.auditing import ImageRecord
from dosimeter.metrics import Rate
from dosimeter.reports import plot
from dosimeter.reports.charts import WITHOUT
from dosimeter.reports.markup import Html, tag
from dosimeter.reports.plot import Frame
from dosimeter.reports.words import number
from dosimeter.types import Curve

LINES = 64
"""Victims drawn one by one; of more, an even choice."""
POINTS = 240
"""Steps drawn; of more, an even choice."""
TINY, HUGE = 1e-30, 1e30
"""A loss below counts as 0, one above as not finite."""
GRID, COLOURS = 100, 6
"""Thresholds between 0 and 1 at which success is drawn; colours of lines."""
PAPERS = {0.4: "PPP, 0.4", 0.5: "CVB, 0.5"}
"""The SSIM from which papers count an image as read: PPP, Sec. 5.2; CVB, Sec. V-B."""
LINKS = 200
"""Points that open their pictures; of more, none does, since each is a stop of the keyboard."""
BIN = 0.05
"""Width of a bin in SSIM."""


def curves(curve: Curve, truth: float | None = None) -> Html:
    """Matching loss over steps on a logarithmic axis: a thin line a victim, a bold one for their median.

    Values that are not finite interrupt a line; those of 0 or below, which have no logarithm, lie on the bottom edge.

    Args:
        truth: the median loss of the clients' own steps, a dashed line across where it is above 0.
    """
    steps, match = _thin(curve)
    positive = match[match > TINY]
    if not len(positive):
        return tag("p", "There is no matching loss above zero to draw.", class_="note")
    frame, span = Frame(), max(1, steps[-1] - steps[0])
    across_ = [truth] if truth is not None and TINY < truth < HUGE else []
    height, left = plot.logarithmic([float(positive.min()), float(positive.max()), *across_], frame.y)

    def across(step: int) -> float:
        return frame.x((step - steps[0]) / span)

    def up(losses: Tensor) -> list[float]:
        return [height(loss) if math.isfinite(loss) else math.nan for loss in losses.tolist()]

    xs = [across(step) for step in steps]
    middle = match.nanquantile(0.5, dim=0)
    below = [(across(step), f"{step:,}") for step in plot.whole_ticks(steps[-1], low=steps[0])]
    chosen = match[:: every(len(match))]
    return plot.figure(
        f"Matching loss over {steps[-1]:,} steps on a logarithmic axis; the victims' median goes from "
        f"{number(middle[0].item())} to {number(middle[-1].item())}.",
        plot.axes(frame, left, below, x="step", y="matching loss"),
        tag("g", *(plot.line(xs, up(losses), "thin") for losses in chosen)),
        plot.line(xs, up(middle), "bold"),
        *(plot.straight((frame.left, height(value)), (frame.right, height(value)), "threshold") for value in across_),
    )


def every(victims: int) -> int:
    """One victim in how many has a line of its own."""
    return -(-victims // LINES)


def spread(values: Sequence[float], floor: Sequence[float], threshold: float) -> Html:
    """Images by SSIM: with the update upwards, without it downwards from the same axis, the threshold across both."""
    above, under = _bins(values, threshold), _bins(floor, threshold)
    low = min(0.0, threshold + BIN * min([*above, *under]))
    frame, most, least = Frame(top=34), max(above.values()), max(under.values())
    room = frame.bottom - frame.top
    unit, zero = min(24, room / (most + least)), frame.top + room * most / (most + least)

    def across(value: float) -> float:
        return frame.x((min(max(value, low), 1) - low) / (1 - low))

    def bars(bins: dict[int, int], rise: float) -> Html:
        edges = {k: (across(threshold + BIN * k), across(threshold + BIN * (k + 1))) for k in bins}
        kinds = {k: "without" if rise < 0 else "hit" if k >= 0 else "with" for k in bins}
        return tag("g", *(bar for k, n in sorted(bins.items()) for bar in _stack(*edges[k], zero, rise, n, kinds[k])))

    counts = plot.whole_ticks(max(most, least), most=5)
    left = [(zero - unit * n, str(n)) for n in counts if n <= most]
    left += [(zero + unit * n, str(n)) for n in counts if 0 < n <= least]
    below = [(across(tenth / 10), f"{tenth / 10:.1f}") for tenth in range(math.ceil(low * 10 - 1e-9), 11)]
    edge, (shift, anchor) = across(threshold), (-7, "end") if threshold > 0.8 else (7, "start")
    hits, blind = (sum(value >= threshold for value in found) for found in (values, floor))
    return plot.figure(
        f"SSIM of {len(values):,} images: {hits:,} at or above the threshold {threshold:g} with the update, "
        f"{blind:,} without it.",
        plot.axes(frame, left, below, x="SSIM", y="images"),
        bars(above, unit),
        bars(under, -unit),
        plot.straight((frame.left, zero), (frame.right, zero), "axis"),
        plot.straight((edge, frame.top - 22), (edge, frame.bottom), "threshold"),
        plot.label(edge + shift, frame.top - 13, "counts as read", "mark", anchor),
    )


def success(series: Mapping[str, Sequence[float]], blind: Sequence[float], threshold: float) -> Html:
    """The share of images at or above every threshold of SSIM: a line for each attack, the first with its interval.

    Args:
        series: {attack: SSIM of every image}, the strongest first.
        blind: the same of the first attack without the update.
        threshold: that of the audit; those of the papers stand beside it.
    """
    frame, grid = Frame(top=34), [k / GRID for k in range(GRID + 1)]
    drawn, (name, first) = [], next(iter(series.items()))
    rates = [Rate(_above(first, at), len(first)) for at in grid]
    edge = [*((at, rate.high) for at, rate in zip(grid, rates, strict=True))]
    edge += reversed([(at, rate.low) for at, rate in zip(grid, rates, strict=True)])
    drawn.append(tag("polygon", points=" ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in edge), class_="band"))
    every_ = {**series, WITHOUT: blind}
    for at, (each, values) in reversed(list(enumerate(every_.items()))):
        heights = [frame.y(_above(values, x) / max(1, len(values))) for x in grid]
        kind = "blind" if each == WITHOUT else f"s{at % COLOURS}"
        drawn.append(plot.line([frame.x(x) for x in grid], heights, f"series {kind}"))
    marks = [(at, name_, "paper") for at, name_ in PAPERS.items() if abs(at - threshold) > 0.02]
    for mark, said, kind in [*marks, (threshold, f"here, {threshold:g}", "threshold")]:
        drawn.append(plot.straight((frame.x(mark), frame.top - 4), (frame.x(mark), frame.bottom), kind))
        shift, anchor = (-4, "end") if mark < threshold else (4, "start")
        ink = "tick" if kind == "paper" else "mark"
        drawn.append(plot.label(frame.x(mark) + shift, frame.top - 10, said, ink, anchor))
    ticks = [k / 5 for k in range(6)]
    here = _above(first, threshold)
    return plot.figure(
        f"Share of images read over the threshold of SSIM; at {threshold:g} {name} reads {here:,} of {len(first):,}.",
        plot.axes(
            frame,
            [(frame.y(t), f"{100 * t:.0f} %") for t in ticks],
            [(frame.x(t), f"{t:.1f}") for t in ticks],
            x="threshold of SSIM",
            y="images at or above it",
        ),
        *drawn,
    )


def matches(records: Sequence[ImageRecord], names: Mapping[str | None, str], threshold: float) -> Html | None:
    """A point an image: how well its reconstruction explains the update, and how near it came; it opens its pictures.

    Args:
        names: {evidence: its class in the style sheet}.
    """
    shown = [each for each in records if each.match is not None and TINY < each.match < HUGE]
    if len(shown) < 2:
        return None
    frame, low = Frame(), min(0.0, *(each.ssim for each in shown))
    across, below = plot.logarithmic([float(each.match or 0.0) for each in shown], frame.x)

    def up(value: float) -> float:
        return frame.y((value - low) / (1 - low))

    dots = []
    for each in shown:
        said = f"Image {each.index}: matching loss {number(each.match)}, SSIM {each.ssim:.2f}, {each.evidence}"
        place = {"cx": plot.at(across(each.match or 0.0)), "cy": plot.at(up(each.ssim)), "r": 4.5}
        dot = tag("circle", tag("title", said), **place, class_=f"point {names.get(each.evidence, 'unfit')}")
        link = f"#image-{each.victim}-{each.image}"
        dots.append(tag("a", dot, href=link, aria_label=said) if len(shown) <= LINKS else dot)
    edge = up(threshold)
    return plot.figure(
        f"SSIM over matching loss of {len(shown):,} images.",
        plot.axes(frame, [(up(t / 5), f"{t / 5:.1f}") for t in range(6)], below, x="matching loss", y="SSIM"),
        plot.straight((frame.left, edge), (frame.right, edge), "threshold"),
        *dots,
    )


def _above(values: Sequence[float], threshold: float) -> int:
    return sum(value >= threshold for value in values)


def _thin(curve: Curve) -> tuple[list[int], Tensor]:
    """At most about POINTS steps, the last among them, and (V, T) losses in float64, nan where they are not finite."""
    stride = -(-len(curve.steps) // POINTS)
    kept = sorted({*range(0, len(curve.steps), stride), len(curve.steps) - 1})
    match = curve.match.detach().cpu().double()[:, kept]
    return [curve.steps[k] for k in kept], match.where(match.abs() < HUGE, torch.nan)


def _bins(values: Sequence[float], threshold: float) -> dict[int, int]:
    """How many values lie in each bin; bin 0 begins at the threshold, so that no bin has values on both sides."""
    bins: dict[int, int] = {}
    last = max(0, math.ceil((1 - threshold) / BIN - 1e-9) - 1)  # an SSIM of 1 belongs to the bin that ends there
    for value in values:
        k = math.floor((value - threshold) / BIN + 1e-9)
        k = min(max(k, 0), last) if value >= threshold else min(k, -1)
        bins[k] = bins.get(k, 0) + 1
    return bins


def _stack(start: float, end: float, zero: float, rise: float, n: int, class_: str) -> list[Html]:
    """n images on (rise > 0) or under the axis: a brick each, or one bar where bricks would be too thin to see."""
    size = abs(rise)
    bricks = [(k, 1) for k in range(n)] if size >= 5 else [(0, n)]
    gap = 1.5 if size >= 5 else 0.0
    found = []
    for first, length in bricks:
        top = zero - size * (first + length) if rise > 0 else zero + size * first
        place = {"x": plot.at(start + 1), "y": plot.at(top + gap / 2)}
        sides = {"width": plot.at(max(2, end - start - 2)), "height": plot.at(max(0.5, size * length - gap))}
        found.append(tag("rect", **place, **sides, rx=1.5, class_=class_))
    return found
