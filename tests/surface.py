"""The public surface as text: names with their signatures, and commands with their options.

python tests/surface.py        writes it anew; refused while CHANGELOG.md does not say what was removed
"""

import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import click
import typer

import dosimeter
from dosimeter.cli import app

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "surface.txt"


def lines() -> list[str]:
    """One for every public name, and one for every command."""
    return [*_names("dm", dosimeter), *_commands("dosimeter", typer.main.get_command(app))]


def _names(place: str, module: types.ModuleType) -> Iterator[str]:
    for name in sorted(module.__all__):
        public = getattr(module, name)
        if isinstance(public, types.ModuleType):
            within = _names if hasattr(public, "__all__") else _defined
            yield from within(f"{place}.{name}", public)
        else:
            yield f"{place}.{name}{_signature(public)}"


def _defined(place: str, module: types.ModuleType) -> Iterator[str]:
    """Of a module without __all__, the classes and functions that are defined in it."""
    for name, public in sorted(vars(module).items()):
        own = isinstance(public, type | types.FunctionType) and public.__module__ == module.__name__
        if own and not name.startswith("_"):
            yield f"{place}.{name}{_signature(public)}"


def _signature(public: object) -> str:
    if not inspect.isclass(public) and not inspect.isfunction(public):
        return ""
    try:
        found = inspect.signature(public).parameters.values()
    except ValueError:  # an alias of types, or a class of C
        return ""
    named = [each for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return f"({', '.join(f'{each.name}{_default(each.default)}' for each in named)})"


def _default(value: object) -> str:
    """Plain values as they are; of others only that there is one."""
    if value is inspect.Parameter.empty:
        return ""
    return f"={value!r}" if value is None or isinstance(value, bool | int | float | str) else "=..."


def _commands(place: str, command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, each in sorted(command.commands.items()):
            yield from _commands(f"{place} {name}", each)
        return
    options = sorted(each.opts[0] for each in command.params if each.opts[0].startswith("--"))
    yield " ".join([place, *options])


def words(line: str) -> set[str]:
    """What a line offers: a name with each of its parameters, or a command with each of its options."""
    if line.startswith("dosimeter "):
        command = line.partition(" --")[0]
        return {command, *(f"{command} {option}" for option in re.findall(r"--[\w-]+", line))}
    name, _, rest = line.partition("(")
    return {name, *(f"{name}({each.partition('=')[0]})" for each in rest.rstrip(")").split(", ") if each)}


def unsaid(before: list[str], now: list[str], changelog: str) -> list[str]:
    """What was offered before and is no longer, and does not stand in the CHANGELOG under Unreleased."""
    gone = set().union(*map(words, before)) - set().union(*map(words, now))
    whole = {each for each in gone if not any(other != each and each.startswith(other) for other in gone)}
    latest = changelog.partition("## Unreleased")[2].partition("\n## ")[0]
    return sorted(each for each in whole if f"`{each}`" not in latest)


def main() -> None:
    found = lines()
    before = RECORD.read_text().splitlines() if RECORD.exists() else []
    if missing := unsaid(before, found, (ROOT / "CHANGELOG.md").read_text()):
        sys.exit("Removed, so CHANGELOG.md must have under Unreleased: " + ", ".join(f"`{each}`" for each in missing))
    RECORD.write_text("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
