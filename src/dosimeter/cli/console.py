"""Where the command line writes, how it refuses, and how it is stopped."""

import errno
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click
import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from dosimeter import files, lines, theirs
from dosimeter.errors import DosimeterError
from dosimeter.files import STOPS


class _Clean(Console):
    """One on which nothing that is printed steers the terminal, wherever its text came from."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(lines.clean(text), **how)


out, err = _Clean(), _Clean(stderr=True)


def hint(words: str) -> None:
    """The last line of a command: what to look at next."""
    lines.fact(out, "next", words)


def page(where: Path | str) -> None:
    """Say where the page is."""
    lines.fact(out, "report", str(where))


def markdown(text: str) -> None:
    """Text with tables: on a terminal such as fit it, elsewhere as it is, for documents."""
    if out.is_terminal:
        lines.markdown(out, text)
    else:
        out.print(text, markup=False, highlight=False, soft_wrap=True)


OUTSIDE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""What a disk may refuse at any moment, which is no mistake of the program's."""

COMMAND = "dosimeter.words"
"""Where a context has the words of the command line."""


def command() -> str:
    """The command as it was given, with files that lie elsewhere on this machine by their names alone."""
    context = click.get_current_context(silent=True)
    words = context.meta.get(COMMAND, []) if context else []
    shown = [re.sub(r"(^|[=|:,+])/(?:[^/|=,:]*/)*", r"\1", word) for word in words]
    return shlex.join(["dosimeter", *shown]) if words else ""


@contextmanager
def refusals() -> Iterator[None]:
    """Bad input becomes one line on standard error and exit code 2; a stop that nobody heeded becomes 130."""
    try:
        yield
    except DosimeterError as reason:
        raise _refused(" ".join([str(reason), *getattr(reason, "__notes__", ())])) from None
    except KeyboardInterrupt:
        err.print("Interrupted.")
        raise typer.Exit(130) from None
    except (Exception, SystemExit) as error:
        if (said := theirs.blamed(error) or _disk(error) or _memory(error)) is None:
            raise  # a mistake of ours
        raise _refused(said) from None


def _refused(said: str) -> typer.Exit:
    said = " ".join(said.split("\n"))
    err.print(f"dosimeter: {escape(said)}", style="red", soft_wrap=True, highlight=False)
    return typer.Exit(2)


def _disk(error: BaseException) -> str | None:
    """What to do where a disk is full or cannot be written; None of any other error."""
    if not isinstance(error, OSError) or error.errno not in OUTSIDE:
        return None
    where = "" if error.filename is None else f" {str(error.filename)!r}"
    return f"Cannot write{where}: {files.reason(error)}; make room or write elsewhere."


def _memory(error: BaseException) -> str | None:
    """What to do where the machine has no more memory; None of any other error."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        return f"There is not enough memory here ({theirs.words(error)}); attack fewer or smaller images at once."
    return None


@contextmanager
def drawing(folder: Path) -> Iterator[None]:
    """Say of a page that fails that all else was written before it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"The results are kept in {str(folder)!r}; only their page is missing.")
        raise


@contextmanager
def stoppable() -> Iterator[None]:
    """Have SIGTERM and SIGHUP stop the program as Ctrl-C does, and tell of each by its own exit code.

    What is ignored, as background jobs and nohup have it, stays so. One SIGTERM or SIGHUP is enough: a terminal that is
    closed sends several, of which the second would break off what the first had written.
    """
    heard: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        heard.append(number)
        if number == signal.SIGINT or len(heard) == 1:
            raise KeyboardInterrupt

    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {each: handler for each in STOPS if (handler := signal.getsignal(each)) in usual}
    for each in before:
        signal.signal(each, ask)
    try:
        yield
    except KeyboardInterrupt:  # before or after all commands
        sys.exit(128 + (heard or [signal.SIGINT])[0])
    except SystemExit as end:
        if heard and end.code in (1, 130):  # 1 is click's for a Ctrl-C outside of all commands
            sys.exit(128 + heard[0])
        raise
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
