"""Files that are there as a whole or not at all, whenever the program is stopped.

What a killed process leaves half-written has a hidden name and a lock that nobody holds. The next one that writes there
removes it.
"""

import glob
import json
import math
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from dosimeter.errors import OutputError

PRIVATE = 0o700
"""The mode of folders for private images: only their owner enters."""

SCRATCH, LOCK = "dosimeter-scratch-", "dosimeter.lock"
LARGEST = 2**64
"""Whole numbers beyond this are none of ours, and overflow where they are used."""

STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask the program to stop; Windows lacks the last."""


def replace(path: str | Path, content: bytes | str, *, instead: str = "--out", mode: int = 0o666) -> None:
    """Put a file in its place in one go, with the folders above it; an older one gives way only then.

    What is no file, such as /dev/null or a pipe, is written to and stays what it is.

    Args:
        instead: what the user can choose where this place cannot be written.
        mode: who may read it, less what the process masks.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.is_char_device() or path.is_fifo():
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        clear(path.parent, path.name)
        with ExitStack() as held:
            held.callback(draft.unlink, missing_ok=True)
            draft.touch(mode)  # before there is anything to read
            with suppress(ImportError, OSError):  # where files have no locks, others go by the process
                held.enter_context(locked(draft))
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
            draft.replace(path)
    except OSError as error:
        raise refused(path, error, instead) from None


def clear(folder: Path, name: str = "*") -> None:
    """Remove what killed processes left of files in a folder, or of the one of that name."""
    for draft in folder.glob(f".{'*' if name == '*' else glob.escape(name)}.*"):
        process = draft.suffix.removeprefix(".")
        if process.isdecimal() and not runs(int(process)):  # and nowhere else, or its lock is held
            with suppress(ImportError, OSError), locked(draft):
                draft.unlink(missing_ok=True)


def runs(process: int) -> bool:
    """Whether a process of this machine has that number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it is somebody else's
    return True


@contextmanager
def locked(path: Path, flags: int = 0) -> Iterator[int]:
    """An open file that no other process has locked; OSError where one has, or where files have no locks."""
    import fcntl  # which Windows lacks

    handle = os.open(path, os.O_RDWR | flags, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield handle
    finally:
        os.close(handle)


@contextmanager
def holding(path: Path) -> Iterator[None]:
    """Hold a new lock, where files have such.

    It is held before it gets its name: one that is free is a dead process's, and what has none is never cleared.
    """
    with ExitStack() as held:
        with suppress(ImportError, OSError):
            held.enter_context(locked(path.with_name(f"{path.name}.new"), os.O_CREAT))
            os.rename(path.with_name(f"{path.name}.new"), path)
        yield


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for as long as the block runs, which only its owner may enter."""
    clear_scratch()
    made = tempfile.TemporaryDirectory(prefix=SCRATCH, ignore_cleanup_errors=True)
    with made as place, holding(Path(place) / LOCK):
        yield Path(place)


def clear_scratch() -> None:
    """Remove the scratch folders of killed processes, which may hold private images."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with suppress(ImportError, AttributeError, OSError):  # Windows has neither users nor locks like these
            if left.lstat().st_uid == os.geteuid() and not left.is_symlink():
                with locked(left / LOCK):
                    shutil.rmtree(left, ignore_errors=True)


def make_private(folder: Path, *, instead: str = "--out") -> None:
    """Make a folder that only its owner may enter; one that is there stays as it is."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=PRIVATE)
    except OSError as error:
        raise refused(folder, error, instead) from None


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


def read_json(path: str | Path, *, finite: bool = False) -> dict[str, Any]:
    """What `replace_json` wrote; OSError, or ValueError where it is anything else, or not finite where it must be."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"it holds {constant:.20}")

    def whole(text: str) -> int:
        return found if abs(found := int(text)) <= LARGEST else refuse(text)

    def real(text: str) -> float:
        return found if math.isfinite(found := float(text)) or not finite else refuse(text)

    try:
        text = Path(path).read_text(encoding="utf-8")
        value = json.loads(text, parse_constant=refuse if finite else float, parse_int=whole, parse_float=real)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__} and no object")
    return value


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
