"""Programs that are forked from this process, which has all imported, so that each begins at once."""

import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

LONGEST = 120.0
"""Seconds after which a child that does not end is taken for one that never will."""


def start(work: Callable[[], None], place: Path, said: str = "said.txt") -> int:
    """Run a function in a child of its own, in a folder; what it prints goes to a file beside that."""
    place.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        os.chdir(place)
        temporary = place.parent / "tmp"
        temporary.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout = sys.stderr = open(place.parent / said, "a", buffering=1)  # noqa: SIM115
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            with suppress(OSError):  # of a disk that is full
                sys.stdout.flush()
        finally:
            os._exit(code)  # whatever comes: this is no place for a child to go on


def warm(work: Callable[[], None], place: Path) -> None:
    """Run a function here first, so that its children find everything imported."""
    before = Path.cwd()
    os.chdir(place)
    try:
        with open(place.parent / "said.txt", "w") as said, redirect_stdout(said), redirect_stderr(said):
            work()
    except SystemExit as end:
        if end.code:
            raise AssertionError((place.parent / "said.txt").read_text()) from None
    finally:
        os.chdir(before)


def wait(child: int, seconds: float = LONGEST) -> int | None:
    """The child's exit code, negative for a signal; None where it has not ended by then."""
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.001)


def run(work: Callable[[], None], place: Path) -> int:
    """Run a function to its end."""
    child = start(work, place)
    code = wait(child)
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError(f"a child in {place} did not end in {LONGEST} s")
    return code


def killed(work: Callable[[], None], place: Path, after: float, by: int) -> int:
    """Send a signal after so many seconds; the exit code, which is the child's own where it was quicker."""
    child = start(work, place)
    code = wait(child, after)
    if code is not None:
        return code
    os.kill(child, by)
    code = wait(child)
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError(f"a child in {place} did not heed signal {by}")
    return code


def command(*words: str) -> Callable[[], None]:
    """The command line with these words."""

    def work() -> None:
        from dosimeter.cli import main

        sys.argv = ["dosimeter", *words]
        main()

    return work
