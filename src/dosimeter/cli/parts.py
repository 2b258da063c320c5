"""What commands of all kinds make of their options."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer
from rich.markup import escape
from rich.table import Table

from dosimeter import checks, data, files, fingerprint, metrics, spec, store
from dosimeter.attacks import Attack, AverageOrders, GuessSteps, searching
from dosimeter.auditing import Captured, Interrupted, InterruptedCapture, Resources, Result, Scoring, Survey, part
from dosimeter.cli import options
from dosimeter.cli.config import APART, given
from dosimeter.cli.console import command, drawing, err, out
from dosimeter.errors import SettingError
from dosimeter.progress import duration
from dosimeter.reports import PAGE, kept, print_result, write_pages
from dosimeter.types import Victims

R = TypeVar("R", Result, Captured, Survey)


def pick(asked: Any, dataset: data.Dataset) -> Victims:
    """The victims: drawn, or those at the places that were named."""
    how: dict[str, Any] = {"batch": asked.batch, "seed": asked.seed, "split": asked.split}
    if asked.indices is None:
        return data.pick(dataset, asked.victims, distinct=asked.distinct, **how)
    if asked.distinct:
        raise SettingError("--distinct draws images of different classes, and --indices says which; leave one out.")
    places = spec.several("--indices", asked.indices, int)
    checks.count("An update", "images (--batch)", asked.batch)
    if len(places) % asked.batch:
        raise SettingError(
            f"Expected --indices of whole updates, {asked.batch} images each, got {len(places)}; name as many."
        )
    rows = [places[first : first + asked.batch] for first in range(0, len(places), asked.batch)]
    return data.pick(dataset, asked.victims if "victims" in given() else None, indices=rows, **how)


def attack_of(asked: options.Search) -> Attack:
    """The attack, or the same by somebody who does not know all of how clients train locally."""
    attack: Attack = part("attack", asked.attack, steps=asked.steps)
    steps, rates, orders = asked.guess_local_steps, asked.guess_local_lr, asked.average_orders
    guess = steps is not None or rates is not None
    if not guess and orders is None:
        return attack
    if guess and orders is not None:
        raise SettingError("Guessing local steps and averaging orders do not go together; choose one of them.")
    if orders is not None:
        return AverageOrders(attack=attack, draws=orders)
    return GuessSteps(
        attack=searching(attack),
        guesses=() if steps is None else spec.several("--guess-local-steps", steps, int),
        rates=() if rates is None else spec.several("--guess-local-lr", rates, float),
    )


def resources_of(asked: options.Machine) -> Resources:
    checks.positive("An audit", "a --budget in GiB", asked.budget)
    dtype, budget = getattr(torch, asked.dtype.value), max(1, round(asked.budget * 2**30))
    return Resources(device=asked.device, dtype=dtype, budget=budget, workers=asked.workers, minutes=asked.minutes)


def place(asked: Any, command: str, *, apart: tuple[str, ...] = ()) -> Path:
    """The folder that was given, or one under runs/ of what was asked; refused before any work if not writable.

    Args:
        apart: options that runs in one folder may differ in.
    """
    said = {field.name: getattr(asked, field.name) for field in fields(asked)}
    told = {key: str(value) for key, value in said.items() if value is not None and key not in (*APART, *apart)}
    usual = ("defense", "model", "data", "protocol", "attack")
    words = {key: told[key] for key in usual if key in told}
    folder = asked.out or Path("runs") / "-".join(filter(None, (command, safe(words, told))))
    files.check_writable(folder)
    return Path(folder)


def safe(words: Mapping[str, str], told: object = None) -> str:
    """A folder's name: words, as far as they go, and letters that tell it from all others."""
    shown = "-".join(re.sub(r"[^|]*/", "", word) for word in words.values() if word != "none")
    return "-".join(filter(None, (re.sub(r"[^\w.=+-]", "_", shown)[:60], fingerprint.of(told or dict(words))[:6])))


def scoring_of(asked: Any, dataset: data.Dataset | None, victims: Victims) -> Scoring:
    """How images are judged; each is told from decoys of its own, drawn from others of the data."""
    decoys, each = None, asked.decoys
    if dataset is not None:
        many = data.pool_of(dataset, each)
        decoys = data.pick_decoys(dataset, victims, many, seed=asked.seed, split=asked.split)
    lpips, own = load_lpips(asked.lpips), load_metrics(asked.metric)
    rest = {"delta": asked.delta, "metrics": own, "among": each or None}
    return Scoring(threshold=asked.threshold, decoys=decoys, lpips=lpips, **rest)


def load_metrics(words: list[str] | None) -> tuple[metrics.Metric, ...]:
    """Metrics of the user's own, each given as path/to/file.py:NAME."""
    found = tuple(spec.own("metric", each) for each in words or ())
    for each, metric in zip(words or (), found, strict=True):
        if not isinstance(metric, metrics.Metric):
            raise SettingError(f"Expected a dosimeter.Metric at {each!r}, got a {type(metric).__name__}.")
    return found  # type: ignore[return-value]


def load_lpips(paths: Sequence[Path] | None) -> tuple[metrics.Lpips, ...]:
    """LPIPS by the weights that were named or that are at hand."""
    found = paths or filter(None, [metrics.find_weights(None)])
    return tuple(metrics.Lpips.load(each) for each in found)


@contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Say after Ctrl-C that what is done is kept."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"Interrupted; the same command goes on from what is kept in {folder}.", highlight=False)
        raise typer.Exit(130) from None


def written(place: Path, work: Callable[[], R]) -> R | None:
    """What comes of an audit, in the run folder; None when Ctrl-C came before anything was attacked."""
    try:
        result = work()
    except (Interrupted, InterruptedCapture) as interrupted:
        result = interrupted.result  # type: ignore[assignment]
    except KeyboardInterrupt:
        store.write_interrupted(place, "interrupted before anything was attacked")
        return None
    result = replace(result, command=command())
    store.write_run(result, place)
    return result


def told(result: R | None, folder: Path, *, as_json: bool) -> R:
    """The result, once its page is drawn and it is printed."""
    if result is None:
        err.print("Interrupted before anything was attacked; the run folder says so.")
        raise typer.Exit(130)
    with drawing(folder):
        write_pages(result, folder)
    if as_json:
        print_json(result.document())
    else:
        print_result(result, out, where=folder / PAGE)
    return result


def finish(asked: options.Output, folder: Path, document: object, table: Table, kind: str, **page: Any) -> None:
    """Print figures that are kept in a folder, as JSON or as a table, and draw their page."""
    if asked.json:
        print_json(document)
    else:
        out.print(table)
    with drawing(folder):
        where = kept.write(folder, kind, command=command(), **page)
    if not asked.json:
        out.print(f"report  {where}", highlight=False, soft_wrap=True)


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def taking(guess: Mapping[str, Any]) -> str:
    """How long it takes by an estimate."""
    if not guess["done"]:
        return f"more than {duration(guess['least'])}"
    early = f"{duration(guess['least'])} where it settles at once, " if guess["least"] < 0.9 * guess["seconds"] else ""
    return f"{early}at most {duration(guess['seconds'])}"


def planned(rows: Mapping[str, str]) -> Table:
    """What would run."""
    table = Table("what", "value", title="Dry run: nothing was attacked, nothing was written")
    for what, value in rows.items():
        table.add_row(what, escape(value))
    return table
