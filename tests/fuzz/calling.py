"""One call of the command line in a process of its own, with a limit of time and of memory, and how it ended.

Processes are forked from one that has torch, which takes a twentieth of a second; each runs in a folder of its own.
"""

import faulthandler
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

SECONDS = 30.0
"""Of a core after which a call hangs; one that waits does after as many times longer by the clock as follows, since the
machine may be busy."""
WAITING = 5
ROOM = 2 * 2**30
"""Bytes that a call may take beside the program itself; none of the calls asks for anything large that is sane."""


class Call(NamedTuple):
    """The words of a command, and whether it may be accepted."""

    kind: str
    words: tuple[str, ...]
    sane: bool = False


class Ending(StrEnum):
    REFUSED = "refused well"
    ACCEPTED = "accepted"
    TRACEBACK = "tracebacks"
    HUNG = "hung"
    OVER = "over budget"
    WRONG = "wrongly accepted"

    @property
    def bad(self) -> bool:
        return self not in (Ending.REFUSED, Ending.ACCEPTED)


class Seen(NamedTuple):
    """What came of a call."""

    call: Call
    ending: Ending
    code: int
    said: str  # on standard error
    seconds: float  # of a core
    bytes: int  # beside the program itself


def attempt(call: Call, *, seconds: float = SECONDS, room: int = ROOM) -> Seen:
    """Make the call, and end it where it takes too long or too much."""
    place = Path(tempfile.mkdtemp(prefix="dosimeter-fuzz-"))
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, of which torch may keep some
        child = os.fork()
    if child == 0:
        _become(call, place)
    before = _resident(child)  # less than its parent's: files that are mapped are not there before they are touched
    cut: Ending | None = None
    most = 0
    while not (found := os.wait4(child, os.WNOHANG))[0]:
        most = max(most, _resident(child) - before)
        if most > room:
            cut = Ending.OVER
        elif _spent(child) > seconds or time.monotonic() - began > WAITING * seconds:
            cut = Ending.HUNG
            os.kill(child, signal.SIGUSR1)  # says where it stands
            time.sleep(0.2)
        if cut:
            os.killpg(child, signal.SIGKILL)
            found = os.wait4(child, 0)
            break
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(found[1])
    took = found[2].ru_utime + found[2].ru_stime
    most = max(most, 1024 * found[2].ru_maxrss - before)
    said = (place / "stderr").read_text(errors="replace")
    shutil.rmtree(place)
    ending = cut or (Ending.OVER if most > room else _judged(call, code, said))
    return Seen(call, ending, code, said, took, most)


def _become(call: Call, place: Path) -> None:
    """Be the program, called by these words; never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(place)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))  # not those of a test's
        warnings.resetwarnings()  # which tests turn into errors
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        os.environ["DOSIMETER_CACHE"] = str(place / "cache")
        sys.argv = ["dosimeter", *call.words]
        code = _called()
    finally:
        os._exit(code)


def _called() -> int:
    from dosimeter.cli import main

    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _judged(call: Call, code: int, said: str) -> Ending:
    """How a call ended that came to its end by itself: 1 and 3 are a gate's."""
    if "Traceback (most recent call last)" in said or code not in (0, 1, 2, 3):
        return Ending.TRACEBACK
    if code == 2:
        return Ending.REFUSED if _is_a_refusal(said) else Ending.TRACEBACK
    if code == 1 and _is_a_failure(said):
        return Ending.REFUSED
    return Ending.ACCEPTED if call.sane else Ending.WRONG


def _is_a_refusal(said: str) -> bool:
    """One line of ours, or what the reader of options says of a wrong one."""
    lines = said.rstrip("\n").splitlines()
    ours = [at for at, line in enumerate(lines) if line.startswith("dosimeter: ")]
    return ours == [len(lines) - 1] or (not ours and "Usage:" in said)


def _is_a_failure(said: str) -> bool:
    """Trials of a store that failed, at the end of which every reason is said in a line, and how many there are."""
    *_, reason, last = ["", "", *said.rstrip("\n").splitlines()]
    return reason.startswith("Failed: ") and "failed; see dosimeter store list" in last


def _spent(process: int) -> float:
    """Seconds of a core, of its threads and of those it started that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError, IndexError):  # it has just ended
        return 0
