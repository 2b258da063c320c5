"""The command line: `dosimeter audit`, `train`, `follow`, `compare`, `calibrate`, `study` and others.

`console.py` is where output goes; the other files are a command each.
"""

import os.path
import re
import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from dosimeter.cli import bench
from dosimeter.cli.audit import audit_command
from dosimeter.cli.check import check_command
from dosimeter.cli.console import out, stoppable
from dosimeter.cli.generator import train_command as train_generator_command
from dosimeter.cli.lists import list_command
from dosimeter.cli.policies import policies_command
from dosimeter.cli.study import study_command
from dosimeter.cli.tradeoff import calibrate_command, compare_command
from dosimeter.cli.train import follow_command, train_command


class _AtHome(TyperGroup):
    """Commands in whose options a path may begin at home: shells leave --out=~/runs as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        home = os.path.expanduser("~")
        return super().parse_args(ctx, [re.sub(r"(^|[=|])~(?=/|$)", lambda at: at[1] + home, word) for word in args])


app = typer.Typer(
    cls=_AtHome,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


app.command("audit")(audit_command)
app.command("check")(check_command)
app.command("list")(list_command)
app.command("study")(study_command)
app.command("train")(train_command)
app.command("follow")(follow_command)
app.command("compare")(compare_command)
app.command("calibrate")(calibrate_command)
app.command("train-generator")(train_generator_command)
app.command("search-policies")(policies_command)
app.add_typer(bench.app, name="bench")


CRASHED = 70
"""The exit code of a mistake of the program's own, EX_SOFTWARE; 1 is that of an audit that fails."""


def main() -> None:
    """The program's entry."""
    try:
        with stoppable():
            app()
    except Exception:
        traceback.print_exc()
        sys.exit(CRASHED)
