"""Figures have sensible axes for any numbers, and draw every number where it belongs."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dosimeter.reports import figures, plot, traces
from dosimeter.types import Curve

POSITIVE = st.floats(1e-30, 1e30)


@given(POSITIVE, POSITIVE)
def test_log_axis_covers_the_values(a: float, b: float) -> None:
    low, high, ticks = plot.log_axis(min(a, b), max(a, b))
    assert 0 < low <= min(a, b)
    assert max(a, b) <= high
    assert low < high
    assert 1 <= len(ticks) <= 10
    assert ticks == sorted(set(ticks))
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in ticks)


@pytest.mark.parametrize(("low", "high"), [(0.02, 0.7), (1e-6, 1), (0.5, 0.52), (3, 3), (1e-30, 1e30), (0.9, 1.1)])
def test_log_axis_has_two_ticks_or_more(low: float, high: float) -> None:
    assert len(plot.log_axis(low, high)[2]) >= 2


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_whole_ticks(low: int, length: int) -> None:
    ticks = plot.whole_ticks(low + length, low=low)
    assert all(low <= tick <= low + length for tick in ticks)
    assert len(ticks) <= 9
    if low == 0:
        assert ticks[0] == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.05, "0.05"), (20.0, "20"), (1e-4, "1e-4"), (5.12e-4, "5.12e-4"), (1e6, "1e6"), (0.515, "0.515")],
)
def test_short(value: float, text: str) -> None:
    assert plot.short(value) == text


def coordinates(drawing: str) -> list[float]:
    """Every number that places something."""
    found = re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy|width|height|points)="([^"]+)"', drawing)
    return [float(number) for text in found for number in re.split("[ ,]", text)]


@pytest.mark.parametrize(
    "match",
    [
        torch.tensor([[1.0, 0.1, 0.01], [2.0, 0.5, 0.5]]),
        torch.tensor([[1.0, 0.0, -1e-7], [2.0, 0.5, 0.5]]),
        torch.tensor([[torch.inf, torch.nan, 0.5], [torch.nan, 1.0, torch.nan]]),
        torch.tensor([[1.0, 1.0, 1.0]]),
        torch.tensor([[1e-40, 1e29, 1.0]]),
    ],
)
def test_curves_draw_all_that_is_finite(match: torch.Tensor) -> None:
    drawing = figures.curves(Curve((0, 1, 2), match))
    places = coordinates(drawing)
    assert all(math.isfinite(place) and -1 <= place <= plot.WIDTH + 1 for place in places)
    points = sum(len(run.split()) for run in re.findall(r'points="([^"]+)" class="thin"', drawing))
    assert points + drawing.count('class="dot thin"') == int(match.isfinite().sum())
    assert "nan" not in drawing.lower()
    assert 'class="bold"' in drawing or "dot bold" in drawing


def test_curves_of_one_step_are_dots() -> None:
    assert figures.curves(Curve((0,), torch.ones(2, 1))).count("<circle") == 3


def test_long_curves_of_many_victims_stay_small() -> None:
    steps = tuple(range(5001))
    drawing = figures.curves(Curve(steps, torch.rand(300, 5001) + 0.1))
    assert drawing.count('class="thin"') <= figures.LINES
    assert len(drawing) < 500_000
    assert ">5,000<" in drawing


def test_tensors_are_drawn_where_they_were_recorded() -> None:
    assert traces.traces((0, 1), {}) == []
    kinds = torch.tensor([[[2.0, 0.5, 0, 0, 4.0], [4.0, 1.0, 0, 0, 4.0]]])  # (V, T, ...): the norm and cosine grow
    cosine, norm = traces.traces((0, 10), {"conv.weight": kinds, "<b>": kinds / 10})
    for drawing, ends in ((cosine, ("0.5", "1")), (norm, ("0.5", "1"))):
        assert "<b>" not in drawing.replace("<b>Cosine", "").replace("<b>Norm", "")
        assert drawing.count("<polyline") == 2
        assert f"conv.weight {ends[1]}" in drawing
    heights = [float(pair.split(",")[1]) for pair in re.findall(r'points="([^"]+)"', cosine)[0].split()]
    assert heights[0] > heights[1]
    many = {f"layer{k}": kinds * (k + 1) for k in range(9)}
    assert "Left out: 3 smaller tensors." in traces.traces((0, 10), many)[0]
    assert traces.traces((0, 1), {"a": torch.full((2, 2, 7), torch.nan)})


SSIM = st.floats(-1, 1)


@given(st.lists(st.tuples(SSIM, SSIM), min_size=1, max_size=40), st.floats(0.01, 1))
def test_spread_counts_every_image_once(pairs: list[tuple[float, float]], threshold: float) -> None:
    values, floor = map(list, zip(*pairs, strict=True))
    drawing = figures.spread(values, floor, threshold)
    assert all(math.isfinite(place) and -1 <= place <= plot.WIDTH + 3 for place in coordinates(drawing))
    bins = figures._bins(values, threshold)
    assert sum(bins.values()) == len(values)
    assert sum(n for k, n in bins.items() if k >= 0) == sum(value >= threshold for value in values)
    if drawing.count("<rect") == 2 * len(values):  # a brick each
        assert drawing.count('class="hit"') == sum(value >= threshold for value in values)


@pytest.mark.parametrize("count", [1, 2, 30, 5000])
def test_spread_of_few_and_many(count: int) -> None:
    drawing = figures.spread([0.7] * count, [0.1] * count, 0.5)
    assert 'class="hit"' in drawing
    assert 'class="without"' in drawing
    assert drawing.count("<rect") <= 60
    assert f"SSIM of {count:,} images" in drawing
