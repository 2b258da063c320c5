"""Faults that are no kills: disks that are full or read-only, two writers in one folder, clocks that jump."""

import ctypes
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from faults import children
from faults.table import Count, Whole, judged
from faults.writers import Writer, prepare

ROOM = 64 * 2**20
_LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_REMOUNT, MNT_DETACH = 1, 32, 2


def quota(writer: Writer, whole: Whole, place: Path, rng: random.Random) -> Count:
    """No file can grow beyond so many bytes, as on a disk that fills up."""
    here, most = prepare(place / "here"), int(10 ** rng.uniform(3.6, 5.0))  # what it says must fit

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        writer.work()

    return _judged(writer, whole, here, work, f"no file above {most:,} bytes")


def full(writer: Writer, whole: Whole, place: Path, rng: random.Random) -> Count:
    """A disk of its own that is too small, and then large enough."""
    size = int(2 ** rng.uniform(17, 21))
    with _disk(place / "here", size) as here:
        what = f"a disk of {size:,} bytes"
        code = children.run(writer.work, here)
        said = _said(here)
        _mount(here, MS_REMOUNT, f"size={ROOM}")
        return _after(writer, whole, here, what, code, said)


def read_only(writer: Writer, whole: Whole, place: Path, rng: random.Random) -> Count:
    """A disk that cannot be written, and then can."""
    with _disk(place / "here", ROOM) as here:
        _mount(here, MS_REMOUNT | MS_RDONLY, "")
        code = children.run(writer.work, here)
        said = _said(here)
        _mount(here, MS_REMOUNT, "")
        return _after(writer, whole, here, "a disk that is read-only", code, said)


def two(writer: Writer, whole: Whole, place: Path, rng: random.Random) -> Count:
    """Two at once in one folder, the second a moment later."""
    here = prepare(place / "here")
    first = children.start(writer.work, here)
    time.sleep(rng.uniform(0.0, 0.5) * whole.seconds)
    second = children.start(writer.work, here)
    codes = [children.wait(child) for child in (first, second)]
    for child, code in zip((first, second), codes, strict=True):
        if code is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    wrong = any(code not in (0, 2) for code in codes) or "Traceback" in _said(here)
    note = (f"two writers: they ended with {codes}",) if wrong else ()
    found = judged(writer, whole, here, "two writers")
    return found.plus(Count(corrupt=int(wrong), notes=note))


def clocks(writer: Writer, whole: Whole, place: Path, rng: random.Random) -> Count:
    """The time of day jumps by hours, to and fro, whenever somebody looks; it is killed on its way as well."""
    here, seed = prepare(place / "here"), rng.random()

    def jumping(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            _jump(random.Random(seed))
            work()

        return run

    after = rng.uniform(0.0, 1.0) * whole.seconds
    children.killed(jumping(writer.work), here, after, signal.SIGKILL)
    beside = writer._replace(again=lambda out: jumping(writer.again(out)))
    return judged(beside, whole, here, f"a clock that jumps, killed after {after:.3f} s")


FAULTS: dict[str, Callable[[Writer, Whole, Path, random.Random], Count]] = {
    "files limited": quota,
    "disk full": full,
    "disk read-only": read_only,
    "two writers": two,
    "clock jumps": clocks,
}
MOUNTS = ("disk full", "disk read-only")


def can_mount(place: Path) -> bool:
    """Whether this process may mount a disk."""
    tried = place / "tried"
    tried.mkdir(parents=True, exist_ok=True)
    try:
        _mount(tried, 0, "")
    except OSError:
        return False
    _LIBC.umount2(os.fsencode(tried), MNT_DETACH)
    return True


def _jump(rng: random.Random) -> None:
    """Only in a child: its time of day is any."""
    real = time.time

    def jumped() -> float:
        return real() + rng.uniform(-1e5, 1e5)

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(jumped(), tz or UTC) + timedelta(0)

    from dosimeter import store

    time.time = jumped
    store.datetime = Jumping  # type: ignore[misc]


def _judged(writer: Writer, whole: Whole, here: Path, work: Callable[[], None], what: str) -> Count:
    code = children.run(work, here)
    return _after(writer, whole, here, what, code, _said(here))


def _after(writer: Writer, whole: Whole, here: Path, what: str, code: int, said: str) -> Count:
    """The fault itself must have been said in a line, and all goes on after it."""
    wrong = code not in (0, 2) or "Traceback" in said
    note = (f"{what}: exit {code}, {said.splitlines()[-1:]}",) if wrong else ()
    (here.parent / "said.txt").write_text("")
    return judged(writer, whole, here, what).plus(Count(corrupt=int(wrong), notes=note))


def _said(here: Path) -> str:
    return (here.parent / "said.txt").read_text()


@contextmanager
def _disk(place: Path, size: int) -> Iterator[Path]:
    """A disk in memory at a place, with what writers need on it."""
    place.mkdir(parents=True)
    _mount(place, 0, f"size={ROOM}")
    try:
        prepare(place)
        _mount(place, MS_REMOUNT, f"size={max(size, _used(place))}")
        yield place
    finally:
        _LIBC.umount2(os.fsencode(place), MNT_DETACH)


def _used(place: Path) -> int:
    found = os.statvfs(place)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _mount(place: Path, flags: int, options: str) -> None:
    if _LIBC.mount(b"tmpfs", os.fsencode(place), b"tmpfs", flags, options.encode()):
        raise OSError(ctypes.get_errno(), "mount")
