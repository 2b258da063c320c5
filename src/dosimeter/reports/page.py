"""One self-contained page: it opens offline, runs no script and asks nothing of the network."""

import re
from datetime import UTC, datetime
from pathlib import Path

from dosimeter import files
from dosimeter.auditing import Captured, Outcome, Result, Survey
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.progress import duration
from dosimeter.reports import captured, figures, gallery, sections, survey
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.words import (
    count,
    headline,
    labels_said,
    meaning,
    verdict,
)
from dosimeter.store import attack_folder, update_folder

TITLE, PAGE = "Gradient leakage audit", "report.html"


def write_page(result: Outcome | Survey, path: str | Path, *, title: str = TITLE) -> None:
    """Write the report of a result to one HTML file."""
    files.replace(path, render(result, title=title))


def write_pages(result: Outcome | Survey, folder: Path, *, title: str = TITLE) -> Path:
    """The report of a run in its folder, those of a panel's attacks or a federation's updates below it; says where."""
    for key, each in result.results.items() if isinstance(result, Survey) else ():
        write_page(each, folder / update_folder(key) / PAGE, title=title)
    for number, trial in enumerate(result.panel if isinstance(result, Result) else (), 1):
        if trial.result is not None:
            write_page(trial.result, folder / attack_folder(number, trial.attack) / PAGE, title=title)
    write_page(result, folder / PAGE, title=title)
    return folder / PAGE


def render(result: Outcome | Survey, *, title: str = TITLE) -> str:
    """The page as text."""
    if isinstance(result, Survey):
        main = survey.main(result)
    else:
        main = captured.main(result) if isinstance(result, Captured) else _main(result)
    parts = (_header(result, title), tag("main", *main), _footer(result))
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
    return tag(
        "header",
        tag("p", "dosimeter", class_="brand"),
        tag("h1", title),
        tag("p", *what, f", attacked with {s['attack_name']}", class_="about"),
    )


def _main(result: Result) -> list[Html]:
    """The sections in reading order."""
    found = weigh(result)
    words = (
        tag("h2", *_unbroken(found.sentence)),
        tag("p", *_unbroken(" ".join(found.details))) if found.details else Html(),
        tag("p", "To settle it: ", tag("code", found.settles)) if found.settles else Html(),
        tag("p", *_unbroken(result.verdict or verdict(result))),
        tag("p", f"{labels_said(result)} {meaning(result)}".strip()),
    )
    return [
        sections.banners(result),
        tag("section", *words, sections.tiles(result), class_=_level(result)),
        sections.section("panel", "All attacks that were tried", sections.panel(result)) if result.panel else Html(),
        sections.section("attacks", "What every attack saw", gallery.every_attack(result)) if result.panel else Html(),
        sections.section("highlights", "What the attack saw", gallery.highlights(result)),
        sections.section("scores", "Scores", sections.scores(result)),
        sections.section("figures", "How it went", _figures(result)),
        sections.section("threat", "What the attacker was granted", sections.threat(result)),
        sections.section("settings", "Settings", sections.settings(result)),
        sections.section("gallery", "All images", gallery.gallery(result)),
        sections.section("again", "Run it again", sections.rerun(result)),
    ]


def _unbroken(text: str) -> list[str]:
    """A sentence in which no line ends within a percentage."""
    pieces = re.split(r"([\d.]+(?:-[\d.]+)? %)", text)
    return [tag("span", piece, class_="key") if k % 2 else piece for k, piece in enumerate(pieces)]


def _level(result: Result) -> str:
    """How loud the verdict is: it leaks, that cannot be told, or it was not shown."""
    return {Kind.LEAKS: "verdict loud", Kind.INCONCLUSIVE: "verdict warm"}.get(weigh(result).kind, "verdict calm")


def _figures(result: Result) -> Html:
    values, floors = ([getattr(each, key) for each in result.records] for key in ("ssim", "blind_ssim"))
    victims = len(result.victims.ids)
    drawn = "every victim" if (n := figures.every(victims)) == 1 else f"one in {n:,} of the {victims:,} victims"
    keys = [("with", "with the update"), ("hit", "with the update, read"), ("without", "without the update")]
    legend = join([tag("span", tag("i", class_=f"swatch {key}"), text, class_="key") for key, text in keys])
    lines = f"How far the reconstruction's update is from the observed one; a thin line for {drawn}, the median bold."
    histogram = figures.spread(values, floors, result.scores.success.threshold)
    return tag(
        "div",
        sections.drawing(histogram, "Images by SSIM.", "Upwards with the update, downwards without it. ", legend),
        sections.drawing(figures.curves(result.curve), "Matching loss.", lines),
        class_="figures",
    )


def _footer(result: Outcome | Survey) -> Html:
    places = " · ".join(f"{name} {value}" for name, value in result.environment.items())
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    status = f"{result.status} in {duration(result.seconds)}, written {written}"
    warning = "This page shows the private images of the victims."
    if isinstance(result, Survey) or result.originals is None:
        warning = "This page shows what was read out of somebody's update, which may be their private images."
    return tag("footer", tag("p", status), tag("p", places), tag("p", warning))
