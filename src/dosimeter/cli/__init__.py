"""The command line. `options.py` is what each command takes, `config.py` the same as a file; nothing of it waits for
torch, and what a command does is imported when it is called: a file for each."""

import inspect
import os.path
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import click
import typer
from typer.core import TyperGroup

from dosimeter import checks
from dosimeter.cli import options
from dosimeter.cli.console import COMMAND, out, refusals, stoppable
from dosimeter.errors import SettingError
from dosimeter.files import clear_scratch
from dosimeter.lines import clean


class _AtHome(TyperGroup):
    """Commands in whose options a path may begin at home: shells leave --out=~/runs as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[COMMAND] = args
        home = os.path.expanduser("~")
        return super().parse_args(ctx, [re.sub(r"(^|[=|])~(?=/|$)", lambda at: at[1] + home, word) for word in args])


app = typer.Typer(
    cls=_AtHome,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure how fast the program itself is.", no_args_is_help=True)
store = typer.Typer(help="Look into a sweep's folder of trials.", no_args_is_help=True)


def _say_version(asked: bool) -> None:
    if asked:
        out.print(f"dosimeter {version('dosimeter')}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Measure how much private training data a federated client's update gives away."""


class _Place(click.Path):
    """A path; an empty word is none, and not the folder that one happens to be in, and no file has so long a name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        longest = max((len(os.fsencode(part)) for part in Path(value).parts), default=0)
        if value == "" or longest > LONGEST:
            got = f"a name of {longest:,} letters" if value else "an empty word"
            with refusals():
                raise SettingError(f"Expected a path as {max(param.opts, key=len) if param else 'a place'}, got {got}.")
        return super().convert(value, param, ctx)


LONGEST = 255
"""Letters of a file's name, as far as systems take them."""
_PLACE = _Place(path_type=Path)
_EMPTY = ("plan",)
"""Options of which an empty word says that there is to be none."""


def _command(asked: type, place: str) -> Callable[..., None]:
    """A function with the fields of `asked` as its parameters, which makes one and calls `module.function` with it."""
    module, _, function = place.partition(".")
    hints = get_type_hints(asked)
    for field in fields(asked):
        if Path in (hints[field.name], *get_args(hints[field.name])) or list[Path] in get_args(hints[field.name]):
            field.metadata["option"].click_type = _PLACE

    def call(**given: object) -> None:
        with refusals():
            for name, value in given.items():
                checks.reasonable(f"--{name.replace('_', '-')}", value)
                if name not in _EMPTY and "" in (value if isinstance(value, list | tuple) else (value,)):
                    raise SettingError(f"--{name.replace('_', '-')} got an empty word; say something, or leave it out.")
            getattr(import_module(f"dosimeter.cli.{module}"), function)(asked(**given))

    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=Annotated[hints[field.name], field.metadata["option"]],
        )
        for field in fields(asked)
    ]
    call.__doc__, call.__annotations__ = asked.__doc__, {each.name: each.annotation for each in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


COMMANDS: dict[str, tuple[type, str]] = {
    "audit": (options.Audit, "audit.run"),
    "dose": (options.Dose, "dose.run"),
    "captured": (options.Captured, "captured.run"),
    "report": (options.Report, "report.run"),
    "score": (options.Score, "report.run_score"),
    "check": (options.Check, "check.run"),
    "lint": (options.Lint, "lint.run"),
    "list": (options.List, "lists.run"),
    "study": (options.Study, "study.run"),
    "reproduce": (options.Reproduce, "reproduce.run"),
    "train": (options.Train, "train.run"),
    "follow": (options.Follow, "train.run_follow"),
    "compare": (options.Compare, "tradeoff.run_compare"),
    "calibrate": (options.Calibrate, "tradeoff.run_calibrate"),
    "sweep": (options.Sweep, "sweep.run"),
    "app": (options.App, "explorer.run"),
    "tune": (options.Tune, "tune.run"),
    "train-generator": (options.Generator, "generator.run"),
    "search-policies": (options.Policies, "policies.run"),
}
BENCHMARKS: dict[str, tuple[type, str]] = {
    "agreement": (options.Agreement, "bench.agreement"),
    "engine": (options.Engine, "bench.engine"),
    "training": (options.Paces, "bench.training"),
    "sweep": (options.Swept, "bench.swept"),
    "costs": (options.Costs, "bench.costs"),
    "memory": (options.Memory, "bench.memory"),
    "scale": (options.Scale, "bench.scale"),
    "tune": (options.TuneBench, "tune.run_bench"),
    "profile": (options.Profile, "bench.profile"),
    "lint": (options.LintBench, "bench.lint"),
}
STORE: dict[str, tuple[type, str]] = {
    "list": (options.StoreList, "stores.show_all"),
    "show": (options.StoreShow, "stores.show"),
    "export": (options.StoreExport, "stores.export"),
    "merge": (options.StoreMerge, "stores.merge"),
    "prune": (options.StorePrune, "stores.prune"),
}
for _name, _place in COMMANDS.items():
    app.command(_name)(_command(*_place))
for _name, _place in BENCHMARKS.items():
    bench.command(_name)(_command(*_place))
for _name, _place in STORE.items():
    store.command(_name)(_command(*_place))
app.add_typer(bench, name="bench")
app.add_typer(store, name="store")


CRASHED = 70
"""The exit code of a mistake of the program's own, EX_SOFTWARE; 1 is that of an audit that fails."""


def main() -> None:
    """The program's entry."""
    try:
        with stoppable():
            clear_scratch()
            app()
    except Exception:
        sys.stderr.write(clean(traceback.format_exc()))
        sys.exit(CRASHED)
