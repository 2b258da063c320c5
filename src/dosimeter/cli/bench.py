"""`dosimeter bench`: how fast the program itself is."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from dosimeter import benchmarks, files
from dosimeter.attacks import presets
from dosimeter.cli.console import out, refusals
from dosimeter.task import load_task

app = typer.Typer(help="Measure how fast the program itself is.", no_args_is_help=True)


@app.command("agreement")
def agreement_command(
    data_: Annotated[str, typer.Option("--data", help="A data set's name, or an .npz file.")] = "mnist-5k",
    model: Annotated[str, typer.Option(help="A model, with settings: convnet:width=32.")] = "cnn",
    victims: Annotated[int, typer.Option(help="Images to attack.")] = 32,
    steps: Annotated[int, typer.Option(help="Steps of Inverting Gradients.")] = 1000,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
) -> None:
    """Run one attack by the engine and by the usual way, and say how far apart the images' SSIM end."""
    with refusals():
        attack = presets.inverting_gradients(steps=steps)
        task = load_task(model, data_, victims, seed=seed)
        found = benchmarks.compare(task.model, task.victims, attack, seed=seed)
    out.print(found.text())


@app.command("engine")
def engine_command(
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
    with refusals():
        effort = benchmarks.QUICK if quick else benchmarks.FULL
        effort = effort if seconds is None else replace(effort, seconds=seconds)
        files.check_writable(out_)
        found = benchmarks.run(effort, only=only or (), python=breaching)
        benchmarks.write(found, out_)
    benchmarks.show(found, out)


@app.command("training")
def training_command(
    data_: Annotated[str, typer.Option("--data", help="A data set's name, or an .npz file.")] = "mnist-5k",
    model: Annotated[str, typer.Option(help="A model, with settings: convnet:width=32.")] = "cnn",
    protocol: Annotated[str, typer.Option(help="Clients and their training, without rounds.")] = "ppp:clients=4",
    rounds: Annotated[int, typer.Option(help="Rounds that count; one more is run before them.")] = 3,
    turns: Annotated[int, typer.Option(help="How often all ways are measured in turn.")] = 3,
    workers: Annotated[int, typer.Option(help="Clients at once, each on one core.")] = 2,
    flower: Annotated[bool, typer.Option(help="Measure Flower's simulation as well.")] = True,
) -> None:
    """Time the training of a federation beside Flower's simulation of it and beside a plain loop of PyTorch."""
    with refusals():
        pace = benchmarks.Pace(
            model=model, data=data_, protocol=protocol, rounds=rounds, turns=turns, workers=workers, flower=flower
        )
        found = benchmarks.paces(pace)
    table = Table("way", "images a second", "lowest", "highest", "of the plain loop")
    for way, figures in found.items():
        rates = [f"{figures[key]:,.0f}" for key in ("median", "min", "max")]
        table.add_row(way, *rates, f"{figures['of_plain']:.0%}")
    out.print(table)


@app.command("profile")
def profile_command(
    only: Annotated[list[str] | None, typer.Option(help="Profile only this case. May be repeated.")] = None,
    lines: Annotated[int, typer.Option(min=1, help="Operations to show, the costliest first.")] = 20,
    quick: Annotated[bool, typer.Option(help="Few victims of small models, to see that all works.")] = False,
) -> None:
    """Show where the time of the engine's step goes, operation by operation, on one tile and one thread."""
    with refusals():
        for about, found in benchmarks.profiles(only or (), quick=quick):
            table = Table("operation", "shapes", "calls a step", "microseconds", "share", title=about)
            total = sum(line.microseconds for line in found)
            for line in found[:lines]:
                share = f"{line.microseconds / total:.1%}"
                table.add_row(line.operation, line.shapes, f"{line.calls:g}", f"{line.microseconds:,.1f}", share)
            out.print(table)
