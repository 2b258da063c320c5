"""`dosimeter check`: what a client can check of the weights it was sent, before it trains on private data."""

import copy
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dosimeter import models, servers
from dosimeter.cli.console import out, refusals
from dosimeter.errors import SettingError
from dosimeter.task import load_task


def check_command(
    model: Annotated[str, typer.Option(help="The agreed model: its name, or path/to/file.py:function.")] = "cnn",
    weights: Annotated[Path | None, typer.Option(help="The weights that the server sent.")] = None,
    sent: Annotated[
        str | None, typer.Option(help="path/to/file.py:function of the program that the server sent; it is run.")
    ] = None,
    before: Annotated[
        list[Path] | None, typer.Option(help="Weights of an earlier round; repeat it, the last round last.")
    ] = None,
    data: Annotated[str, typer.Option(help="A data set of the client's, for the form of its images.")] = "mnist-5k",
    batch: Annotated[int, typer.Option(min=2, help="Images of the client's step.")] = 4,
    size: Annotated[int | None, typer.Option(help="Resize images to this height and width.")] = None,
    channels: Annotated[int | None, typer.Option(help="Repeat grey images to 3 channels.")] = None,
) -> None:
    """Check a model that a server sent; ends with 1 when something was noticed."""
    with refusals():
        if weights is None and sent is None:
            raise SettingError("There is nothing to check; give what the server sent: --weights file, or --sent.")
        agreed = load_task(model, data, 1, seed=0, size=size, channels=channels)
        other = load_task(sent or model, data, 1, seed=0, size=agreed.dataset.size, channels=channels, weights=weights)
        history = []
        for path in before or []:
            earlier = copy.deepcopy(agreed.model)
            models.load_checkpoint(earlier, path)
            history.append(earlier.state_dict())
        found = servers.check(
            other.model, shape=agreed.dataset.shape, batch=batch, agreed=agreed.model, history=history
        )
    if not found:
        known = f"the agreed program and {len(history)} earlier round(s)"
        out.print(f"Nothing was noticed, knowing {known}. That is no proof of honesty.", highlight=False)
        return
    table = Table("check", "where", "what")
    for finding in found:
        table.add_row(*map(escape, finding))
    out.print(table)
    raise typer.Exit(1)
