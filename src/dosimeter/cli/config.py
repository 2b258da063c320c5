"""Options as a TOML file: read in place of words on the command line, and written into every run."""

import json
import tomllib
from enum import Enum
from pathlib import Path
from typing import Any

import click
import typer

from dosimeter import files
from dosimeter.cli.console import refusals
from dosimeter.errors import SettingError, unknown

RUN = "run.toml"
APART = ("config", "dry_run", "explain", "json", "out", "overwrite", "quiet")
"""Options that do not change what a run computes."""


def read_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Have the options of a file take the place of defaults; those on the command line win."""
    if path is None:
        return None
    with refusals():
        try:
            held = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SettingError(f"Expected a TOML file of options, but {str(path)!r}: {files.reason(error)}.") from None
        if not held:
            raise SettingError(f"Expected options in {str(path)!r}, got none; write some, or leave --config out.")
        if (meant := held.pop("command", ctx.info_name)) != ctx.info_name:
            raise SettingError(f"{str(path)!r} is of dosimeter {meant}, not of dosimeter {ctx.info_name}; use that.")
        known = {_written(param): param for param in ctx.command.params if _counts(param)}
        for key, value in held.items():
            if key not in known:
                raise SettingError(unknown(f"option in {path.name}", key, known))
            several = isinstance(value, list) and getattr(known[key], "multiple", False)
            if not all(isinstance(each, bool | int | float | str) for each in (value if several else [value])):
                form = "a table" if isinstance(value, dict) else "a list or another kind"
                raise SettingError(f"Expected a value of {key!r} in {path.name}, got {form}; write {key} = ...")
        ctx.default_map = {str(known[key].name): _typed(value) for key, value in held.items()}
    return path


def _typed(value: Any) -> Any:
    """A value as it would be typed, so that it is checked like any other."""
    if isinstance(value, list):
        return [_typed(each) for each in value]
    return value if isinstance(value, bool | str) else str(value)


def write_config(folder: Path) -> None:
    """Write the options of this command, so that `dosimeter COMMAND --config` does the same again.

    Options that were not given stand there as comments.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        return
    files.make_private(folder)  # most commands put private images into it
    said, lines = given(), [f"command = {json.dumps(ctx.info_name)}"]
    for param in ctx.command.params:
        value = ctx.params.get(str(param.name))
        if _counts(param) and value is not None:
            lines.append(f"{'' if param.name in said else '# '}{_written(param)} = {_toml(value)}")
    files.replace(folder / RUN, "\n".join(lines) + "\n")


def given() -> dict[str, str]:
    """{name: option as it is written} of all options that were given, in words or in a file."""
    ctx = click.get_current_context()
    sources = {param: ctx.get_parameter_source(str(param.name)) for param in ctx.command.params}
    return {
        str(param.name): f"--{_written(param)}"
        for param, source in sources.items()
        if source and source.name in ("COMMANDLINE", "DEFAULT_MAP")
    }


def refuse(owner: str, *names: str) -> None:
    """Refuse options that mean nothing for a command."""
    if needless := [option for name, option in given().items() if name in names]:
        raise SettingError(f"{owner} and has no use for {', '.join(needless)}; leave that out.")


def _counts(param: click.Parameter) -> bool:
    """Whether an option belongs in a file."""
    return param.name not in (*APART, "help") and not getattr(param, "hidden", False)


def _written(param: click.Parameter) -> str:
    return max(param.opts, key=len).lstrip("-")


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Enum | str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    return str(value).lower()  # true, false, inf, nan and numbers
