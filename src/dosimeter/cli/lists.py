"""`dosimeter list`: what goes by name, from a file beside this one, since asking the parts themselves takes torch.

`catalogues.py` writes that file, and a test compares the two.
"""

import json
from pathlib import Path
from typing import NamedTuple

from rich.markup import escape
from rich.table import Table

from dosimeter import data
from dosimeter.cli import options
from dosimeter.cli.console import hint, out
from dosimeter.cli.options import Kind

LISTS = Path(__file__).with_name("lists.json")


USES = {
    Kind.models: "audit --model NAME",
    Kind.data: "audit --data NAME",
    Kind.attacks: "audit --attack NAME",
    Kind.defenses: "audit --defense NAME --attack auto",
    Kind.steps: "audit --step NAME",
    Kind.servers: "audit --server NAME",
    Kind.protocols: "train --protocol NAME",
    Kind.studies: "study NAME",
}
"""Which command takes names of each kind."""


class Catalogue(NamedTuple):
    """A table: its title, what stands below it, and the lines of every name, the last of them its settings."""

    title: str
    caption: str
    rows: dict[str, list[str]]


def run(asked: options.List) -> None:
    """Show one table; in columns of their own its facts would not fit 80 characters."""
    found = _data() if asked.kind == Kind.data else Catalogue(**json.loads(LISTS.read_text())[asked.kind])
    table = Table(title=found.title, caption=found.caption, show_header=False, show_lines=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, lines in found.rows.items():
        *facts, settings = map(escape, lines)
        table.add_row(escape(name), "\n".join([*facts, f"[dim]{settings}[/]" if settings else ""]).rstrip("\n"))
    out.print(table)
    hint(f"dosimeter {USES[asked.kind]}")


def _data() -> Catalogue:
    """Data sets, with what is at hand now."""
    rows = {}
    for row in data.available():
        shape = "x".join(map(str, row.shape)) if row.shape else "?"
        here = "not at hand: to download" if row.where == "to download" else f"at hand: {row.where}"
        papers = "no paper" if row.papers == "-" else row.papers
        rows[row.name] = [
            f"{papers} | {shape} | {_count(row.train)} + {_count(row.test)} | {here}",
            row.description,
            "",
        ]
    return Catalogue(
        "Data sets: papers that use them, shape, images to train and test, whether at hand",
        "Your own: --data file.npz with train_images, train_labels, test_images, test_labels, or a folder of images",
        rows,
    )


def _count(n: int | None) -> str:
    return "?" if n is None else f"{n:,}"
