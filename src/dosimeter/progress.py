"""Progress bars: on a terminal one line that moves, elsewhere silence."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.errors import LiveError
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dosimeter.lines import clean


class Advance(Protocol):
    """Tells a bar how far the work is, and in a few words how it goes."""

    def __call__(self, done: float, note: str = "", *, total: float | None = None) -> None: ...


def _silent(done: float, note: str = "", *, total: float | None = None) -> None:
    return


def duration(seconds: float) -> str:
    """Seconds as a person says them: 4.2 s, 3 min 07 s, 2 h 05 min."""
    if seconds < 59.95:  # which rounds to 60.0
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


@contextmanager
def bar(title: str, total: float | None, *, bytes_: bool = False, show: bool | None = None) -> Iterator[Advance]:
    """A bar on standard error while the block runs; nothing at all when standard error is no terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield _silent
        return
    amount = DownloadColumn() if bytes_ else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description}", markup=False),  # a name of a file, perhaps
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    try:
        progress.start()
    except LiveError:  # inside another bar, which older releases of rich do not take
        yield _silent
        return
    try:
        task = progress.add_task(clean(title), total=total, note="")

        def advance(done: float, note: str = "", *, total: float | None = None) -> None:
            if total is None:
                progress.update(task, completed=done, note=note)
            else:
                progress.update(task, completed=done, note=note, total=total)

        yield advance
    finally:
        progress.stop()
