"""A grid of cells, each darker the more of it there is: which defense of which model gives how much away."""

from collections.abc import Mapping, Sequence

from dosimeter.reports import plot
from dosimeter.reports.markup import Html, tag

WIDE, HIGH, LEFT, TOP = 78, 24, 120, 46


def grid(values: Mapping[tuple[str, str], tuple[float, str]], rows: Sequence[str], columns: Sequence[str]) -> Html:
    """{(row, column): (share between 0 and 1, words)}; a cell without a value stays empty.

    Names of columns may have two lines, parted by a comma.
    """
    drawn = []
    for across, name in enumerate(columns):
        for line, words in enumerate(name.split(", ")):
            drawn.append(plot.label(LEFT + WIDE * (across + 0.5), 16 + 15 * line, words, "tick", "middle"))
    for down, name in enumerate(rows):
        top = TOP + HIGH * down
        drawn.append(plot.label(LEFT - 8, top + 16, name, "tick", "end"))
        for across, column in enumerate(columns):
            if (name, column) not in values:
                continue
            share, words = values[name, column]
            place = {"x": plot.at(LEFT + WIDE * across + 1), "y": plot.at(top + 1)}
            drawn.append(tag("rect", **place, width=WIDE - 2, height=HIGH - 2, fill=_shade(share)))
            ink = "#ffffff" if share > 0.6 else "#1c232d"
            middle = {"x": plot.at(LEFT + WIDE * (across + 0.5)), "y": plot.at(top + 16)}
            drawn.append(tag("text", words, **middle, text_anchor="middle", fill=ink, style=f"fill: {ink}"))
    title = "How much is read: " + "; ".join(
        f"{row}, {column}: {words}" for (row, column), (_, words) in values.items()
    )
    size = f"0 0 {LEFT + WIDE * len(columns) + 8} {TOP + HIGH * len(rows) + 8}"
    return tag("svg", tag("title", title), *drawn, viewBox=size, role="img", aria_label=title)


def _shade(share: float) -> str:
    """From pale to hot."""
    pale, hot = (0xF1, 0xEF, 0xE9), (0xB8, 0x45, 0x2B)
    return "#" + "".join(
        f"{round(a + (b - a) * min(1.0, max(0.0, share))):02x}" for a, b in zip(pale, hot, strict=True)
    )
