"""Where the command line writes, and how it refuses."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

from dosimeter.errors import DosimeterError

out, err = Console(), Console(stderr=True)


@contextmanager
def refusals() -> Iterator[None]:
    """Bad input becomes one line on standard error and exit code 2."""
    try:
        yield
    except DosimeterError as reason:
        err.print(f"dosimeter: {escape(str(reason))}", style="red", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from None
