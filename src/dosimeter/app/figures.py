"""Accuracy against privacy, or any two numbers of trials, as Plotly draws it."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from dosimeter.app.trials import number
from dosimeter.reports.style import PALETTE

READ_FROM = 0.5
"""SSIM from which an image usually counts as read."""

INK, SOFT, RULE, RING = (PALETTE[name][0] for name in ("ink", "soft", "rule", "soft"))
"""Of figures that are saved; on the page the style sheet has its own, by theme."""

VERDICTS = {
    "leaks": (PALETTE["hot"][0], "circle"),
    "inconclusive": (PALETTE["warm"][0], "diamond"),
    "not shown": (PALETTE["accent"][0], "square"),
    "no verdict": (PALETTE["blind"][0], "x"),
}
"""Colour and shape, so that neither alone has to be told apart."""


class Axis(NamedTuple):
    """A number of a trial: what it is called and the columns that it is made of."""

    label: str
    name: str
    of: str = ""  # a column that it is a share of
    rest: bool = False  # whether one minus it is shown

    def value(self, row: Mapping[str, Any]) -> float | None:
        found = number(row.get(self.name))
        if found is not None and self.of:
            whole = number(row.get(self.of))
            found = found / whole if whole else None
        return 1 - found if found is not None and self.rest else found


AXES = {
    "hidden": Axis("1 - SSIM", "ssim", rest=True),
    "unread": Axis("share not read", "read", of="of", rest=True),
    "psnr": Axis("PSNR in dB", "psnr"),
    "identified": Axis("share identified", "identified"),
    "labels": Axis("share of labels recovered", "labels"),
    "accuracy": Axis("accuracy", "accuracy"),
    "seconds": Axis("seconds", "seconds"),
    "blind": Axis("SSIM without the update", "blind_ssim"),
    "seed": Axis("seed", "seed"),
}
NEEDED = (
    "digest",
    "kind",
    "model",
    "data",
    "defense",
    "attack",
    "seed",
    "verdict",
    *(a.name for a in AXES.values()),
    "of",
)


def scatter(rows: Sequence[Mapping[str, Any]], x: str, y: str, picked: Sequence[str]) -> dict[str, Any]:
    """A point a trial; those that were picked have a ring."""
    across, up = AXES[x], AXES[y]
    points = [(across.value(row), up.value(row), row) for row in rows]
    points = [each for each in points if each[0] is not None and each[1] is not None]
    traces = [_trace(name, [each for each in points if _verdict(each[2]) == name]) for name in VERDICTS]
    ringed = [each for each in points if each[2]["digest"] in picked]
    ring = {"size": 17, "color": "rgba(0,0,0,0)", "line": {"color": RING, "width": 2.5}}
    traces.append(_trace("compared", ringed) | {"marker": ring})
    shown = [trace for trace in traces if trace["x"]]
    return {"data": shown, "layout": _layout(across, up, y)}


def _verdict(row: Mapping[str, Any]) -> str:
    return str(row["verdict"]) if row["verdict"] in VERDICTS else "no verdict"


def _trace(name: str, points: Sequence[tuple[Any, Any, Mapping[str, Any]]]) -> dict[str, Any]:
    colour, symbol = VERDICTS.get(name, (INK, "circle"))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [each[0] for each in points],
        "y": [each[1] for each in points],
        "text": [named(each[2]) for each in points],
        "customdata": [each[2]["digest"] for each in points],
        "hovertemplate": "%{text}<br>%{xaxis.title.text}: %{x:.3f}<br>%{yaxis.title.text}: %{y:.3f}<extra></extra>",
        "marker": {"color": colour, "symbol": symbol, "size": 9, "opacity": 0.8},
    }


def named(row: Mapping[str, Any]) -> str:
    """What a trial is, in Plotly's kind of HTML, of which names may hold none."""
    words = (f"{row['model']} on {row['data']}", f"defense {row['defense']}", f"attack {row['attack']}")
    return "<br>".join(escape(str(each)[:80]) for each in words)


def _layout(across: Axis, up: Axis, y: str) -> dict[str, Any]:
    axis = {"gridcolor": RULE, "zeroline": False, "linecolor": SOFT, "automargin": True}
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1 - READ_FROM, "y1": 1 - READ_FROM}
    note = {"xref": "paper", "x": 0, "y": 1 - READ_FROM, "text": "read below", "showarrow": False}
    note |= {"xanchor": "left", "yanchor": "top", "font": {"size": 12, "color": SOFT}}
    read = y == "hidden"
    return {
        "xaxis": axis | {"title": {"text": across.label}},
        "yaxis": axis | {"title": {"text": up.label}} | ({"range": [-0.04, 1.04]} if y in ("hidden", "unread") else {}),
        "shapes": [line | {"line": {"color": SOFT, "width": 1.5, "dash": "dash"}}] if read else [],
        "annotations": [note] if read else [],
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": SOFT},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "uirevision": f"{across.name} {up.name}",
    }
