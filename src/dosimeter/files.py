"""Files that are there as a whole or not at all, whenever the program is stopped."""

import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dosimeter.errors import OutputError

STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask the program to stop; Windows lacks the last."""


def replace(path: str | Path, content: bytes | str, *, instead: str = "--out", mode: int = 0o666) -> None:
    """Put a file in its place in one go, with the folders above it; an older one gives way only then.

    Args:
        instead: what the user can choose where this place cannot be written.
        mode: who may read it, less what the process masks.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.touch(mode)  # before there is anything to read
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise refused(path, error, instead) from None


def replace_json(path: str | Path, value: dict[str, Any], *, instead: str = "--out", mode: int = 0o666) -> None:
    """The same of a value, as JSON."""
    replace(path, json.dumps(value, indent=1) + "\n", instead=instead, mode=mode)


def check_writable(folder: str | Path, *, instead: str = "--out") -> None:
    """Refuse a folder that cannot be written, before work is lost to it, by writing there; nothing of that stays."""
    missing: list[Path] = []
    try:
        place = Path(folder).resolve()
        missing = [each for each in (place, *place.parents) if not each.exists()]
        if missing:
            place.mkdir(parents=True)
        tempfile.TemporaryFile(dir=place).close()
    except (OSError, ValueError, RuntimeError) as error:  # a null byte is a ValueError, a loop of links a RuntimeError
        raise refused(folder, error, instead) from None
    finally:
        with suppress(OSError):
            for each in missing:
                each.rmdir()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Have Ctrl-C and the signals like it wait until the block is done, where this is the main thread."""
    main, waiting = threading.current_thread() is threading.main_thread(), list[int]()
    before = {each: handler for each in STOPS if callable(handler := signal.getsignal(each)) and main}
    for each in before:  # one that is ignored, or that ends the process at once, stays
        signal.signal(each, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if waiting:
            signal.raise_signal(waiting[0])


@contextmanager
def alone(folder: Path, *, instead: str = "--out") -> Iterator[None]:
    """Hold a folder, which is made, against other processes, where the system can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(folder, error, instead) from None
    handle = None
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    except (ImportError, OSError):
        pass  # Windows and some network drives have no such lock
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def check_same(place: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse what was made with other settings than those of now, as plain values, and say which."""
    now = json.loads(json.dumps(now))
    other = [(key, was.get(key), now.get(key)) for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
    if other:
        said = [f"{key} ({then}, now {today})" if len(f"{then}{today}") < 100 else key for key, then, today in other]
        raise OutputError(
            f"{str(place)!r} was made with another {', '.join(said)}; choose another --out or say the same."
        )


def refused(path: str | Path, error: Exception, instead: str = "--out") -> OutputError:
    """The sentence for a place that cannot be written."""
    return OutputError(f"Cannot write {str(path)!r}: {reason(error)}; choose another {instead}.")


def reason(error: Exception) -> str:
    """An error in a few words of one line."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(text.split())
