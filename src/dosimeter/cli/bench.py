"""`dosimeter bench`: how fast the program itself is."""

from dataclasses import replace

from rich.table import Table

from dosimeter import benchmarks, data, files
from dosimeter.attacks import presets
from dosimeter.cli import options
from dosimeter.cli.console import out
from dosimeter.task import load_task


def agreement(asked: options.Agreement) -> None:
    """Both ways' images beside each other."""
    attack = presets.inverting_gradients(steps=asked.steps)
    task = load_task(asked.model, asked.data, seed=asked.seed)
    victims = data.pick(task.dataset, asked.victims, seed=asked.seed)
    found = benchmarks.compare(task.model, victims, attack, seed=asked.seed)
    out.print(found.text())


def engine(asked: options.Engine) -> None:
    """Measure, write and show."""
    effort = benchmarks.QUICK if asked.quick else benchmarks.FULL
    effort = effort if asked.seconds is None else replace(effort, seconds=asked.seconds)
    files.check_writable(asked.out)
    found = benchmarks.run(effort, only=asked.only or (), python=asked.breaching)
    benchmarks.write(found, asked.out)
    benchmarks.show(found, out)


def training(asked: options.Paces) -> None:
    """Measure and show the paces of all ways."""
    found = benchmarks.paces(benchmarks.Pace(**vars(asked)))
    table = Table("way", "images a second", "lowest", "highest", "of the plain loop")
    for way, figures in found.items():
        rates = [f"{figures[key]:,.0f}" for key in ("median", "min", "max")]
        table.add_row(way, *rates, f"{figures['of_plain']:.0%}")
    out.print(table)


def profile(asked: options.Profile) -> None:
    """Show the costliest operations of each case."""
    for about, found in benchmarks.profiles(asked.only or (), quick=asked.quick):
        table = Table("operation", "shapes", "calls a step", "microseconds", "share", title=about)
        total = sum(line.microseconds for line in found)
        for line in found[: asked.lines]:
            share = f"{line.microseconds / total:.1%}"
            table.add_row(line.operation, line.shapes, f"{line.calls:g}", f"{line.microseconds:,.1f}", share)
        out.print(table)
