"""A result on a terminal."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dosimeter.auditing import Captured, Outcome, Result, Survey
from dosimeter.auditing.captured.weighing import weigh_captured
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.progress import duration
from dosimeter.reports import standing, survey
from dosimeter.reports.words import (
    clean,
    count,
    grants,
    headline,
    interruption,
    labels_said,
    panel,
    rows,
    shares,
    verdict,
)


def print_result(result: Outcome | Survey, console: Console, *, where: Path | None = None) -> None:
    """Print the verdict, scores, rates and threat model; `where` is the report's place."""
    # Every text is a Text: names of the user's are never read as markup.
    say = _Say(console)
    if isinstance(result, Survey):
        _print_survey(result, console, say)
    elif isinstance(result, Captured):
        _print_captured(result, console, say)
    else:
        _print_scores(result, console, say)
    if not isinstance(result, Survey):
        known = "; ".join(f"{grant.what.lower()} {grant.value}" for grant in grants(result.threat))
        console.print(Text.assemble(("threat model  ", "dim"), say(known)))
    console.print(Text.assemble(("status        ", "dim"), say(f"{result.status} in {duration(result.seconds)}")))
    bewares = () if isinstance(result, Survey) else (result.unmeasured, interruption(result))
    for beware in filter(None, bewares):
        console.print(say(beware, "bold yellow"))
    if where is not None:
        console.print(Text.assemble(("report        ", "dim"), say(str(where))), soft_wrap=True)


def _print_captured(result: Captured, console: Console, say: "_Say") -> None:
    """What is certain, what shadows say and, where the truth was given, the scores."""
    s = result.settings
    about = f"a captured update of {count(s['batch'], 'image')}, defense {s['defense']}"
    told = f"{standing.said(result)} {'' if result.judged else standing.UNSEEN}".strip()
    head = (say(headline(result), "bold"), "\n", say(about, "dim"), "\n\n")
    body = Text.assemble(*head, say(weigh_captured(result).sentence, "bold"), "\n\n", say(told))
    console.print(Panel(body, box=box.ROUNDED, expand=False, padding=(0, 1)))
    console.print(_rows(("certain", "how much", "why"), standing.facts(result), say))
    if shares_ := standing.rates(result):
        console.print(_rows(("shadows", "with its 95 % interval", "of what"), shares_, say))
    if result.judged is not None:
        console.print(say(f"Beside the truth: {verdict(result.judged)}"))
        console.print(_scores(result.judged, say))
        console.print(_rates(result.judged, say))


def _print_survey(result: Survey, console: Console, say: "_Say") -> None:
    """The verdict, clients by rounds, and what was tried on whom."""
    found = result.verdict
    about = f"{count(len(result.entries), 'update')} of {count(len(result.clients), 'client')}"
    told = f"{found.sentence}\n\n{survey.worst(result)}"
    body = Text.assemble(say(headline(result), "bold"), "\n", say(about, "dim"), "\n\n", say(told))
    console.print(Panel(body, box=box.ROUNDED, expand=False, padding=(0, 1)))
    head, rows_ = survey.grid(result)
    console.print(_rows(head, rows_, say, styles=("bold",)))
    head = ["client", "update", "tried", "not tried, or doubtful"]
    console.print(_rows(head, [row[:4] for row in survey.tried(result)], say, styles=("bold", "dim")))
    if found.doubt and found.kind is Kind.LEAKS:
        console.print(say(f"If nothing leaked, that would be no evidence: {found.doubt}.", "bold yellow"))


def _print_scores(result: Result, console: Console, say: "_Say") -> None:
    """The verdict, the panel where there is one, scores and rates."""
    s = result.settings
    about = f"{count(s['victims'], 'update')} of {count(s['batch'], 'image')}, defense {s['defense']}"
    about += "" if result.threat.server == "honest" else f", server {result.threat.server}"
    found = weigh(result)
    said = "\n".join([result.verdict or verdict(result), *filter(None, [labels_said(result)]), *found.details])
    said += f"\nTo settle it: {found.settles}" if found.settles else ""
    head = (say(headline(result), "bold"), "\n", say(about, "dim"), "\n\n", say(found.sentence, "bold"))
    body = Text.assemble(*head, "\n\n", say(said))
    console.print(Panel(body, box=box.ROUNDED, expand=False, padding=(0, 1)))
    if result.panel:
        console.print(_panel(result, say))
    console.print(_scores(result, say))
    console.print(_rates(result, say))


class _Say:
    """Texts that the console's encoding can show."""

    def __init__(self, console: Console) -> None:
        self.encoding = console.encoding

    def __call__(self, text: str, style: str = "") -> Text:
        shown = clean(text).encode(self.encoding, "replace").decode(self.encoding)
        return Text(shown, style=style)


def _panel(result: Result, say: _Say) -> Table:
    rows_ = [(one.name, one.role, one.read, one.ssim, one.worst, one.time) for one in panel(result)]
    return _rows(("attack", "kind", "images read", "SSIM", "worst", "time"), rows_, say, styles=("bold",))


def _scores(result: Result, say: _Say) -> Table:
    head = ["score", "mean ± std", "median", "worst victim", "without the update"]
    cells = [[row.name, f"{row.mean} ± {row.std}", row.median, row.worst, row.baseline] for row in rows(result)]
    if result.scores.transformed:
        head = ["score", "as trained on", "median", "worst", "without the update", "originals"]
        cells = [[*cell, row.originals] for cell, row in zip(cells, rows(result), strict=True)]
    return _rows(head, cells, say, styles=(), right=True)


def _rates(result: Result, say: _Say) -> Table:
    return _rows(("rate", "with its 95 % interval", "of what"), shares(result), say)


def _rows(
    head: Sequence[str],
    rows_: Sequence[Sequence[str]],
    say: _Say,
    *,
    styles: Sequence[str] = ("", "bold", "dim"),
    right: bool = False,
) -> Table:
    """A table, by default of what, how much and why; columns after the first may stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0) if len(head) > 5 else (0, 1))
    for at, name in enumerate(head):
        table.add_column(say(name), justify="right" if right and at else "left")
    for row in rows_:
        table.add_row(*(say(cell, style) for cell, style in zip_longest(row, styles, fillvalue="")))
    return table
