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
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from dosimeter import checks, data, files, fingerprint, lines, metrics, spec, store
from dosimeter.attacks import Attack, AverageOrders, GuessSteps, searching
from dosimeter.auditing import Captured, Interrupted, InterruptedCapture, Resources, Result, Scoring, Survey, part
from dosimeter.cli import console, options
from dosimeter.cli.config import APART, RUN, given
from dosimeter.cli.console import command, drawing, err, hint, out
from dosimeter.errors import OutputError, SettingError
from dosimeter.lines import Grid
from dosimeter.progress import duration
from dosimeter.reports import PAGE, kept, print_line, print_result, write_pages
from dosimeter.sweeps import Entry, Progress, Trial
from dosimeter.sweeps.places import HERE, place_of
from dosimeter.sweeps.run import Told
from dosimeter.sweeps.store import check_folder
from dosimeter.sweeps.trial import forget
from dosimeter.types import Victims

R = TypeVar("R", Result, Captured, Survey)

MOST_GIB = 2**20
RUNNING = 8
"""Trials that are named while they run."""


def pick(asked: Any, dataset: data.Dataset) -> Victims:
    """The victims: drawn, or those at the places that were named."""
    how: dict[str, Any] = {"batch": asked.batch, "seed": asked.seed, "split": asked.split, "distinct": asked.distinct}
    rows = None if asked.indices is None else data.places_of(asked.indices, asked.batch)
    return data.pick(dataset, _many(asked), indices=rows, **how)


def _many(asked: Any) -> int | None:
    """How many updates, unless the places that were named say it."""
    return asked.victims if asked.indices is None or "victims" in given() else None


def trial_of(asked: Any, **more: Any) -> Trial:
    """A trial by all options whose names it shares, and by more."""
    forget()
    words = {each.name: getattr(asked, each.name) for each in fields(Trial) if hasattr(asked, each.name)}
    words |= {"weights": asked.weights and str(asked.weights), "batch_norm": asked.batch_norm.value}
    if _many(asked) is None:
        words["victims"] = len(data.places_of(asked.indices, asked.batch))
    return Trial(**words | more)


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
    if asked.budget > MOST_GIB:
        raise SettingError(f"An audit needs a --budget of at most {MOST_GIB:,} GiB, got {asked.budget:g}.")
    dtype, budget = getattr(torch, asked.dtype.value), max(1, round(asked.budget * 2**30))
    return Resources(
        device=asked.device,
        dtype=dtype,
        budget=budget,
        workers=asked.workers,
        minutes=asked.minutes,
        until_read=asked.until_read,
    )


def place(asked: Any, command: str, *, apart: tuple[str, ...] = (), store: bool = False, holds: str = "") -> Path:
    """The folder that was given, or one under runs/ of what was asked; refused before any work if not writable.

    Args:
        apart: options that runs in one folder may differ in.
        store: whether it is one of trials, which may hold nothing else.
        holds: a pattern of what the command writes; a folder with other files and without it is refused.
    """
    said = {field.name: getattr(asked, field.name) for field in fields(asked)}
    told = {key: str(value) for key, value in said.items() if value is not None and key not in (*APART, "on", *apart)}
    usual = ("defense", "model", "data", "protocol", "attack")
    words = {key: told[key] for key in usual if key in told}
    folder = asked.out or Path("runs") / "-".join(filter(None, (command, safe(words, told))))
    files.check_writable(folder)
    if holds and not next(folder.glob(holds), None) and (other := next(_others(folder), None)):
        raise OutputError(
            f"Expected a new or empty folder, or one with {holds}, got {str(folder)!r} with {other.name!r}; choose "
            "another --out."
        )
    if store:
        check_folder(Path(folder))
        place_of(getattr(asked, "on", HERE))  # which refuses a place that is none
    return Path(folder)


def _others(folder: Path) -> Iterator[Path]:
    """What a folder holds but for what every command writes first."""
    return (path for path in folder.glob("[!.]*") if path.name != RUN)


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
    return tuple(part("metric", each) for each in words or ())


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
        lines.say(err, f"Interrupted; the same command goes on from what is kept in {folder}.")
        raise typer.Exit(130) from None


def standing(progress: Progress) -> Table:
    """How far a sweep is, with the first of those that run; a cluster may run hundreds."""
    table = Table("done", "running", "failed", "kept", "left", "time left", "", box=None, pad_edge=False)
    names, more = progress.running[:RUNNING], len(progress.running) - RUNNING
    words = "\n".join([*names, f"and {more} more"] if more > 0 else names)
    counts = (progress.done, len(progress.running), progress.failed, progress.kept, progress.left)
    rest = "" if progress.remaining is None else duration(progress.remaining)
    table.add_row(*map(str, counts), rest, escape(words))
    return table


@contextmanager
def live() -> Iterator[Told]:
    """Says how far a sweep is: a table that changes where people look, and elsewhere a line whenever one is done."""
    said = [0]

    def tell(progress: Progress) -> None:
        rest = "" if progress.remaining is None else duration(progress.remaining)
        shown.update(standing(progress), refresh=True)
        if not err.is_terminal and progress.done + progress.failed not in (0, said[-1]):
            said[-1] = progress.done + progress.failed
            line = f"{progress.done} done, {progress.kept} kept, {progress.failed} failed, {progress.left} left"
            err.print(f"{line}, {rest} to go" if progress.left and rest else line, highlight=False)

    with Live(console=err, auto_refresh=False, transient=True) as shown:
        yield tell


def tell_failed(failed: Sequence[Entry], folder: Path) -> None:
    """Say at the end what failed, if anything did, and end with 1."""
    if not failed:
        return
    for why in dict.fromkeys(each.reason for each in failed):
        err.print(escape(f"Failed: {why}"), highlight=False, soft_wrap=True)
    many = "1 trial" if len(failed) == 1 else f"{len(failed)} trials"
    where = f"see dosimeter store list {folder} --status failed, or try again by the same command."
    err.print(escape(f"{many} failed; {where}"), highlight=False, soft_wrap=True)
    raise typer.Exit(1)


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


def told(result: R | None, folder: Path, *, as_json: bool, explain: bool = False, quiet: bool = False) -> R:
    """The result, once its page is drawn and it is printed, in one line if `quiet`."""
    if result is None:
        err.print("Interrupted before anything was attacked; the run folder says so.")
        raise typer.Exit(130)
    with drawing(folder):
        write_pages(result, folder)
    if as_json:
        print_json(result.document())
    elif quiet and isinstance(result, Result):
        print_line(result, out)
    else:
        print_result(result, out, where=folder / PAGE, explain=explain)
    return result


def finish(
    asked: options.Output, folder: Path, document: object, table: Grid, kind: str, *, then: str = "", **page: Any
) -> None:
    """Print figures that are kept in a folder, as JSON or as a table, draw their page, and say what to look at next."""
    if asked.json:
        print_json(document)
    else:
        table.print(out)
        out.print()
    with drawing(folder):
        where = kept.write(folder, kind, command=command(), **page)
    if not asked.json:
        console.page(where)
        hint(f"open the page; {then}" if then else "open the page")


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def taking(guess: Mapping[str, Any]) -> str:
    """How long it takes by an estimate."""
    if not guess["done"]:
        return f"more than {duration(guess['least'])}"
    early = f"{duration(guess['least'])} where it settles at once, " if guess["least"] < 0.9 * guess["seconds"] else ""
    return f"{early}at most {duration(guess['seconds'])}"


def planned(rows: Mapping[str, str]) -> None:
    """Print what would run."""
    table = Grid("what", "value", title="Dry run: nothing was attacked, nothing was written")
    for what, value in rows.items():
        table.add_row(what, value)
    table.print(out)
    out.print()
    hint("the same without --dry-run")
