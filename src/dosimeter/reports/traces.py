"""What became of each tensor of the simulated update over the steps of a search, where it was recorded."""

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from dosimeter.reports import charts, plot, sections
from dosimeter.reports.charts import COLOURS
from dosimeter.reports.markup import Html
from dosimeter.reports.plot import Frame

NORM, COSINE, OBSERVED = 0, 1, 4
"""Places of a tensor's norm, of its cosine with the observed one, and of that one's norm."""


def traces(steps: Sequence[int], found: Mapping[str, Tensor]) -> list[Html]:
    """Cosine and norm of the largest tensors, the median over victims; nothing where nothing was recorded.

    Args:
        steps: (T,) at which they were.
        found: {tensor: (V, T, 5 or more)} of norm, cosine, two entries and the observed norm.
    """
    if not found or len(steps) < 2:
        return []
    size = {name: float(each[..., OBSERVED].nanmean()) for name, each in found.items()}
    names = sorted(found, key=lambda name: -size[name])[:COLOURS]
    left = f" Left out: {len(found) - len(names):,} smaller tensors." if len(found) > len(names) else ""
    cosine = {name: _median(found[name][..., COSINE]) for name in names}
    ratio = {name: _median(found[name][..., NORM] / found[name][..., OBSERVED].clamp_min(1e-30)) for name in names}
    legend = charts.legend(names)
    return [
        sections.drawing(
            _lines(steps, cosine, "cosine", logarithmic=False),
            "Cosine by tensor.",
            f"Of the simulated tensor with the observed one, the median over victims; 1 is the same direction.{left} ",
            legend,
        ),
        sections.drawing(
            _lines(steps, ratio, "norm, simulated / observed", logarithmic=True),
            "Norm by tensor.",
            "As a share of the observed tensor's norm, the median over victims; 1 is equal. ",
            legend,
        ),
    ]


def _median(values: Tensor) -> list[float]:
    """(T,) over victims."""
    middle: list[float] = values.detach().cpu().double().nanquantile(0.5, dim=0).tolist()
    return middle


def _lines(steps: Sequence[int], series: Mapping[str, Sequence[float]], y: str, *, logarithmic: bool) -> Html:
    """A line a tensor over steps."""
    frame, span = Frame(), max(1, steps[-1] - steps[0])
    values = [value for each in series.values() for value in each if math.isfinite(value)]
    height: Callable[[float], float]
    if logarithmic:
        positive = [value for value in values if value > 0] or [1.0]
        height, left = plot.logarithmic([*positive, 1.0], frame.y)
    else:
        low = min(0.0, *values) if values else 0.0

        def height(value: float) -> float:
            return frame.y((value - low) / (1 - low))

        left = [(height(k / 5), f"{k / 5:.1f}") for k in range(math.ceil(5 * low), 6)]

    def across(step: int) -> float:
        return frame.x((step - steps[0]) / span)

    below = [(across(step), f"{step:,}") for step in plot.whole_ticks(steps[-1], low=steps[0])]
    xs = [across(step) for step in steps]
    drawn = [
        plot.line(xs, [height(v) if math.isfinite(v) else math.nan for v in each], f"series {charts.colour(name, at)}")
        for at, (name, each) in enumerate(series.items())
    ]
    ends = ", ".join(f"{name} {each[-1]:.2g}" for name, each in series.items())
    return plot.figure(
        f"{y} over {steps[-1]:,} steps; at the end {ends}.", plot.axes(frame, left, below, x="step", y=y), *drawn
    )
