"""Figures over several results: every value is drawn where it belongs, names are escaped, files stand alone."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dosimeter.errors import OutputError
from dosimeter.reports import charts, plot

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def circles(drawing: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', drawing)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_every_point_lies_inside_the_frame(points: list[tuple[float, float]]) -> None:
    frame = plot.Frame()
    for drawing in (charts.scatter({"a": points}, x="x", y="y"), charts.lines({"a": points}, x="x", y="y")):
        found = circles(drawing)
        assert len(found) == len(points)
        for x, y in found:
            assert frame.left - 0.2 <= x <= frame.right + 0.2
            assert frame.top - 0.2 <= y <= frame.bottom + 0.2


def test_higher_values_are_drawn_higher() -> None:
    low, high = circles(charts.lines({"a": [(0, 0.2), (1, 0.9)]}, x="round", y="SSIM", top=1.0))
    assert low[0] < high[0]
    assert low[1] > high[1]


def test_names_are_escaped_and_nothing_to_draw_is_said() -> None:
    assert "<b>" not in charts.scatter({"<b>": [(0, 1)]}, x="x", y="y")
    assert "no SSIM to draw" in charts.lines({"a": [(0, float("nan"))]}, x="round", y="SSIM")
    assert "no points" in charts.scatter({}, x="x", y="y")


def test_bars_are_as_long_as_their_values(tmp_path: Path) -> None:
    values = {"none & all": 1.0, "half": 0.5, "nothing": 0.0}
    drawing = charts.bars(values, x="SSIM", threshold=0.6)
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height', drawing)]
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.1)
    assert widths[2] == 0
    assert re.findall(r'class="(hit|with)"', drawing) == ["hit", "with", "with"]
    charts.write_svg(tmp_path / "bars.svg", drawing)
    root = ElementTree.parse(tmp_path / "bars.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert any("none & all" in (text.text or "") for text in root.iter("{http://www.w3.org/2000/svg}text"))
    with pytest.raises(OutputError):
        charts.write_svg(tmp_path / "bars.svg" / "within.svg", drawing)


def test_points_of_a_long_line_are_not_marked_one_by_one() -> None:
    line = [(float(at), at / 100) for at in range(charts.CROWDED + 1)]
    assert circles(charts.lines({"a": line}, x="step", y="norm")) == []
    assert len(circles(charts.lines({"a": line[1:]}, x="step", y="norm"))) == charts.CROWDED
    assert "<title>a</title>" in str(charts.lines({"a": line}, x="step", y="norm"))
