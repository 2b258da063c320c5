"""`dosimeter reproduce`: tables and figures of the five papers, measured beside published."""

import json
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from dosimeter import files, papers
from dosimeter.cli import options
from dosimeter.cli.console import command, err, out
from dosimeter.cli.parts import going_on, live
from dosimeter.errors import SettingError
from dosimeter.sweeps.places import place_of
from dosimeter.sweeps.store import check_folder


def run(asked: options.Reproduce) -> None:
    """List items, judge claims, or run one item or all."""
    if asked.list:
        _list()
        return
    if not asked.claims and asked.name is None:
        raise SettingError("Expected the name of a table or figure, got none; see dosimeter reproduce --list.")
    files.check_writable(asked.out)
    check_folder(asked.out)
    place_of(asked.on)  # which refuses a place that is none
    names = list(papers.ITEMS) if asked.name == "all" else [papers.find(asked.name).key] if asked.name else []
    for name in names:
        _one(papers.ITEMS[name], asked)
    if asked.claims:
        _claims(asked)


def _list() -> None:
    table = Table("item", "what it shows", "rows", box=None, pad_edge=False)
    for key, item in papers.ITEMS.items():
        table.add_row(key, escape(item.about), str(len(item.cases)))
    out.print(table)


def _one(item: papers.Item, asked: options.Reproduce) -> None:
    scale: papers.Scale = asked.scale.value
    with going_on(asked.out), live() as tell:
        found = papers.reproduce(item, asked.out, scale=scale, ours=asked.ours, on=asked.on, told=tell)
    text = papers.markdown(item, found, scale)
    out.print(f"{item.key}, {scale}\n", highlight=False)
    out.print(text, markup=False, highlight=False, soft_wrap=True)
    if asked.results:
        _write(item, found, text, asked.results, scale)


def _write(item: papers.Item, found: list[papers.Measured], text: str, folder: Path, scale: papers.Scale) -> None:
    """The table with the command that makes it, and its numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{item.paper}-{item.name}-{scale}"
    head = f"# {item.key}, {scale}\n\n    {command()}\n\n"
    place.with_suffix(".md").write_text(head + text + "\n")
    place.with_suffix(".json").write_text(json.dumps(papers.document(item, found, scale), indent=1) + "\n")
    err.print(f"table   {place.with_suffix('.md')}", highlight=False, soft_wrap=True)


def _claims(asked: options.Reproduce) -> None:
    """Every claim before what is kept; nothing is run for it."""
    judged = papers.judge_all(asked.out, scale=asked.scale.value)
    out.print(papers.claims_table(judged), markup=False, highlight=False, soft_wrap=True)
