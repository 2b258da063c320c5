"""`dosimeter app`: the explorer, and the process in which an audit runs that was started from its form.

A form's words are parsed and checked by what `dosimeter sweep` itself parses and checks with, in the explorer before
anything starts, and once more in the process that runs them: `python -m dosimeter.cli.explorer STORE --model=cnn ...`
"""

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer
from rich.markup import escape
from rich.text import Text

from dosimeter import data
from dosimeter.cli import options
from dosimeter.cli.console import err, out, refusals, stoppable
from dosimeter.cli.lists import LISTS
from dosimeter.errors import SettingError, unknown

if TYPE_CHECKING:
    from dosimeter.app.page import Field
    from dosimeter.sweeps import Trial

FORM = (
    "model", "data", "defense", "attack", "steps", "victims", "batch", "seed", "seeds", "step", "server", "protocol",
    "split", "size", "channels", "threshold",
)  # fmt: skip
"""Options of a sweep that the form has; all others are as usual."""

NAMED = {"model": "models", "defense": "defenses", "attack": "attacks", "step": "steps", "server": "servers"}
NAMED |= {"protocol": "protocols"}
"""Options whose values begin with a name of a list."""

READING = {"attack": ("tuned", "ggl")}
"""Parts that read files of the user's own."""

RUNS = Path("runs")


def run(asked: options.App) -> None:
    """Serve until Ctrl-C."""
    try:
        from dosimeter.app import guard, serve
    except ImportError:
        raise SettingError("dosimeter app needs Dash and Plotly; pip install 'dosimeter[app]'.") from None
    guard.check(asked.host, asked.token)
    store = _chosen(asked.store)
    how: dict[str, Any] = {"host": asked.host, "port": asked.port, "token": asked.token}
    command = (sys.executable, "-m", "dosimeter.cli.explorer")
    with serve.serving(store, command=command, fields=form(), refusal=refusal, **how) as server:
        where = f"[{asked.host}]" if ":" in asked.host else asked.host
        out.print(f"{escape(str(store))}: http://{where}:{server.port}", highlight=False, soft_wrap=True)
        out.print(
            "Open this address in a browser. Ctrl-C ends it, and audits that were started there.", highlight=False
        )
        server.serve_forever()


def _chosen(folder: Path | None) -> Path:
    """The folder that was named, or the newest store; an empty one is made by its first audit."""
    if folder is None:
        found = [path for path in RUNS.glob("*/trials.sqlite") if path.is_file()]
        folder = max(found, key=lambda path: path.stat().st_mtime).parent if found else RUNS / "app"
    if (folder / "trials.sqlite").is_file():
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingError(
            f"Expected a store of trials or an empty folder in {str(folder)!r} (--store), found other files; name the "
            "--out of a sweep."
        )
    return folder


def form() -> "list[Field]":
    """The form's fields, with the command line's own words about them."""
    from dosimeter.app.page import Field

    names = {each: tuple(json.loads(LISTS.read_text())[kind]["rows"]) for each, kind in NAMED.items()}
    names |= {"data": tuple(_at_hand()), "split": ("train", "test")}
    names["attack"] = ("auto", *names["attack"])
    made = []
    for each in fields(options.Sweep):
        if each.name in FORM:
            usual = each.default[0] if isinstance(each.default, tuple) else each.default
            about = each.metadata["option"].help.replace(" May be repeated.", "")
            made.append(Field(each.name, about, "" if usual is None else str(usual), names.get(each.name, ())))
    return sorted(made, key=lambda field: FORM.index(field.name))


def _at_hand() -> list[str]:
    return [row.name for row in data.available() if row.where != "to download"]


def refusal(words: Sequence[str]) -> str:
    """What the command line says against the options of an audit, in a line; nothing where they can be run."""
    with err.capture() as said:
        try:
            with refusals():
                trials_of(words)
        except click.ClickException as error:
            return " ".join(error.format_message().split())
        except (typer.Exit, click.exceptions.Exit):
            pass
        except Exception as error:  # which the program would end with, so that it is not begun
            return f"{type(error).__name__}: {error}"
    return Text.from_ansi(said.get()).plain.strip().removeprefix("dosimeter: ")


def trials_of(words: Sequence[str]) -> "list[Trial]":
    """The trials that options of a sweep describe, ready to run; those that name files are refused."""
    from dosimeter.cli import app
    from dosimeter.cli.sweep import axes
    from dosimeter.sweeps import product_of

    command = typer.main.get_command(app).commands["sweep"]  # type: ignore[attr-defined]
    given = dict(command.make_context("dosimeter", list(words)).params)
    _check_names(given)
    made = list(product_of(axes(options.Sweep(**given))))
    for each in made:
        each.prepare()
    return made


def _check_names(given: dict[str, Any]) -> None:
    """Refuse whatever names a file: this is for the command line, whose user owns it."""
    for name, value in given.items():
        several = value if isinstance(value, list | tuple) else [value]
        for text in [each for each in several if isinstance(each, str | Path)]:
            first = re.split(r"[:|]", str(text))[0]
            own = re.search(r"[/\\~\0]|\.py\b", str(text))
            if own or isinstance(text, Path) or any(f"{part}:" in f"{text}:" for part in READING.get(name, ())):
                raise SettingError(
                    f"Expected a name for {name}, got {str(text)!r}, which names a file; use the command line."
                )
            if name == "data" and first not in (known := _at_hand()):
                raise SettingError(unknown("data set", first, known))


def _end_with_parent() -> None:
    """Stop this process when the explorer is gone, which holds the other end of the standard input."""
    while os.read(0, 1):  # past Python's buffer, which may not be held when the process ends by itself
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str]) -> None:
    """Run an audit into a store and print its trials as JSON."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with stoppable(), refusals():
        from dosimeter.sweeps import sweep

        found = sweep(trials_of(arguments[1:]), store=arguments[0], retry_failed=True)
        told = [{key: row.get(key) for key in ("digest", "status", "why")} for row in found.rows]
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except click.ClickException as error:
        sys.exit(error.format_message())
    except (typer.Exit, click.exceptions.Exit) as end:
        sys.exit(end.exit_code)
