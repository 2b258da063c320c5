"""`dosimeter list`: what goes by name."""

import inspect
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from dosimeter import clients, data, defenses, models, servers
from dosimeter.attacks import presets
from dosimeter.cli.console import out, refusals


class Kind(StrEnum):
    models = "models"
    data = "data"
    attacks = "attacks"
    defenses = "defenses"
    steps = "steps"
    servers = "servers"


def list_command(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """Show the models, data sets, attacks, defenses, clients' steps or dishonest servers that go by name."""
    with refusals():
        out.print(_TABLES[kind]())


def _models() -> Table:
    """The architectures; all of them come with the program."""
    table = _long("Models: paper, parameters on 3x32x32 with 10 classes, images, whether at hand; settings")
    for name, entry in models.BY_NAME.items():
        count = models.count_parameters(name, shape=(3, 32, 32), classes=10)
        facts = f"{entry.paper} | {count:,} parameters | {_sides(entry)} | at hand"
        table.add_row(name, f"{facts}\n{escape(entry.about)}\n[dim]{_words(entry.settings())}[/]")
    table.caption = (
        "Settings: --model convnet:pooling=average,width=32. Weights are random unless --weights names a file. "
        f"{models.OWN}"
    )
    return table


def _sides(entry: models.Entry) -> str:
    """The images that a model takes."""
    if entry.multiple > 1:
        return f"sides in multiples of {entry.multiple}"
    return f"from {entry.least}x{entry.least}" if entry.least > 1 else "any size"


def _data() -> Table:
    table = _long("Data sets: papers that use them, shape, images to train and test, whether at hand")
    for row in data.available():
        shape = "x".join(map(str, row.shape)) if row.shape else "?"
        here = "not at hand: to download" if row.where == "to download" else f"at hand: {row.where}"
        papers = "no paper" if row.papers == "-" else row.papers
        facts = f"{papers} | {shape} | {_count(row.train)} + {_count(row.test)} | {here}"
        table.add_row(escape(row.name), f"{facts}\n{escape(row.description)}")
    table.caption = (
        "Your own: --data file.npz with train_images, train_labels, test_images, test_labels, or a folder of images"
    )
    return table


def _long(title: str) -> Table:
    """Names, each with several lines: in columns of their own the facts would not fit 80 characters."""
    table = Table(title=title, show_header=False, show_lines=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    return table


def _count(n: int | None) -> str:
    return "?" if n is None else f"{n:,}"


def _parts(what: str, makers: Mapping[str, Any]) -> Table:
    table = _long(f"{what}; settings")
    for name, maker in makers.items():
        table.add_row(name, f"{_about(maker)}\n[dim]{_settings(maker)}[/]")
    return table


def _servers() -> Table:
    table = _long("Servers: what they change; settings")
    for name, maker in servers.BY_NAME.items():
        changes = "nothing" if name == "honest" else "weights" if maker().weights_only else "architecture"
        table.add_row(name, f"changes {changes}\n{_about(maker)}\n[dim]{_settings(maker)}[/]")
    table.caption = "Several, one after another: --server first-layer+separate-weights"
    return table


def _settings(maker: Any) -> str:
    return _words({p.name: p.default for p in inspect.signature(maker).parameters.values()})


def _words(settings: dict[str, object]) -> str:
    """Settings as they are written on the command line."""
    return escape(", ".join(f"{key}={_word(value)}" for key, value in settings.items())) or "-"


def _word(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "..."
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _about(maker: Any) -> str:
    """The first paragraph of its docstring, as one line that wraps as the terminal has room."""
    return escape(" ".join(inspect.cleandoc(maker.__doc__ or "").partition("\n\n")[0].split()))


_TABLES = {
    Kind.models: _models,
    Kind.data: _data,
    Kind.attacks: lambda: _parts("Attacks: what they are", presets.BY_NAME),
    Kind.defenses: lambda: _parts("Defenses: what they do", defenses.BY_NAME),
    Kind.steps: lambda: _parts("Steps: what clients send", clients.BY_NAME),
    Kind.servers: _servers,
}
