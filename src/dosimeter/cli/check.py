"""`dosimeter check`: what a client can check of the weights it was sent, before it trains on private data."""

import copy

import torch
import typer
from torch import nn

from dosimeter import checks, data, models, servers
from dosimeter.attacks import presets
from dosimeter.auditing import Audit
from dosimeter.auditing.setting import MOST_BATCH
from dosimeter.auditing.target import make_target
from dosimeter.cli import options
from dosimeter.cli.console import hint, out
from dosimeter.errors import SettingError
from dosimeter.lines import Grid, say
from dosimeter.task import load_task


def run(asked: options.Check) -> None:
    """Say what can be noticed of the model that was sent."""
    if asked.weights is None and asked.sent is None:
        raise SettingError("There is nothing to check; give what the server sent: --weights file, or --sent.")
    checks.count("A check", "a batch", asked.batch, most=MOST_BATCH)
    agreed = load_task(asked.model, asked.data, seed=0, size=asked.size, channels=asked.channels)
    other = load_task(
        asked.model if asked.sent is None else asked.sent,
        asked.data,
        seed=0,
        size=agreed.dataset.size,
        channels=asked.channels,
        weights=asked.weights,
    )
    history = []
    for path in asked.before or []:
        earlier = copy.deepcopy(agreed.model)
        models.load_checkpoint(earlier, path)
        history.append(earlier.state_dict())
    _rehearse(other.model, agreed.dataset, asked.batch)
    found = servers.check(
        other.model, shape=agreed.dataset.shape, batch=asked.batch, agreed=agreed.model, history=history
    )
    if not found:
        known = f"the agreed program and {len(history)} earlier round(s)"
        say(out, f"Nothing was noticed, knowing {known}. That is no proof of honesty.")
        hint("dosimeter lint says what the model leaks to an honest server")
        return
    table = Grid("check", "where", "what")
    for finding in found:
        table.add_row(*finding)
    table.print(out)
    out.print()
    hint("do not train on it; dosimeter audit --server shows what it reads")
    raise typer.Exit(1)


def _rehearse(model: nn.Module, dataset: data.Dataset, batch: int) -> None:
    """Refuse a model that no client could train, of which nothing could be noticed."""
    highest = None if dataset.classes is None else dataset.classes - 1
    labels = None if dataset.classes is None else torch.zeros(batch, dtype=torch.long)
    whole = Audit(model=model, attack=presets.inverting_gradients())
    make_target(model, dataset.shape, whole, batch=batch, labels=labels, highest=highest)
