"""One self-contained page: it opens offline, runs one small script of its own and asks nothing of the network."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from dosimeter import files
from dosimeter.auditing import Captured, Outcome, Result, Survey
from dosimeter.progress import duration
from dosimeter.reports import (
    captured,
    charts,
    dosed,
    evidence,
    figures,
    gallery,
    opening,
    provenance,
    sections,
    survey,
    traces,
)
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.sections import Part
from dosimeter.reports.words import brief, count, headline, ordered
from dosimeter.store import attack_folder, update_folder

TITLE, PAGE, REDACTED = "Gradient leakage audit", "report.html", "report-redacted.html"


FAR = 1e-3
"""Share of a search's last loss below which that of the client's own step is too far down to be drawn beside it."""


class Beside(NamedTuple):
    """What a page shows beside its result, and what it leaves out."""

    dose: Mapping[str, Any] | None = None  # what `dose.json` of the run has
    digests: Mapping[str, str] = {}  # of the files of the run
    redact: bool = False  # no original and no reconstruction

    @classmethod
    def of(cls, folder: Path, *, redact: bool = False) -> "Beside":
        """What lies in a run's folder."""
        return cls(dosed.read(folder), provenance.digests(folder), redact)


def write_page(result: Outcome | Survey, path: str | Path, *, title: str = TITLE, beside: Beside | None = None) -> None:
    """Write the report of a result to one HTML file."""
    files.replace(path, render(result, title=title, beside=beside))


def write_pages(result: Outcome | Survey, folder: Path, *, title: str = TITLE, redact: bool = False) -> Path:
    """The report of a run in its folder, those of a panel's attacks or a federation's updates below it; says where.

    A page without pictures is one alone, beside the other.
    """
    if redact:
        write_page(result, folder / REDACTED, title=title, beside=Beside.of(folder, redact=True))
        return folder / REDACTED
    inner: list[tuple[str, Outcome]] = []
    if isinstance(result, Survey):
        inner += [(update_folder(key), each) for key, each in result.results.items()]
    elif isinstance(result, Result):
        tried = [(attack_folder(number, trial.attack), trial.result) for number, trial in enumerate(result.panel, 1)]
        inner += [(name, each) for name, each in tried if each is not None]
    for name, each in inner:
        write_page(each, folder / name / PAGE, title=title, beside=Beside.of(folder / name))
    write_page(result, folder / PAGE, title=title, beside=Beside.of(folder))
    return folder / PAGE


def render(result: Outcome | Survey, *, title: str = TITLE, beside: Beside | None = None) -> str:
    """The page as text."""
    beside = beside or Beside()
    if isinstance(result, Survey):
        main = survey.main(result, redact=beside.redact)
    elif isinstance(result, Captured):
        main = captured.main(result, redact=beside.redact)
    else:
        main = _main(result, beside)
    parts = (_header(result, title), tag("main", *main), _footer(result, redact=beside.redact))
    return sections.document(f"{title}: {headline(result)}", *parts)


def _header(result: Outcome | Survey, title: str) -> Html:
    s = result.settings
    if isinstance(result, Survey):
        clients, rounds = count(len(result.clients), "client"), count(len(result.rounds), "round")
        what = [tag("b", s["model"]), f" · kept updates of {clients} in {rounds}"]
    elif isinstance(result, Captured):
        what = [tag("b", s["model"]), f" · a captured update of {count(s['batch'], 'image')}"]
    else:
        what = [tag("b", s["model"]), " on ", tag("b", s["data"]), f" · {count(s['victims'], 'update')}"]
        what.append(f" of {count(s['batch'], 'image')} each")
        if defense := brief(s.get("defense")):
            what += [" · defense ", tag("b", defense)]
    return sections.header(title, *what, f" · attacked with {s['attack_name']}")


def _main(result: Result, beside: Beside) -> list[Html]:
    """The parts in reading order."""
    parts = [
        Part("threat", "Threat model", sections.threat(result)),
        Part("attacks", "Attacks", sections.panel(result)) if result.panel else None,
        Part("gallery", "All images", gallery.gallery(result, redact=beside.redact)),
        Part("success", "How much is read", _success(result)),
        Part("search", "What the attack did", _search(result)),
        Part("dose", "Dose", dosed.beside(beside.dose)) if beside.dose else None,
        Part("scores", "Scores", sections.scores(result)),
        Part("settings", "Settings", sections.settings(result)),
        Part("again", "Run it again", provenance.again(result, beside.digests)),
        Part("cite", "How to cite", provenance.cite(result)),
    ]
    return [sections.banners(result), opening.opening(result, redact=beside.redact), *sections.laid(parts)]


def _success(result: Result) -> Html:
    """Success over thresholds, a line an attack, and images by SSIM with and without the update."""
    values, floors = ([getattr(each, key) for each in result.records] for key in ("ssim", "blind_ssim"))
    threshold = result.scores.success.threshold
    ran = [(t.attack, t.result) for t in ordered(result) if t.result is not None][: figures.COLOURS - 1]
    series = {name: [each.ssim for each in found.records] for name, found in ran}
    series = series or {str(result.settings["attack_name"]): values}
    keys = [("with", "with the update"), ("hit", "with the update, read"), ("without", "without the update")]
    legend = join([tag("span", tag("i", class_=f"swatch {key}"), text, class_="key") for key, text in keys])
    lines = join(
        [charts.legend(list(series)), tag("span", tag("i", class_="swatch blind"), charts.WITHOUT, class_="key")]
    )
    words = "The share of images whose SSIM reaches a threshold, with the 95 % interval of the first attack. "
    return charts.side_by_side(
        sections.drawing(figures.success(series, floors, threshold), "Success over thresholds.", words, lines),
        sections.drawing(
            figures.spread(values, floors, threshold),
            "Images by SSIM.",
            "Upwards with the update, downwards without it. ",
            legend,
        ),
    )


def _search(result: Result) -> Html:
    """The matching loss on its way down, or what was solved for in closed form."""
    solved = [record.determined for record in result.records if record.determined]
    drawn = []
    if len(result.curve.steps) > 1 or not solved:
        victims = len(result.victims.ids)
        which = "every victim" if (n := figures.every(victims)) == 1 else f"one in {n:,} of the {victims:,} victims"
        truths = [record.truth for record in result.records if record.truth is not None]
        lines = (
            f"How far the reconstruction's update is from the observed one; a thin line for {which}, the median bold."
        )
        truth, last = median(truths) if truths else 0.0, median(result.curve.match[:, -1].tolist())
        if truth > FAR * last:
            lines += " Dashed: the client's own step, which a search that does its work comes down to."
        elif truths:
            lines += " The client's own step has a loss near 0."
            truth = 0.0
        drawn.append(sections.drawing(figures.curves(result.curve, truth), "Matching loss.", lines))
    names = {kind: said.name for kind, said in evidence.KINDS.items()}
    if cloud := figures.matches(result.records, names, result.scores.success.threshold):
        keys = [
            tag("span", tag("i", class_=f"swatch {said.name}"), kind, class_="key")
            for kind, said in evidence.KINDS.items()
            if kind and result.scores.evidence.get(kind)
        ]
        words = "A point an image; those on the left explain the update best. Choose one to see its pictures. "
        drawn.append(sections.drawing(cloud, "Match and SSIM.", words, *keys))
    drawn += traces.traces(result.curve.steps, getattr(result.curve, "traces", {}))
    if solved:
        layers = {name: [each[name] for each in solved if name in each] for name in solved[0]}
        means = {name: sum(each) / len(each) for name, each in layers.items()}
        words = "Share of the numbers at a layer's input that were solved for, on average."
        drawn.append(sections.drawing(charts.bars(means, x="share determined"), "Solved layer by layer.", words))
    return charts.side_by_side(*drawn)


def _footer(result: Outcome | Survey, *, redact: bool) -> Html:
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    status = f"{result.status} in {duration(result.seconds)}, written {written}"
    warning = "This page shows the private images of the victims."
    if isinstance(result, Survey) or result.originals is None:
        warning = "This page shows what was read out of somebody's update, which may be their private images."
    if redact:
        warning = f"{opening.LEFT_OUT} Labels and places in the data stand."
    return tag("footer", tag("p", status), tag("p", warning))
