"""The command line: `dosimeter audit`, `dosimeter list` and `dosimeter bench`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from dosimeter import benchmarks, data, defenses, metrics, models, spec, store
from dosimeter.attacks import Search, presets
from dosimeter.auditing import Interrupted, Result, audit, estimate
from dosimeter.errors import DosimeterError, ModelError
from dosimeter.reports import PAGE, print_result, write_page
from dosimeter.types import Loss, Victims

app = typer.Typer(
    help="Measure how much private training data a federated client's update gives away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure how fast the program itself is.", no_args_is_help=True)
app.add_typer(bench, name="bench")
out, err = Console(), Console(stderr=True)


class Kind(StrEnum):
    models = "models"
    data = "data"
    attacks = "attacks"
    defenses = "defenses"


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """Everything an audit needs, loaded and checked."""

    model: nn.Module
    victims: Victims
    attack: Search
    defense: defenses.Defense
    loss: Loss | None
    dataset: data.Dataset
    common: dict[str, Any]


@app.command("audit")
def audit_command(
    model: Annotated[str, typer.Option(help="A model's name, or path/to/file.py:function that returns yours.")] = "cnn",
    data_: Annotated[str, typer.Option("--data", help="A data set's name, or an .npz file.")] = "mnist-5k",
    attack: Annotated[str, typer.Option(help="An attack, with settings: ig:tv=0.01,restarts=2.")] = "ig",
    defense: Annotated[str, typer.Option(help="A defense, with settings: noise:sigma=0.01.")] = "none",
    victims: Annotated[int, typer.Option(help="How many updates to attack.")] = 8,
    batch: Annotated[int, typer.Option(help="Images in every update.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Steps of the attack; its own default otherwise.")] = None,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
    split: Annotated[str, typer.Option(help="The split that victims come from: train or test.")] = "train",
    size: Annotated[int | None, typer.Option(help="Resize images to this height and width.")] = None,
    channels: Annotated[int | None, typer.Option(help="Repeat grey images to 3 channels.")] = None,
    loss: Annotated[str | None, typer.Option(help="path/to/file.py:function (output, labels) -> number.")] = None,
    threshold: Annotated[float, typer.Option(help="SSIM from which an image counts as read.")] = 0.5,
    decoys: Annotated[int, typer.Option(help="Other images in the identification test.")] = 99,
    lpips: Annotated[
        Path | None, typer.Option(help="LPIPS weights; lpips_alex.pth in DOSIMETER_DATA is found.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[Precision, typer.Option(help="Precision of the attack.")] = Precision.float32,
    budget: Annotated[float, typer.Option(help="GiB that the victims attacked at once may take.")] = 4.0,
    workers: Annotated[int | None, typer.Option(help="Threads; one a core otherwise.")] = None,
    explain: Annotated[bool, typer.Option(help="Say which tensor is compared in which way and why.")] = False,
    out_: Annotated[Path | None, typer.Option("--out", help="Run folder; a new one under runs/ otherwise.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an older run in the run folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records, and nothing else.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Say what would run, how long and in what memory.")] = False,
) -> None:
    """Attack a model's updates and report what could be read out of them."""
    with _refusals():
        setup = _prepare(
            model,
            data_,
            attack,
            defense,
            victims,
            batch,
            steps,
            seed,
            split,
            size,
            channels,
            loss,
            device,
            dtype,
            budget,
            workers,
        )
        if dry_run:
            _explain(setup)
            return
        judged = {
            "threshold": threshold,
            "decoys": data.pick_decoys(setup.dataset, setup.victims, decoys, seed=seed, split=split),
            "lpips": _lpips(lpips),
            "explain": explain,
            "names": _names(setup.dataset, model, data_, split),
        }
        folder = out_ or _fresh(setup, model)
        with store.reserve(folder, overwrite=overwrite) as place:
            result = _run(setup, judged, place)
            if result is not None:
                write_page(result, place / PAGE)
    if result is None:
        err.print("Interrupted before anything was attacked; the run folder says so.")
        raise typer.Exit(130)
    if as_json:
        sys.stdout.write(json.dumps(result.document(), indent=1, allow_nan=False) + "\n")
    else:
        print_result(result, out, where=folder / PAGE)
        if explain:
            out.print(_table_of_tensors(result))
    if result.status == "interrupted":
        raise typer.Exit(130)


@bench.command("agreement")
def agreement_command(
    data_: Annotated[str, typer.Option("--data", help="A data set's name, or an .npz file.")] = "mnist-5k",
    model: Annotated[str, typer.Option(help="A model's name.")] = "cnn",
    victims: Annotated[int, typer.Option(help="Images to attack.")] = 32,
    steps: Annotated[int, typer.Option(help="Steps of Inverting Gradients.")] = 1000,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
) -> None:
    """Run one attack by the engine and by the usual way, and say how far apart the images' SSIM end."""
    with _refusals():
        setup = _prepare(
            model,
            data_,
            "ig",
            "none",
            victims,
            1,
            steps,
            seed,
            "train",
            None,
            None,
            None,
            "cpu",
            Precision.float32,
            4.0,
            None,
        )
        found = benchmarks.compare(setup.model, setup.victims, setup.attack, seed=seed)
    out.print(found.text())


@app.command("list")
def list_command(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """Show the models, data sets, attacks or defenses that go by name."""
    with _refusals():
        out.print(_TABLES[kind]())


@bench.command("engine")
def bench_command(
    quick: Annotated[bool, typer.Option(help="Tiny bursts and few victims, to see that all works.")] = False,
    out_: Annotated[Path, typer.Option("--out", help="Folder for bench.json and bench.svg.")] = Path("runs/bench"),
    only: Annotated[
        list[str] | None, typer.Option(help="Measure only this: a case or victims, batch, width. May be repeated.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="About how long a burst of one way takes.")] = None,
    breaching: Annotated[
        Path | None, typer.Option(help="The python of an environment that has breaching, to measure it as well.")
    ] = None,
) -> None:
    """Time the engine beside the usual way of matching gradients, all of them in turn in one run."""
    with _refusals():
        effort = benchmarks.QUICK if quick else benchmarks.FULL
        effort = effort if seconds is None else replace(effort, seconds=seconds)
        benchmarks.prepare(out_)
        found = benchmarks.run(effort, only=only or (), python=breaching)
        benchmarks.write(found, out_)
    benchmarks.show(found, out)


def main() -> None:
    """The program's entry."""
    app()


@contextmanager
def _refusals() -> Iterator[None]:
    """Bad input becomes one line on standard error and exit code 2."""
    try:
        yield
    except DosimeterError as reason:
        err.print(f"dosimeter: {escape(str(reason))}", style="red", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from None


def _run(setup: _Setup, judged: dict[str, Any], place: Path) -> Result | None:
    """The audit, written to the run folder; None when Ctrl-C came before anything was attacked."""
    try:
        result = audit(
            setup.model,
            setup.victims,
            attack=setup.attack,
            defense=setup.defense,
            loss=setup.loss,
            **setup.common,
            **judged,
        )
    except Interrupted as interrupted:
        result = interrupted.result
    except KeyboardInterrupt:
        store.write_interrupted(place, "interrupted before anything was attacked")
        return None
    store.write_run(result, place)
    return result


def _prepare(
    model: str,
    data_: str,
    attack: str,
    defense: str,
    victims: int,
    batch: int,
    steps: int | None,
    seed: int,
    split: str,
    size: int | None,
    channels: int | None,
    loss: str | None,
    device: str,
    dtype: Precision,
    budget: float,
    workers: int | None,
) -> _Setup:
    """Turn words into parts; whatever is wrong with them is said here, before any work."""
    ready = spec.make("attack", attack, presets.BY_NAME, steps=steps)
    guard = spec.make("defense", defense, defenses.BY_NAME)
    if not spec.is_own(model) and model not in models.BY_NAME:
        models.build(model, shape=(1, 1, 1), classes=1, mean=(0,), std=(1,), seed=seed)  # raises with the nearest name
    dataset = data.load(data_, size=size, channels=channels)
    if not spec.is_own(model) and size is None and min(dataset.shape[1:]) < models.BY_NAME[model].least:
        dataset = dataset.prepared(32, channels)
    return _Setup(
        model=_model(model, dataset, seed),
        victims=data.pick(dataset, victims, batch=batch, seed=seed, split=split),
        attack=ready,
        defense=guard,
        loss=None if loss is None else spec.own("loss", loss),
        dataset=dataset,
        common={
            "seed": seed,
            "device": device,
            "dtype": getattr(torch, dtype.value),
            "budget": round(budget * 2**30),
            "workers": workers,
        },
    )


def _model(name: str, dataset: data.Dataset, seed: int) -> nn.Module:
    if spec.is_own(name):
        make = spec.own("model", name)
        from dosimeter.rng import scoped

        with scoped(seed, "weights"):
            made = make()
        if not isinstance(made, nn.Module):
            raise ModelError(f"{name} returns a {type(made).__name__}, expected a torch.nn.Module.")
        return made
    if dataset.classes is None:
        raise ModelError(f"The model {name!r} classifies, but {dataset.name} has no class labels; give your own model.")
    mean, std = dataset.statistics()
    return models.build(name, shape=dataset.shape, classes=dataset.classes, mean=mean, std=std, seed=seed)


def _fresh(setup: _Setup, model: str) -> Path:
    """A folder under runs/ that is not there yet, named after what is audited."""
    name = f"{setup.dataset.name}-{Path(model.partition(':')[0]).stem}-{setup.attack.name}"
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def _lpips(path: Path | None) -> metrics.Lpips | None:
    found = path or metrics.find_weights(None)
    return None if found is None else metrics.Lpips.load(found)


def _names(dataset: data.Dataset, model: str, data_: str, split: str) -> dict[str, Any]:
    return {
        "model": model if not spec.is_own(model) else Path(model).name,
        "data": dataset.name,
        "split": split,
        "source": dataset.source,
        "fingerprint": dataset.fingerprint,
    }


def _explain(setup: _Setup) -> None:
    """What would run, with an estimate from a few steps actually taken."""
    steps = setup.attack.stop.steps
    guess = estimate(
        setup.model,
        setup.victims,
        attack=setup.attack,
        steps=steps,
        defense=setup.defense,
        loss=setup.loss,
        **setup.common,
    )
    table = Table("what", "value", title="Dry run: nothing was attacked, nothing was written")
    rows = {
        "model": f"{type(setup.model).__name__}, {sum(p.numel() for p in setup.model.parameters()):,} parameters",
        "data": f"{setup.dataset.name}, {'x'.join(map(str, setup.dataset.shape))}",
        "victims": f"{len(setup.victims.ids)} updates of {setup.victims.batch} image(s)",
        "attack": repr(setup.attack),
        "defense": repr(setup.defense),
        "tiles": f"{guess['tiles']:.0f} of {guess['tile']:.0f} victims",
        "time": f"at most {_duration(guess['seconds'])} ({steps} steps, from the first 3 of one tile)",
        "memory": f"about {guess['bytes'] / 2**20:,.0f} MiB",
    }
    for what, value in rows.items():
        table.add_row(what, escape(value))
    out.print(table)


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _table_of_tensors(result: Result) -> Table:
    table = Table("tensor", "form", "why")
    for row in result.explanation:
        table.add_row(*map(escape, row))
    return table


def _table_of_models() -> Table:
    table = Table("name", "paper", "parameters", "what it is")
    for name, entry in models.BY_NAME.items():
        count = models.count_parameters(name, shape=(3, 32, 32), classes=10)
        table.add_row(name, entry.paper, f"{count:,}", entry.about)
    table.caption = "Parameters on 32x32x3 with 10 classes. Your own: --model path/to/file.py:function"
    return table


def _table_of_data() -> Table:
    table = Table("name", "train", "test", "shape", "where", "what it is")
    for row in data.available():
        shape = "x".join(map(str, row.shape)) if row.shape else "?"
        table.add_row(escape(row.name), _count(row.train), _count(row.test), shape, row.where, escape(row.description))
    table.caption = "Your own: --data file.npz with train_images, train_labels, test_images, test_labels"
    return table


def _count(n: int | None) -> str:
    return "?" if n is None else f"{n:,}"


def _table_of_attacks() -> Table:
    table = Table("name", "settings", "what it is")
    for name, maker in presets.BY_NAME.items():
        table.add_row(name, _settings(maker), _first_line(maker))
    return table


def _table_of_defenses() -> Table:
    table = Table("name", "settings", "what it does")
    for name, maker in defenses.BY_NAME.items():
        table.add_row(name, _settings(maker), _first_line(maker))
    return table


def _settings(maker: Any) -> str:
    import inspect

    given = inspect.signature(maker).parameters.values()
    return escape(", ".join(f"{p.name}={p.default}" for p in given)) or "-"


def _first_line(maker: Any) -> str:
    return escape((maker.__doc__ or "").strip().splitlines()[0])


_TABLES = {
    Kind.models: _table_of_models,
    Kind.data: _table_of_data,
    Kind.attacks: _table_of_attacks,
    Kind.defenses: _table_of_defenses,
}
