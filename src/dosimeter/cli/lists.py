"""`dosimeter list`: what goes by name."""

import inspect
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from dosimeter import data, defenses, models
from dosimeter.attacks import presets
from dosimeter.cli.console import out, refusals


class Kind(StrEnum):
    models = "models"
    data = "data"
    attacks = "attacks"
    defenses = "defenses"


def list_command(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """Show the models, data sets, attacks or defenses that go by name."""
    with refusals():
        out.print(_TABLES[kind]())


def _models() -> Table:
    table = Table("name", "paper", "parameters", "what it is")
    for name, entry in models.BY_NAME.items():
        count = models.count_parameters(name, shape=(3, 32, 32), classes=10)
        table.add_row(name, entry.paper, f"{count:,}", entry.about)
    table.caption = "Parameters on 32x32x3 with 10 classes. Your own: --model path/to/file.py:function"
    return table


def _data() -> Table:
    table = Table("name", "train", "test", "shape", "where", "what it is")
    for row in data.available():
        shape = "x".join(map(str, row.shape)) if row.shape else "?"
        table.add_row(escape(row.name), _count(row.train), _count(row.test), shape, row.where, escape(row.description))
    table.caption = "Your own: --data file.npz with train_images, train_labels, test_images, test_labels"
    return table


def _count(n: int | None) -> str:
    return "?" if n is None else f"{n:,}"


def _attacks() -> Table:
    table = Table("name", "settings", "what it is")
    for name, maker in presets.BY_NAME.items():
        table.add_row(name, _settings(maker), _first_line(maker))
    return table


def _defenses() -> Table:
    table = Table("name", "settings", "what it does")
    for name, maker in defenses.BY_NAME.items():
        table.add_row(name, _settings(maker), _first_line(maker))
    return table


def _settings(maker: Any) -> str:
    given = inspect.signature(maker).parameters.values()
    return escape(", ".join(f"{p.name}={p.default}" for p in given)) or "-"


def _first_line(maker: Any) -> str:
    return escape((maker.__doc__ or "").strip().splitlines()[0])


_TABLES = {Kind.models: _models, Kind.data: _data, Kind.attacks: _attacks, Kind.defenses: _defenses}
