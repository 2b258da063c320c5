"""What the page is made of: the table of trials, the plot, the comparison, the form, one trial."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dash import dcc, html

from dosimeter.app import figures, parts, places
from dosimeter.app.trials import CHOICES, ORDERS

BEAT = 2000
"""Milliseconds between two looks at what runs."""

FIRST: dict[str, Any] = {"page": 0, "sort": "began", "down": True}
"""Where the table begins, the newest trials first."""

ONLY = {"kind": "audit"}
"""What it is filtered by at first."""


class Field(NamedTuple):
    """An option of the command line in the form."""

    name: str
    about: str
    usual: str
    names: Sequence[str] = ()  # that it may begin with


def whole(
    name: str, rows: Sequence[Any], told: str, version: Any, *, wrong: str, fields: Sequence[Field], across: str
) -> Any:
    """All of it, with the first rows of the table."""
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="picked", data=[]),
            dcc.Store(id="at", data=FIRST),
            dcc.Store(id="asked", data=["", [ONLY.get(name) for name in CHOICES]]),
            dcc.Store(id="shot", data={"page": 0}),
            dcc.Store(id="version", data=version),
            dcc.Store(id="mine", storage_type="session"),
            dcc.Interval(id="beat", interval=BEAT),
            dcc.Download(id="file"),
            _top(name),
            html.P(wrong, id="banner", className="banner", role="alert"),
            html.Div(id="live"),
            html.Main([_list(rows, told, across), _form(fields), _trial()]),
        ]
    )


def _top(name: str) -> Any:
    return html.Header(
        [
            html.Div([html.Span("dosimeter", className="brand"), html.Span(name[:80], className="store")]),
            html.Div(id="counts", className="counts"),
            html.Nav([dcc.Link("Trials", href="#"), dcc.Link("New audit", href="#new", className="button")]),
        ]
    )


def _labelled(word: str, what: Any) -> Any:
    return html.Label([html.Span(word), what])


def _pager(*what: Any) -> Any:
    return html.Div(list(what), className="pager")


def _button(text: str, name: str, **more: Any) -> Any:
    return html.Button(text, id=name, n_clicks=0, **more)


def _list(rows: Sequence[Any], told: str, across: str) -> Any:
    search = dcc.Input(id="text", type="search", placeholder="noise cifar10", debounce=0.15, autoComplete="off")
    chosen = [
        dcc.Dropdown(
            id={"choose": name}, value=ONLY.get(name), options=[*filter(None, [ONLY.get(name)])], placeholder="all"
        )
        for name in CHOICES
    ]
    filters = [_labelled("search", search), *(_labelled(*each) for each in zip(CHOICES, chosen, strict=True))]
    table = html.Table([parts.heads(FIRST["sort"], FIRST["down"]), html.Tbody(rows, id="rows")], className="trials")
    turn = (_button("Before", "before"), html.Span(told, id="told", role="status"), _button("Next", "next"))
    found = html.Section(
        [
            html.H2("Trials"),
            html.Div(filters, className="filters"),
            html.Div(table, className="scroll"),
            _pager(*turn, _button("CSV of all these", "csv", className="far")),
        ],
        className="card",
    )
    return html.Div([found, _plot(across), _compare()], id="list", className="grid")


def _plot(across: str) -> Any:
    names = {name: axis.label for name, axis in figures.AXES.items()}
    axes = [
        _labelled(where, dcc.Dropdown(names, value, id=where, clearable=False))
        for where, value in (("across", across), ("up", "hidden"))
    ]
    return html.Section(
        [
            html.H2("Accuracy against privacy"),
            html.Div([*axes, _button("Figure as SVG", "svg")], className="filters"),
            html.Div(id="drawn", style={"minHeight": "24rem"}),
            html.P(id="plotted", className="note"),
        ],
        className="card",
    )


def graph(figure: Mapping[str, Any]) -> Any:
    """The plot, which comes once the table is there: Plotly is large."""
    config = {"displayModeBar": False, "responsive": True}
    return dcc.Graph(id="plot", figure=figure, config=config, style={"height": "24rem"})


def _compare() -> Any:
    buttons = _pager(_button("CSV of these", "csv-picked"), _button("Clear", "clear"))
    shown = html.Div(parts.compared([], {}), id="compared")
    return html.Section([html.H2("Compared"), shown, buttons], className="card whole")


def _form(fields: Sequence[Field]) -> Any:
    rows = []
    for each in fields:
        listed = f"names-{each.name}"
        box = dcc.Input(
            id={"field": each.name}, value="", placeholder=each.usual, type="text", autoComplete="off",
            list=listed if each.names else None,
        )  # fmt: skip
        label = html.Label([html.Span(each.name.replace("_", " ")), box, html.Small(each.about)])
        rows.append(html.Div([label, html.Datalist([html.Option(value=name) for name in each.names], id=listed)]))
    note = (
        "As on the command line; the usual value holds where nothing is given. Files are for the command line itself."
    )
    return html.Section(
        [
            html.H2("New audit"),
            html.P(note, className="note"),
            html.Div(rows, className="form"),
            _pager(_button("Start", "start", className="button")),
            html.P(id="refused", className="wrong", role="alert"),
            html.Ul(id="jobs", className="live"),
        ],
        id="new",
        className="card",
        hidden=True,
    )


def _trial() -> Any:
    order = dcc.Dropdown(list(ORDERS), "most exposed first", id="order", clearable=False)
    which = dcc.Dropdown(list(parts.EVIDENCE), None, id="said", placeholder="all images")
    turn = (_button("Before", "shots-before"), html.Span(id="shots-told", role="status"), _button("Next", "shots-next"))
    shots = [
        html.Div([_labelled("order", order), _labelled("evidence", which)], className="filters"),
        html.Div(id="gallery", className="gallery"),
        _pager(*turn),
    ]
    inside = [html.Div(id="about"), html.Div(shots, id="shots"), html.Div(id="page")]
    return html.Section(inside, id="trial", className="card", hidden=True)


def about(row: Mapping[str, Any], *, page: bool) -> list[Any]:
    """The head of a trial: what it is, what it found, or why there is nothing of it."""
    digest, settings = str(row["digest"]), row["words"] or {}
    words = {"defense": row["defense"], "attack": row["attack"], "seed": row["seed"], row["kind"]: digest[:12]}
    lines = "\n".join(f"{key} = {value}"[:300] for key, value in settings.items()) or "all by default"
    numbers = {
        "read": parts.share(row),
        "mean SSIM": parts.said(row["ssim"]),
        "without the update": parts.said(row["blind_ssim"]),
        "mean PSNR in dB": parts.said(row["psnr"], 1),
        "accuracy": parts.said(row["accuracy"]),
        "time": parts.took(row["seconds"]),
    }
    tiles = [html.Div([html.Dt(name), html.Dd(value)]) for name, value in numbers.items() if value != "-"]
    return [
        dcc.Link("All trials", href="#", className="back"),
        html.H2([f"{row['model']} on {row['data']}"[:120], " ", parts.standing(row)]),
        html.P(", ".join(f"{key} {value}" for key, value in words.items())[:400], className="note"),
        html.P("What the store has of this trial is damaged.", className="wrong")
        if row["status"] == "damaged"
        else None,
        html.Pre(str(row["why"])[-4000:]) if row["status"] == "failed" and row["why"] else None,
        parts.evidence((row["found"] or {}).get("evidence")),
        html.Dl(tiles, className="tiles"),
        html.Details([html.Summary("Settings"), html.Pre(lines)]),
        _views(digest, page) if has_page(row) else None,
    ]


def has_page(row: Mapping[str, Any]) -> bool:
    known = places.DIGEST.fullmatch(str(row["digest"])) is not None
    return known and row["status"] == "done" and row["kind"] == "audit"


def _views(digest: str, page: bool) -> Any:
    found = (("Pictures", f"#{digest}", not page), ("Page", f"#{digest}/page", page))
    links = [dcc.Link(name, href=to, className="view on" if on else "view") for name, to, on in found]
    alone = html.A("Page in a tab of its own", href=f"/page/{digest}/", target="_blank", className="view")
    return html.Nav([*links, alone], className="views")
