"""The figures of a report: the matching loss on its way down, and SSIM with and without the update."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dosimeter.reports import plot
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
BIN = 0.05
"""Width of a bin in SSIM."""


def curves(curve: Curve) -> Html:
    """Matching loss over steps on a logarithmic axis: a thin line a victim, a bold one for their median.

    Values that are not finite interrupt a line; those of 0 or below, which have no logarithm, lie on the bottom edge.
    """
    steps, match = _thin(curve)
    positive = match[match > TINY]
    if not len(positive):
        return tag("p", "There is no matching loss above zero to draw.", class_="note")
    frame, span = Frame(), max(1, steps[-1] - steps[0])
    height, left = plot.logarithmic([float(positive.min()), float(positive.max())], frame.y)

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
