"""A result on a terminal."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dosimeter.auditing import Result
from dosimeter.reports.words import (
    clean,
    count,
    duration,
    grants,
    headline,
    interruption,
    labels_said,
    panel,
    rows,
    shares,
    verdict,
)


def print_result(result: Result, console: Console, *, where: Path | None = None) -> None:
    """Print the verdict, scores, rates and threat model; `where` is the report's place."""
    # Every text is a Text: names of the user's are never read as markup.
    say = _Say(console)
    s = result.settings
    about = f"{count(s['victims'], 'update')} of {count(s['batch'], 'image')}, defense {s['defense']}"
    about += "" if result.threat.server == "honest" else f", server {result.threat.server}"
    said = f"{result.verdict or verdict(result)} {labels_said(result)}".strip()
    body = Text.assemble(say(headline(result), "bold"), "\n", say(about, "dim"), "\n\n", say(said))
    console.print(Panel(body, box=box.ROUNDED, expand=False, padding=(0, 1)))
    if result.panel:
        console.print(_panel(result, say))
    console.print(_scores(result, say))
    console.print(_rates(result, say))
    known = "; ".join(f"{grant.what.lower()} {grant.value}" for grant in grants(result.threat))
    console.print(Text.assemble(("threat model  ", "dim"), say(known)))
    console.print(Text.assemble(("status        ", "dim"), say(f"{result.status} in {duration(result.seconds)}")))
    if stopped := interruption(result):
        console.print(say(stopped, "bold yellow"))
    if where is not None:
        console.print(Text.assemble(("report        ", "dim"), say(str(where))), soft_wrap=True)


class _Say:
    """Texts that the console's encoding can show."""

    def __init__(self, console: Console) -> None:
        self.encoding = console.encoding

    def __call__(self, text: str, style: str = "") -> Text:
        shown = clean(text).encode(self.encoding, "replace").decode(self.encoding)
        return Text(shown, style=style)


def _panel(result: Result, say: _Say) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("attack", "kind", "images read", "SSIM", "worst victim"):
        table.add_column(say(name))
    for one in panel(result):
        table.add_row(say(one.name, "bold"), say(one.role), say(one.read), say(one.ssim), say(one.worst))
    return table


def _scores(result: Result, say: _Say) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(say("score"))
    for name in ("mean ± std", "median", "worst victim", "without the update"):
        table.add_column(say(name), justify="right")
    for row in rows(result):
        cells = (row.name, f"{row.mean} ± {row.std}", row.median, row.worst, row.baseline)
        table.add_row(*(say(cell) for cell in cells))
    return table


def _rates(result: Result, say: _Say) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("rate", "with its 95 % interval", "of what"):
        table.add_column(say(name))
    for share in shares(result):
        table.add_row(say(share.name), say(share.text, "bold"), say(share.note, "dim"))
    return table
