"""What `dosimeter reproduce` writes of an item: its table, numbers, figures and pictures as small files."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.markup import escape

from dosimeter import files, papers
from dosimeter.cli.console import command, err
from dosimeter.papers.field import DEFENSES, MODELS, Place
from dosimeter.progress import duration
from dosimeter.reports import charts, heat
from dosimeter.reports.grids import write_grid
from dosimeter.reports.markup import Html
from dosimeter.reports.raster import write_png
from dosimeter.sweeps import Store
from dosimeter.sweeps.costs import machine

Found = Sequence[papers.Measured]
Lines = Mapping[str, Sequence[tuple[float, float]]]


def write(
    item: papers.Item, found: Found, text: str, folder: Path, scale: papers.Scale, *, store: Path, redact: bool = False
) -> None:
    """NAME.md with command, machine and time; NAME.csv and NAME.json with numbers; figures as SVG and PNG.

    Originals and reconstructions are among these unless `redact`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = item.stem(scale)
    seconds = sum(row.seconds for row in found)
    drawn = figures(item, found)
    shown = [f"![{what}]({name}{_tail(what)}.svg)" for what in drawn]
    if not redact and _grid(item, found, folder / f"{name}-pictures.png", store):
        shown.append(f"![pictures]({name}-pictures.png)")
    took = f"{duration(seconds)} of trials, each counted for every row that it is part of"
    about = f"{machine()}; {took}; {datetime.now(UTC):%Y-%m-%d}."
    parts = [f"# {item.key}, {scale}", f"    {command()}", about, text, *shown]
    files.replace(folder / f"{name}.md", "\n\n".join(parts) + "\n")
    document = papers.document(item, found, scale) | {"command": command(), "machine": machine(), "seconds": seconds}
    files.replace_json(folder / f"{name}.json", document)
    files.replace(folder / f"{name}.csv", numbers(item, found))
    for what, figure in drawn.items():
        charts.write_svg(folder / f"{name}{_tail(what)}.svg", figure)
        write_png(folder / f"{name}{_tail(what)}.png", figure)
    lines = {f"{', '.join(row.name)}; {what}": each for row in found for what, each in row.series.items()}
    if lines:
        files.replace(folder / f"{name}-lines.csv", points(lines))
    err.print(escape(f"table   {folder / name}.md"), highlight=False, soft_wrap=True)


def write_claims(table: str, folder: Path, scale: papers.Scale) -> None:
    """claims.md: what can be quoted, and how it came about."""
    folder.mkdir(parents=True, exist_ok=True)
    about = (
        f"Judged at the scale {scale} by rows that were run; what was cut of a table stands below it. *Held* is a "
        "claim that all of its rows support, *not held* one that a row contradicts, *not tested* any other."
    )
    parts = ["# What the five papers claim, and what was found", f"    {command()}", about, table]
    files.replace(folder / f"claims-{scale}.md", "\n\n".join(parts) + "\n")
    err.print(escape(f"claims  {folder / f'claims-{scale}.md'}"), highlight=False, soft_wrap=True)


def heat_of(places: Sequence[Place]) -> Html:
    """The map: a row a defense, two columns a model."""
    columns = [f"{model}, {'trained' if trained else 'untrained'}" for model in MODELS for trained in (False, True)]
    values = {
        (each.defense, f"{each.model}, {'trained' if each.trained else 'untrained'}"): (
            each.read[0] / max(1, each.read[1]),
            _said(each),
        )
        for each in places
        if not each.why_not
    }
    rows = [name for name in DEFENSES if any(key[0] == name for key in values)]
    return heat.grid(values, rows, [name for name in columns if any(key[1] == name for key in values)])


def _said(place: Place) -> str:
    """In a cell; that nothing was read says something of a defense only where all images are hidden."""
    hits, of = place.read
    return f"{hits} of {of} read" if hits else "hidden" if place.hidden == of else "undecided"


def _tail(what: str) -> str:
    """Of a figure's file; the only one of an item has none."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in what.lower())
    return f"-{kept}" if kept else ""


def numbers(item: papers.Item, found: Found) -> str:
    """Measured and published numbers, a row a line."""
    out = io.StringIO()
    pen = csv.writer(out, lineterminator="\n")
    each = [f"{name}{tail}" for name in item.quantities for tail in ("", " spread", " published", " published spread")]
    last = ("strongest attack", "its ssim", "read", "of", "verdict", "evidence", "seconds", "not run")
    pen.writerow([*item.heading, *each, *last])
    published = {case.name: case for case in item.cases}
    for row in found:
        cells: list[object] = []
        for name in item.quantities:
            for value in (row.values.get(name), published[row.name].value(name)):
                cells += ["", ""] if value is None else [f"{value.mean:g}", _short(value.spread)]
        read = (row.read_by.hits, row.read_by.of) if row.read_by else ("", "")
        best = _short(row.strongest.mean if row.strongest else None)
        pen.writerow(
            [*row.name, *cells, row.by, best, *read, row.verdict, row.evidence, _short(row.seconds), row.why_not]
        )
    return out.getvalue()


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def points(lines: Mapping[str, Lines], most: int = 20) -> str:
    """What lines go through, of many points so many evenly, the first and the last among them."""
    out = io.StringIO()
    pen = csv.writer(out, lineterminator="\n")
    pen.writerow(["figure", "line", "x", "y"])
    for figure, each in lines.items():
        for name, places in each.items():
            last = len(places) - 1
            shown = range(last + 1) if last < most else sorted({at * last // (most - 1) for at in range(most)})
            pen.writerows([figure, name, f"{places[at][0]:g}", f"{places[at][1]:.6g}"] for at in shown)
    return out.getvalue()


def figures(item: papers.Item, found: Found) -> dict[str, Html]:
    """As the paper draws it, by what is drawn: bars, lines, or accuracy against what stays hidden; none of pictures."""
    if item.figure == "bars" and (values := bars(item, found)):
        return {"": charts.bars(values, x=f"mean {item.judged}", threshold=item.threshold)}
    if item.figure == "tradeoff":
        return {"": _tradeoff(item, found)}
    if item.figure == "lines":
        return {"": _lines(_over(item, found), x=item.heading[-1], y=item.quantities[0])}
    if item.figure == "series":
        return _series(found)
    return {}


def _lines(series: Lines, *, x: str, y: str) -> Html:
    """With names in the figure where they are few; those of more are shown by pointing at a line."""
    return charts.lines(series, x=x, y=y, keys=1 < len(series) <= 8)


def bars(item: papers.Item, found: Found) -> dict[str, float]:
    """The paper's score of every row."""
    return {", ".join(row.name): row.values[item.judged].mean for row in found if item.judged in row.values}


def _tradeoff(item: papers.Item, found: Found) -> Html:
    """A colour a defense; the paper's own attack, and the strongest beside it."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        accuracy, ssim = row.values.get("accuracy"), row.values.get(item.judged)
        if accuracy and ssim:
            series.setdefault(row.name[-1], []).append((accuracy.mean, 1 - ssim.mean))
        if accuracy and row.strongest:
            series.setdefault(f"{row.name[-1]}, strongest", []).append((accuracy.mean, 1 - row.strongest.mean))
    return charts.scatter(series, x="accuracy in %", y="1 - SSIM", threshold=1 - item.threshold)


def _over(item: papers.Item, found: Found) -> dict[str, list[tuple[float, float]]]:
    """A line for every name but its last word, which is a number."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        value = row.values.get(item.quantities[0])
        if value is not None:
            lines.setdefault(", ".join(row.name[:-1]), []).append((float(row.name[-1]), value.mean))
    return lines


def _series(found: Found) -> dict[str, Html]:
    """What rows recorded, a figure for each thing of each row; rows of one line share a figure."""
    drawn: dict[str, Html] = {}
    single: dict[str, dict[str, Sequence[tuple[float, float]]]] = {}
    for row in found:
        for what, each in row.series.items():
            if what == "entries sent":
                continue
            if what == "distribution":
                shown = {", ".join(row.name): each["behind batch norm"], "pixels": each["pixels"]}
                single.setdefault(what, {}).update(shown)
            elif len(each) == 1:
                single.setdefault(what, {}).update(each)
            else:
                drawn[f"{', '.join(row.name)} {what}"] = _lines(each, x="step", y=what)
    across = {"distribution": "standardised value"}
    return drawn | {what: _lines(each, x=across.get(what, "step"), y=what) for what, each in single.items()}


def _grid(item: papers.Item, found: Found, path: Path, store: Path) -> bool:
    """Originals and what the paper's attack makes of them, row by row."""
    kept = [row for row in found if row.digest]
    if not kept:
        return False
    rows: list[tuple[str, torch.Tensor]] = []
    last: torch.Tensor | None = None
    with Store(store, create=False) as trials:
        for row in kept:
            result = trials.result(row.digest)
            truth = result.victims.images.flatten(0, 1)
            if last is None or last.shape != truth.shape or not torch.equal(last, truth):
                rows.append(("original", truth))
            last = truth
            rows.append((", ".join(row.name), result.images.flatten(0, 1).clamp(0, 1)))
    write_grid(path, rows)
    return True
