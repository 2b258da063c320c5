"""What other processes took of the machine while something was measured.

    others = (busy time of our cores + time stolen by the host - time of our own processes) / time by the clock

in cores, from Linux's `/proc/stat`; elsewhere nobody counts, and it is None.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

BUSY = (0, 1, 2, 5, 6, 7)
"""Of the columns of a core: user, nice, system, irq, softirq, steal. Guests are part of user."""
SPENT = (11, 12)
"""Of a process's columns after its name: time as user and as system."""


class Load(NamedTuple):
    """Of the time between two looks."""

    seconds: float
    others: float | None  # cores that others had on average
    average: float | None  # processes that wanted to run, over the last minute, our own included

    def plain(self) -> dict[str, Any]:
        return self._asdict()


def available() -> int:
    """The cores that this process may use."""
    return len(_cores()) or os.cpu_count() or 1


def watch(children: Sequence[int] = ()) -> Callable[[], Load]:
    """Begin to look; what it gives says how it was since then.

    Args:
        children: processes of ours that run beside this one, whose time is our own.
    """
    begin, busy, own = time.perf_counter(), _busy(), _own(children)

    def so_far() -> Load:
        now, passed = _busy(), time.perf_counter() - begin
        others = None
        if busy is not None and now is not None:
            others = max(0.0, now - busy - (_own(children) - own)) / passed
        average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        return Load(passed, others, average)

    return so_far


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _busy() -> float | None:
    """Seconds that our cores were busy, since the machine started."""
    with suppress(OSError):
        lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        ours = {f"cpu{core}" for core in _cores()}
        return sum(_seconds(words[1:], BUSY) for words in lines if words and words[0] in ours)
    return None


def _own(children: Iterable[int]) -> float:
    """Seconds that this process and those children spent on cores."""
    spent = time.process_time()
    for child in children:
        with suppress(OSError):  # it ended
            spent += _seconds(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split(), SPENT)
    return spent


def _seconds(columns: Sequence[str], which: Iterable[int]) -> float:
    return sum(int(columns[n]) for n in which if n < len(columns)) / os.sysconf("SC_CLK_TCK")
