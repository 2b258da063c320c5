"""Where a run comes to stand: in a folder of its own, as a whole or not at all, and never in place of foreign files.

It is written into the hidden folder `.dosimeter-NAME` beside its place NAME, which only its owner may enter and which
no two processes can have:

    run/              what is written; it takes its place by renaming
    old/              the older run, for the moment of that renaming
    overwrite         there where an older run is to give way
    dosimeter.lock    held by the living process; where it is free, its process was killed

A run's folder is open to its owner alone, since it holds private images; one that was there before keeps its mode.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from dosimeter import files
from dosimeter.errors import OutputError
from dosimeter.files import LOCK, PRIVATE, locked
from dosimeter.store import RUN, finished_run, is_run, stranger, unfinished

PREFIX, NEW, GIVES_WAY = ".dosimeter-", ".new", "overwrite"


class Draft(NamedTuple):
    """Where to write a run, and the folder that has it in the end."""

    place: Path
    folder: Path


class TakenError(OutputError):
    """A folder that holds something already, or that another process is about to write."""


@contextmanager
def reserve(folder: Path, *, overwrite: bool = False, numbered: bool = False, goes_on: str = "") -> Iterator[Draft]:
    """Take a folder for a run, before hours of work are lost to a wrong path, and put there what the block writes.

    What the block wrote vanishes when it fails, unless that is a run by then, which is kept.

    Args:
        overwrite: an older run gives way in the end, if there is nothing in its folder but that run.
        numbered: take the first of folder-1, folder-2, ... that is free.
        goes_on: what is made; an unfinished run of the same is taken up again, with all that lies in its folder.
    """
    for number in count(1):
        chosen = folder.with_name(f"{folder.name}-{number}") if numbered else folder
        try:
            held = _Held(chosen, overwrite, goes_on)
            break
        except TakenError:
            if not numbered:
                raise
    written = False
    try:
        yield Draft(held.draft, chosen)
        written = True
    finally:
        with files.undisturbed(), held.lock:
            if written or (held.draft / RUN).is_file():
                held.install()
            held.remove()


class _Held:
    """A place for a run that no other process can take."""

    def __init__(self, folder: Path, overwrite: bool, goes_on: str) -> None:
        self.folder, self.overwrite, self.goes_on = folder, overwrite, goes_on
        self.lock, self.missing = ExitStack(), list[Path]()
        try:
            self.place = folder.resolve()
            self.hidden = self.place.with_name(PREFIX + self.place.name)
            self.draft, self.aside = self.hidden / "run", self.hidden / "old"
            self.missing = [parent for parent in self.place.parents if not parent.exists()]
            self.place.parent.mkdir(parents=True, exist_ok=True)
            with files.undisturbed():
                adopted = self._adopt()
                _clear(self.place.parent)
                if is_run(self.place):
                    files.clear(self.place)
                if not adopted:
                    self._take()
                try:
                    self._check()  # now that no other audit can come between
                    if not adopted and self._unfinished():
                        self.draft.rmdir()
                        os.rename(self.place, self.draft)
                except BaseException:
                    with self.lock:
                        if not adopted:
                            self.remove()
                    raise
        except (OSError, ValueError, RuntimeError) as error:
            self._prune()
            raise files.refused(folder, error) from None  # a null byte is a ValueError, a loop of links a RuntimeError

    def _check(self) -> None:
        """Refuse a place that is taken."""
        place, folder = self.place, str(self.folder)
        if place in (Path.cwd(), *Path.cwd().parents):
            raise OutputError(f"Expected a folder of its own, got {folder!r}, where we stand; choose another --out.")
        if place.exists() and not place.is_dir():
            raise TakenError(f"Expected a folder to write, but {folder!r} is a file; choose another --out.")
        if not place.exists() or not any(place.iterdir()):
            return
        if not is_run(place):
            raise TakenError(
                f"Expected a new or empty folder, but {folder!r} holds files that are no run of dosimeter, which "
                "--overwrite would not replace either; choose another --out."
            )
        if not self.overwrite and not self._unfinished():
            raise TakenError(
                f"Expected a new or empty folder, but {folder!r} holds an older run; replace it with --overwrite or "
                "choose another --out."
            )
        if foreign := stranger(place):
            raise TakenError(
                f"Expected a run and nothing else to replace, but {folder!r} holds {str(foreign)!r} too; move that "
                "away or choose another --out."
            )

    def _unfinished(self) -> bool:
        """Whether the same was begun in the place before."""
        return bool(self.goes_on) and unfinished(self.place) == self.goes_on

    def _adopt(self) -> bool:
        """Take over what a killed process left of the same."""
        if not self.goes_on or unfinished(self.draft) != self.goes_on:
            return False
        with suppress(ImportError, OSError):
            lock = self.lock.enter_context(locked(self.hidden / LOCK))
            return os.path.samestat(os.stat(self.hidden / LOCK), os.fstat(lock))  # else it was cleared by now
        return False

    def _take(self) -> None:
        """Made beside its place and renamed: whoever is killed before has taken nothing."""
        made = self.hidden.with_name(f"{self.hidden.name}.{os.getpid()}{NEW}")
        made.mkdir(mode=PRIVATE)
        (made / self.draft.name).mkdir(mode=PRIVATE)  # as is the run folder which it becomes
        if self.overwrite:
            (made / GIVES_WAY).touch()
        self.lock.enter_context(files.holding(made / LOCK))
        try:
            os.rename(made, self.hidden)
        except OSError as error:
            with self.lock:
                shutil.rmtree(made, ignore_errors=True)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise TakenError(
                f"Expected a folder of its own, but another audit is writing {str(self.folder)!r} in "
                f"{str(self.hidden)!r} ({files.reason(error)}); wait for its end or choose another --out."
            ) from None

    def install(self) -> None:
        """Have the draft take its place."""
        try:
            self._check()  # again: another program may have been quicker
            _exchange(self.draft, self.place, self.aside)
        except (OSError, OutputError) as error:
            # Only the name was refused, so the work is kept: nobody clears what has no lock.
            (self.hidden / LOCK).unlink(missing_ok=True)
            raise OutputError(
                f"The run is written but could not be moved: {files.reason(error)} It is in {self.draft}."
            ) from None

    def remove(self) -> None:
        """Leave nothing behind, neither of a run that failed nor of the way of one that did not."""
        _remove(self.hidden)
        self._prune()

    def _prune(self) -> None:
        """Remove the folders above the place that were made for it, where they are empty."""
        with suppress(OSError):
            for parent in self.missing:
                parent.rmdir()


def _exchange(draft: Path, place: Path, aside: Path) -> None:
    """Rename a draft to its place; what was there lies aside until that has worked, and lends its mode."""
    if place.exists():
        draft.chmod(place.stat().st_mode & 0o777)
        os.rename(place, aside)
    try:
        os.rename(draft, place)
    except BaseException:
        if aside.exists():
            os.rename(aside, place)
        raise


def _clear(parent: Path) -> None:
    """Remove what killed processes left in this folder; a run that one of them had finished takes its place."""
    for hidden in parent.glob(f"{PREFIX}*"):
        maker = hidden.stem.rpartition(".")[2]
        if hidden.suffix == NEW and maker.isdecimal() and not files.runs(int(maker)):
            shutil.rmtree(hidden, ignore_errors=True)
            continue
        with suppress(ImportError, OSError), locked(hidden / LOCK) as lock:
            if os.path.samestat(os.stat(hidden / LOCK), os.fstat(lock)):  # else cleared and taken anew by now
                place = hidden.with_name(hidden.name.removeprefix(PREFIX))
                if (hidden / "run" / RUN).is_file() and (not place.exists() or _gives_way(hidden, place)):
                    _exchange(hidden / "run", place, hidden / "old")
                _remove(hidden)


def _gives_way(hidden: Path, place: Path) -> bool:
    """Whether a killed process was done but for the moment in which the older run would have given way."""
    whole = (hidden / GIVES_WAY).exists() and finished_run(hidden / "run")
    return whole and is_run(place) and stranger(place) is None


def _remove(hidden: Path) -> None:
    """The lock goes last, so that what a killed process leaves of this is cleared another time."""
    for path in (hidden / "run", hidden / "old", hidden):
        shutil.rmtree(path, ignore_errors=True)
