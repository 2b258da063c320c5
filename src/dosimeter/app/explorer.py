"""The page: a table of trials, a plot, a comparison; one trial and its pictures; the form that starts an audit.

The address says what is looked at: nothing after # is all trials, `new` the form, DIGEST the pictures of a trial and
DIGEST/page its page.
"""

import csv
import io
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dash
from dash import ALL, ClientsideFunction, Input, Output, State, ctx, html, no_update

from dosimeter import plain
from dosimeter.app import figures, page, parts
from dosimeter.app.jobs import DONE, Job, Jobs
from dosimeter.app.trials import CHOICES, Asked, Trials
from dosimeter.errors import DataError, DosimeterError

ROWS, SHOTS, POINTS, COMPARED = 25, 24, 500, 20
"""Trials and pictures on a page, points of the plot, trials beside each other: at most."""


class Explorer:
    """A Dash app over a store.

    Args:
        jobs: where audits run that the form starts.
        fields: the form's.
        refusal: what the command line says against words, in a line, or nothing.
        alive: whether the process that runs a trial is there.
    """

    def __init__(
        self,
        trials: Trials,
        jobs: Jobs,
        fields: Sequence[page.Field],
        refusal: Callable[[Sequence[str]], str],
        alive: Callable[[str], bool],
        server: Any,
    ) -> None:
        self.trials, self.jobs, self.fields = trials, jobs, fields
        self.refusal, self.alive = refusal, alive
        self._choices: tuple[Any, dict[str, list[str]]] = (None, {})
        self.app = dash.Dash(
            "dosimeter",
            server=server,
            assets_folder=str(Path(__file__).with_name("assets")),
            serve_locally=True,
            title="dosimeter",
            update_title="",
            on_error=_say,
            suppress_callback_exceptions=True,  # for the plot, which is not there at once
            meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        )
        self.app.index_string = self.app.index_string.replace("<html>", '<html lang="en">')
        self.app.layout = self.layout
        self._connect()

    def layout(self) -> Any:
        """The page as it is opened, with the first rows in it."""
        rows, told, wrong, trained = list[Any](), "", "", False
        try:
            rows, told = self._page(Asked(chosen=page.ONLY), dict(page.FIRST), [])
            trained = self.trials.trained
        except DataError as error:
            wrong = str(error)
        return page.whole(
            self.trials.folder.resolve().name, rows, told, self._version(), wrong=wrong, fields=self.fields,
            across="accuracy" if trained else "seconds",
        )  # fmt: skip

    def _connect(self) -> None:
        """Who is called when what changes."""
        app, chosen, version = self.app, Input({"choose": ALL}, "value"), Input("version", "data")
        once: dict[str, Any] = {"prevent_initial_call": True}
        app.clientside_callback(
            ClientsideFunction("explorer", "view"),
            [Output(name, "hidden") for name in ("list", "new", "trial", "shots", "page")],
            Input("url", "hash"),
        )
        app.clientside_callback(
            ClientsideFunction("explorer", "svg"), Output("svg", "title"), Input("svg", "n_clicks"), **once
        )
        # The second says that there is a page; the first alone would wait for a change.
        app.callback(Output({"choose": ALL}, "options"), [version, Input("list", "id")])(self.options)
        app.callback(
            [Output("rows", "children"), Output("told", "children"), Output("at", "data"), Output("asked", "data"),
             Output("banner", "children"),
             Output({"sort": ALL}, "children"), Output({"head": ALL}, "aria-sort")],
            [Input("text", "value"), chosen, Input("before", "n_clicks"), Input("next", "n_clicks"),
             Input({"sort": ALL}, "n_clicks"), version],
            [State("at", "data"), State("asked", "data"), State("picked", "data")], **once,
        )(self.turn)  # fmt: skip
        app.callback(
            [Output("picked", "data"), Output({"pick": ALL}, "value")],
            [Input({"pick": ALL}, "value"), Input("clear", "n_clicks")], State("picked", "data"), **once,
        )(self.pick)  # fmt: skip
        app.callback(
            [Output("drawn", "children"), Output("plotted", "children")],
            [Input("asked", "data"), Input("across", "value"), Input("up", "value"), Input("picked", "data"), version],
        )(self.plot)  # fmt: skip
        app.callback(Output("compared", "children"), Input("picked", "data"), **once)(self.compare)
        app.callback(Output("url", "hash", allow_duplicate=True), Input("plot", "clickData"), **once)(_clicked)
        app.callback(
            [Output("about", "children"), Output("gallery", "children"), Output("shots-told", "children"),
             Output("shot", "data"), Output("page", "children")],
            [Input("url", "hash"), Input("order", "value"), Input("said", "value"), Input("shots-before", "n_clicks"),
             Input("shots-next", "n_clicks"), version],
            State("shot", "data"), **once,
        )(self.show)  # fmt: skip
        app.callback(
            Output("file", "data"), [Input("csv", "n_clicks"), Input("csv-picked", "n_clicks")],
            [State("text", "value"), State({"choose": ALL}, "value"), State("picked", "data")], **once,
        )(self.export)  # fmt: skip
        app.callback(
            [Output("refused", "children"), Output("mine", "data"), Output("jobs", "children", allow_duplicate=True)],
            Input("start", "n_clicks"), State({"field": ALL}, "value"), **once,
            running=[(Output("start", "disabled"), True, False), (Output("start", "children"), "Checking", "Start")],
        )(self.start)  # fmt: skip
        app.callback(
            [Output("counts", "children"), Output("live", "children"), Output("jobs", "children"),
             Output("version", "data"), Output("url", "hash"), Output("mine", "data", allow_duplicate=True)],
            [Input("beat", "n_intervals"), Input({"stop": ALL}, "n_clicks")],
            [State("version", "data"), State("mine", "data")], prevent_initial_call="initial_duplicate",
        )(self.look)  # fmt: skip

    def _version(self) -> Any:
        """Something that changes whenever trials come, end or go."""
        try:
            return sorted(self.trials.counts().items())
        except DataError:
            return []

    def _page(self, asked: Asked, at: dict[str, Any], picked: Sequence[str]) -> tuple[list[Any], str]:
        """Rows of a page of the table, and which they are; a page that is not there is the last one."""
        asked = asked._replace(sort=str(at["sort"]), down=bool(at["down"]))
        at["page"] = max(0, at["page"])
        rows, many = self.trials.page(asked, most=ROWS, skip=at["page"] * ROWS)
        if many and not rows:
            at["page"] = (many - 1) // ROWS
            rows, many = self.trials.page(asked, most=ROWS, skip=at["page"] * ROWS)
        first = at["page"] * ROWS
        told = f"{first + 1:,} to {first + len(rows):,} of {many:,}" if rows else "No trials."
        return parts.rows_of(rows, picked), told

    def options(self, version: Any, _: str) -> list[list[str]]:
        if self._choices[0] != version or version is None:
            self._choices = (version, self.trials.choices())
        return [self._choices[1][name] for name in CHOICES]

    def turn(
        self, text: str | None, chosen: list[Any], _b: int, _n: int, _s: Any, _v: Any, at: dict[str, Any],
        before: Any, picked: list[str],
    ) -> Any:  # fmt: skip
        """Rows after a filter, a sort or a turn of the page; the plot follows where the filter is another."""
        by, words = ctx.triggered_id, ("model", "data", "defense", "attack")
        if isinstance(by, dict) and "sort" in by and ctx.triggered[0]["value"]:
            down = not at["down"] if at["sort"] == by["sort"] else by["sort"] not in words
            at = {"page": 0, "sort": by["sort"], "down": down}
        elif by != "version":
            at = {**at, "page": {"before": at["page"] - 1, "next": at["page"] + 1}.get(str(by), 0)}
        rows, told = self._page(_asked(text, chosen), at, picked)
        now = [text, chosen]
        return rows, told, at, no_update if now == before else now, "", *parts.arrows(at["sort"], at["down"])

    def pick(self, values: list[list[str]], _: int, picked: list[str]) -> Any:
        """Trials that are compared, those on other pages of the table among them."""
        if ctx.triggered_id == "clear":
            return [], [[] for _ in values]
        shown = [each["id"]["pick"] for each in ctx.inputs_list[0]]
        now = [digest for value in values for digest in value or []]
        found = [digest for digest in picked if digest not in shown or digest in now]
        found += [digest for digest in now if digest not in found]
        return found[:COMPARED] if found != picked else no_update, [no_update] * len(values)

    def plot(self, filters: list[Any], across: str, up: str, picked: list[str], _: Any) -> Any:
        if across not in figures.AXES or up not in figures.AXES:
            return no_update, no_update
        rows = self.trials.rows(_asked(*filters), most=POINTS, names=figures.NEEDED)
        rows += [row for row in self.trials.some(picked[:COMPARED]) if row["digest"] not in {r["digest"] for r in rows}]
        figure = figures.scatter(rows, across, up, picked)
        many = sum(len(trace["x"]) for trace in figure["data"] if trace["name"] != "compared")
        told = f"{many:,} of {len(rows):,} trials have both numbers. Click a point to see its pictures."
        if not many and across == "accuracy":
            told = "No model of these was trained with its defense, so none has an accuracy; choose another number."
        return page.graph(figure), told + (f" The {POINTS:,} newest are drawn." if len(rows) >= POINTS else "")

    def compare(self, picked: list[str]) -> Any:
        faces = {}
        for digest in picked:
            for record in self.trials.records(digest, most=1, order="most exposed first"):
                if record is not None:
                    faces[digest] = html.Div(parts.pictures(self.trials.folder, digest, record), className="pair face")
        return parts.compared(self.trials.some(picked), faces)

    def show(
        self, hash_: str | None, order: str, said: str | None, _b: int, _n: int, _v: Any, shot: dict[str, Any]
    ) -> Any:
        """One trial: what it is, its pictures, or its page."""
        asked = unquote(hash_ or "").removeprefix("#")
        digest, on_page = asked.removesuffix("/page"), asked.endswith("/page")
        if digest in ("", "new"):
            return None, None, "", {"page": 0}, None
        found = self.trials.trial(digest)
        if found is None:
            return html.P(f"There is no trial {digest[:64]!r} in this store."), None, "", {"page": 0}, None
        head = page.about(found, page=on_page)
        if on_page:
            frame = html.Iframe(src=f"/page/{digest}/", title="The page of this trial", className="frame")
            return head, None, "", {"page": 0}, frame if page.has_page(found) else None
        by, many = ctx.triggered_id, self.trials.images(digest, said=said)
        at = shot["page"] if shot.get("of") == digest and by not in ("order", "said") else 0
        at += {"shots-next": 1, "shots-before": -1}.get(str(by), 0)
        at = min(max(0, at), max(0, many - 1) // SHOTS)
        records = self.trials.records(digest, most=SHOTS, skip=at * SHOTS, order=order, said=said)
        cards = [parts.card(self.trials.folder, digest, record) for record in records]
        told = f"{at * SHOTS + 1:,} to {at * SHOTS + len(cards):,} of {many:,} images" if cards else "No images."
        return head, cards, told, {"page": at, "of": digest}, None

    def export(self, _a: int, _b: int, text: str | None, chosen: list[Any], picked: list[str]) -> Any:
        """Trials as CSV: all that the filters leave, or those that are compared."""
        rows = self.trials.export(_asked(text, chosen), picked if ctx.triggered_id == "csv-picked" else None)
        into = io.StringIO()
        writer = csv.DictWriter(into, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writerow({name: plain.cell(name) for name in writer.fieldnames})
        writer.writerows({key: plain.cell(value) for key, value in row.items()} for row in rows)
        return {"content": into.getvalue(), "filename": "trials.csv", "type": "text/csv"}

    def start(self, clicks: int, given: list[str | None]) -> Any:
        """Check a form as the command line would, and have it run."""
        if not clicks:
            return no_update, no_update, no_update
        said = [(field.name, (value or "").strip()) for field, value in zip(self.fields, given, strict=True)]
        words = [f"--{name.replace('_', '-')}={value}" for name, value in said if value]
        if wrong := self.refusal(words):
            return wrong, no_update, no_update
        try:
            job = self.jobs.add(words)
        except DosimeterError as error:
            return str(error), no_update, no_update
        return "", job.key, self._jobs()

    def look(self, _: Any, _s: Any, version: Any, mine: int | None) -> Any:
        """What runs by now; when the audit is done that was started here, its page opens."""
        by = ctx.triggered_id
        if isinstance(by, dict) and "stop" in by and ctx.triggered[0]["value"]:
            self.jobs.stop(by["stop"])
        now, running = self._version(), self.trials.running()
        alive = {str(row["owner"]): self.alive(str(row["owner"])) for row in running}
        counts = [html.Span([html.B(f"{many:,}"), f" {status}"[:20]]) for status, many in now] or "no trials yet"
        job = self.jobs.get(mine)
        to, left = no_update, no_update
        if job is not None and job.over:
            to, left = _then(job), None
        live = parts.live(running, alive, self.jobs.all())
        same = [list(each) for each in now] == [list(each) for each in version or []]
        return counts, live, self._jobs(), no_update if same else now, to, left

    def _jobs(self) -> list[Any]:
        return [parts.job_line(job) for job in reversed(self.jobs.all()[-8:])]


def _asked(text: str | None, chosen: Sequence[Any]) -> Asked:
    given = {name: str(value) for name, value in zip(CHOICES, chosen, strict=True) if value}
    return Asked(text=(text or "")[:200], chosen=given)


def _clicked(data: Any) -> Any:
    """The address of the trial whose point was clicked."""
    points = (data or {}).get("points") or [{}]
    digest = points[0].get("customdata")
    return f"#{digest}" if isinstance(digest, str) else no_update


def _then(job: Job) -> Any:
    """Where to go when an audit is over."""
    if job.status != DONE or not job.digests:
        return no_update
    return f"#{job.digests[0]}/page" if len(job.digests) == 1 else "#"


def _say(error: Exception) -> Any:
    """What went wrong, on the page; what is no fault of the store is also for the terminal."""
    if isinstance(error, DosimeterError):
        said = str(error)
    else:
        traceback.print_exception(error, file=sys.stderr)
        said = "This could not be shown, by a mistake of the program's own; the terminal says more."
    dash.set_props("banner", {"children": said})
    outputs = ctx.outputs_list  # a list where there are several, in which those of a pattern are a list in turn
    if not isinstance(outputs, list):
        return no_update
    return [[no_update] * len(each) if isinstance(each, list) else no_update for each in outputs]
