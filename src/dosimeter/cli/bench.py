"""`dosimeter bench`: how fast the program itself is."""

from dataclasses import replace

from rich.markup import escape

from dosimeter import benchmarks, checks, data, files
from dosimeter.attacks import presets
from dosimeter.benchmarks import costs as fitted
from dosimeter.benchmarks import linting, planned, sweeping
from dosimeter.benchmarks import scale as scaling
from dosimeter.cli import options
from dosimeter.cli.console import err, hint, out
from dosimeter.cli.parts import print_json
from dosimeter.errors import SettingError
from dosimeter.lines import Grid, say
from dosimeter.progress import duration
from dosimeter.reports import charts
from dosimeter.sweeps.costs import keep, prices
from dosimeter.task import load_task

READ = "docs/engine.md says what these figures mean"
SPANS = ("core_seconds", "days")


def agreement(asked: options.Agreement) -> None:
    """Both ways' images beside each other."""
    attack = presets.inverting_gradients(steps=asked.steps)
    task = load_task(asked.model, asked.data, seed=asked.seed)
    victims = data.pick(task.dataset, asked.victims, seed=asked.seed)
    found = benchmarks.compare(task.model, victims, attack, seed=asked.seed)
    say(out, found.text())
    hint(READ)


def engine(asked: options.Engine) -> None:
    """Measure, write and show."""
    effort = benchmarks.QUICK if asked.quick else benchmarks.FULL
    effort = effort if asked.seconds is None else replace(effort, seconds=asked.seconds)
    effort = effort if asked.rounds is None else replace(effort, rounds=asked.rounds)
    files.check_writable(asked.out)
    found = benchmarks.run(effort, only=asked.only or (), python=asked.breaching, cores=asked.cores)
    benchmarks.write(found, asked.out)
    benchmarks.show(found, out)
    hint(READ)


def memory(asked: options.Memory) -> None:
    """Plan every audit, run it, and show both."""
    settings = [each for each in planned.SETTINGS + planned.OTHERS if (asked.only or "") in repr(each.words)]
    if not settings:
        raise SettingError(f"No setting has {asked.only!r} in its words; give for instance --only batch.")
    found = planned.compare(settings, lambda words: err.print(escape(words), highlight=False))
    if asked.figure:
        charts.write_svg(asked.figure, planned.figure(found))
    if asked.json:
        print_json([each._asdict() | {"ratio": each.ratio} for each in found])
        return
    table = Grid("setting", "planned, MiB", "taken, MiB", "planned of taken")
    for each in found:
        table.add_row(each.words, *(f"{size / 2**20:,.0f}" for size in (each.planned, each.taken)), f"{each.ratio:.0%}")
    table.print(out)
    hint("docs/reliability.md says what these figures mean")


def training(asked: options.Paces) -> None:
    """Measure and show the paces of all ways."""
    found = benchmarks.paces(benchmarks.Pace(**vars(asked)))
    table = Grid("way", "images a second", "lowest", "highest", "of the plain loop")
    for way, figures in found.items():
        rates = [f"{figures[key]:,.0f}" for key in ("median", "min", "max")]
        table.add_row(way, *rates, f"{figures['of_plain']:.0%}")
    table.print(out)
    hint("docs/training.md says what these figures mean")


def swept(asked: options.Swept) -> None:
    """Measure and show all places, the speed-up and the store."""
    found = sweeping.measure(sweeping.Load(**vars(asked)), lambda what: err.print(f"Measuring {what}", highlight=False))
    table = Grid("place", "begins after", "a trial beside its attack", "a long trial's attack", "all long trials")
    for row in found["rows"]:
        times = (row[key] for key in ("begins_after", "beside_a_trial", "trial", "whole"))
        table.add_row(row["place"], *(f"{value:.2f} s" for value in times))
    table.print(out)
    reached = "reached" if found["speed_up"] >= found["floor"] else "not reached"
    said = (
        f"local:2 is {found['speed_up']:.2f} times as fast as local:1 ({found['speed_up_running']:.2f} once both run)"
    )
    say(out, f"{said}; at least {found['floor']} wanted, {reached}")
    rates = ", ".join(f"{rate:,.0f} ({name})" for name, rate in found["store"].items())
    say(out, f"Trials a second that a store takes in: {rates}")


def costs(asked: options.Costs) -> None:
    """Measure, fit, show how well that fits, and keep it."""
    found = fitted.fit(quick=asked.quick, told=lambda what: err.print(f"Measuring {what}", highlight=False))
    table = Grid("case", "form", "calls a step", "MFLOP an image", "µs an image-step", "by the fit", "ratio")
    for each in found.points:
        said, took = (1e6 * value / each.images for value in (each.said(found.prices), each.seconds))
        numbers = (f"{each.work.calls:,.0f}", f"{each.work.flops / each.images / 1e6:,.1f}")
        table.add_row(each.name, each.form, *numbers, f"{took:,.0f}", f"{said:,.0f}", f"{said / took:.2f}")
    table.print(out)
    for check in found.checks:
        came = f"predicted {duration(check.said)} of a core, took {duration(check.took)}, ratio {check.ratio:.2f}"
        say(out, f"dosimeter sweep {check.words}: {came}")
    if not asked.quick:
        say(out, f"prices  {keep(found.prices, asked.out)}")
    hint("dosimeter sweep --dry-run says by them what a sweep takes")


def scale(asked: options.Scale) -> None:
    """A row a setting."""
    priced = prices()
    checks.at_least("The estimate", "hours between two failures", asked.hours, 0.01)
    rows = scaling.table(priced, updates=asked.updates, nodes=asked.nodes, cores=asked.cores, hours=asked.hours)
    if asked.json:
        print_json({"machine": priced.machine, **vars(asked), "rows": rows})
        return
    title = f"{asked.updates:,} updates on {asked.nodes:,} nodes of {asked.cores} cores, at prices of {priced.machine}"
    head = ("setting", "core-s an update", "days", "MiB a core", "MB an update", "MB/s a node", "nodes of one writer")
    table = Grid(*head, "core-h lost", title=title)
    for row in rows:
        spans = (f"{row[key]['likely']:,.3g} ({row[key]['least']:,.3g} to {row[key]['most']:,.3g})" for key in SPANS)
        sizes = (f"{row['bytes_a_core'] / 2**20:,.0f}", f"{row['bytes_an_update'] / 1e6:,.2f}")
        rest = (row["bytes_a_second_a_node"] / 1e6, row["nodes_of_one_writer"], row["core_hours_lost"])
        table.add_row(row["setting"], *spans, *sizes, *(f"{value:,.3g}" for value in rest))
    table.print(out)
    hint("docs/scale.md says how these figures come about")


def profile(asked: options.Profile) -> None:
    """Show the costliest operations of each case."""
    for about, found in benchmarks.profiles(asked.only or (), quick=asked.quick):
        table = Grid("operation", "shapes", "calls a step", "microseconds", "share", title=about)
        total = sum(line.microseconds for line in found)
        for line in found[: asked.lines]:
            share = f"{line.microseconds / total:.1%}"
            table.add_row(line.operation, line.shapes, f"{line.calls:g}", f"{line.microseconds:,.1f}", share)
        table.print(out)
        out.print()
    hint(READ)


def lint(asked: options.LintBench) -> None:
    """A row a model."""
    table = Grid("model", "whole", "beside torch", "of a core")
    for row in linting.lintings(asked.only or (), asked.turns):
        err.print(f"Measured {row.model}", highlight=False)
        table.add_row(row.model, f"{row.whole.clock:.1f} s", f"{row.own.clock:.1f} s", f"{row.own.processor:.1f} s")
    table.print(out)
    hint("docs/lint.md says what these figures mean")
