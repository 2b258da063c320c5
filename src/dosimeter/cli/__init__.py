"""The command line: `dosimeter audit`, `check`, `list`, `study`, `bench` and `train-generator`.

`console.py` is where output goes; the other files are a command each.
"""

import typer

from dosimeter.cli import bench
from dosimeter.cli.audit import audit_command
from dosimeter.cli.check import check_command
from dosimeter.cli.generator import train_command
from dosimeter.cli.lists import list_command
from dosimeter.cli.study import study_command

app = typer.Typer(
    help="Measure how much private training data a federated client's update gives away.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("audit")(audit_command)
app.command("check")(check_command)
app.command("list")(list_command)
app.command("study")(study_command)
app.command("train-generator")(train_command)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """The program's entry."""
    app()
