"""Where items are run: one after another in this process, or in several side by side."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from dosimeter import checks, theirs
from dosimeter.errors import DosimeterError, OutputError, SettingError
from dosimeter.sweeps.store import Status, Store

HERE, LOCAL, RAY = "here", "local", "ray"

MOST = 1024
"""Processes side by side; nobody has the cores for more."""

WAIT = 0.5
"""Seconds between two looks at items that another process runs, at most."""

PATIENCE = 10.0
"""Seconds that a process has to give back what it was running when it is told to stop."""


class Asked(Protocol):
    """An item in words, which other processes make it of."""

    def prepare(self) -> "Item": ...


class Loaded(Protocol):
    """All that an item takes to run, in memory, so that it can be sent where none of our files are."""

    def run(self, folder: Path, needed: Any = None, *, workers: int | None = None) -> Any:
        """What comes of it on so many threads; what it writes while it runs goes into the folder."""

    def demand(self) -> tuple[int, int]:
        """GPUs, and bytes of memory on one thread."""


class Item(Protocol):
    """Something that is run once and kept: an audit, a training."""

    @property
    def digest(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def words(self) -> Mapping[str, Any]: ...
    @property
    def asked(self) -> Asked: ...
    @property
    def needs(self) -> "Item | None":
        """What it is made of, which others may share."""

    def run(self, folder: Path, needed: Any = None, *, workers: int | None = None) -> Any:
        """As its `loaded` does."""

    def loaded(self) -> Loaded: ...

    def keep(self, store: Store, found: Any, seconds: float) -> None:
        """Enter what came of it into the store, as done."""

    def read(self, folder: Path, *, workers: int | None = None) -> Any:
        """What came of it when it was done, for those that need it."""


Tell = Callable[[], None]
"""Called whenever something may have changed."""


class Place(Protocol):
    """Runs all items that the store misses; those that other processes run are waited for."""

    @property
    def workers(self) -> int:
        """How many items run at once."""

    def run(self, items: Sequence[Item], store: Store, tell: Tell) -> None: ...


@dataclass(frozen=True)
class Here:
    """This process, with so many threads an item; all cores by default."""

    threads: int | None = None
    workers: int = 1

    def run(self, items: Sequence[Item], store: Store, tell: Tell) -> None:
        """Items of other processes are looked at again once all others are done."""
        left, pause = list(items), _pauses()
        while left := self.take(left, store, tell):
            time.sleep(next(pause))

    def take(self, items: Sequence[Item], store: Store, tell: Tell) -> list[Item]:
        """Run all that nobody else has; gives those that others run."""
        waiting = list[Item]()
        for one in items:
            entry = store.entry(one.digest)
            if entry is not None and entry.status is not Status.RUNNING:
                continue
            if store.claim(one.digest, one.kind, one.words, uses=one.needs.digest if one.needs else None):
                try:
                    tell()
                except BaseException:
                    store.release(one.digest)
                    raise
                self._run(one, store)
            else:
                waiting.append(one)
        tell()
        return waiting

    def _run(self, one: Item, store: Store) -> None:
        """One claimed item, with what it needs; what fails is kept and stops nothing else."""
        try:
            needed = self._needed(one.needs, store) if one.needs else None
            began = time.monotonic()
            found = one.run(store.place(one.digest), needed, workers=self.threads)
            one.keep(store, found, time.monotonic() - began)
        except KeyboardInterrupt:
            store.release(one.digest)
            raise KeyboardInterrupt from None
        except OutputError:  # a disk that is full is no fault of the item's, and of no use to the next one
            with suppress(DosimeterError):
                store.release(one.digest)
            raise
        except Exception as error:  # whatever a part of the user's raises is kept for them to see
            store.fail(one.digest, why(error))

    def _needed(self, one: Item, store: Store) -> Any:
        """What the store has of an item, or what comes of it now; others wait for it."""
        pause, uses = _pauses(), one.needs.digest if one.needs else None
        while not store.claim(one.digest, one.kind, one.words, uses=uses, again=True):
            entry = store.entry(one.digest)
            if entry is not None and entry.status is Status.DONE:
                return one.read(store.place(one.digest), workers=self.threads)
            time.sleep(next(pause))
        try:
            needed = self._needed(one.needs, store) if one.needs else None
            began = time.monotonic()
            found = one.run(store.place(one.digest), needed, workers=self.threads)
        except BaseException:
            store.release(one.digest)
            raise
        one.keep(store, found, time.monotonic() - began)
        return found


@dataclass(frozen=True)
class Local:
    """Processes of one thread each, which take items from the store until none is left."""

    workers: int

    def run(self, items: Sequence[Item], store: Store, tell: Tell) -> None:
        if items:
            self._side_by_side([Later(each) for each in items], store.folder, tell)
        Here().run(items, store, tell)  # what is left where processes were killed

    def _side_by_side(self, items: list["Later"], folder: Path, tell: Tell) -> None:
        made = processes()
        given = (items, str(folder), dict(os.environ))
        working = [made.Process(target=_work, args=given, daemon=True) for _ in range(min(self.workers, len(items)))]
        for each in working:
            each.start()
        try:
            while any(each.is_alive() for each in working):
                multiprocessing.connection.wait([each.sentinel for each in working if each.is_alive()], WAIT)
                tell()
        finally:
            for each in working:
                each.terminate()
            for each in working:
                each.join(PATIENCE)
                each.kill()


class Later:
    """An item that is made of its words by whoever runs it; until then its digest is enough."""

    def __init__(self, one: Item) -> None:
        self.asked, self.digest, self.kind, self.words = one.asked, one.digest, one.kind, dict(one.words)

    @cached_property
    def made(self) -> Item:
        found = self.asked.prepare()
        if found.digest != self.digest:
            raise DosimeterError("Its data, its parts or the program changed while the sweep ran; start it again.")
        return found

    @property
    def needs(self) -> Item | None:
        return self.made.needs

    def run(self, folder: Path, needed: Any = None, *, workers: int | None = None) -> Any:
        return self.made.run(folder, needed, workers=workers)

    def loaded(self) -> Loaded:
        return self.made.loaded()

    def keep(self, store: Store, found: Any, seconds: float) -> None:
        self.made.keep(store, found, seconds)

    def read(self, folder: Path, *, workers: int | None = None) -> Any:
        return self.made.read(folder, workers=workers)


def processes() -> Any:
    """How processes are started: as copies of one that has imported all, where the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["dosimeter.sweeps", "dosimeter.reports", "torch._dynamo"])
    return made


def _work(items: list[Later], folder: str, environment: dict[str, str]) -> None:
    """A process that takes items until none is left that others do not run, which whoever started it waits for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it hears Ctrl-C and ends it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.environ.update(environment)
    torch.set_num_threads(1)
    with suppress(KeyboardInterrupt), Store(folder) as store:
        Here(threads=1).take(items, store, lambda: None)


def _end_with(parent: Any) -> None:
    """Stop this process when the one that started it is gone."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _pauses() -> Iterator[float]:
    """Seconds between two looks, short ones first."""
    pause = 0.01
    while True:
        yield pause
        pause = min(WAIT, 2 * pause)


def place_of(on: str) -> Place:
    """The place that words name: here, local:2, ray, ray:HOST:PORT, ray://HOST:PORT."""
    name, _, rest = on.partition(":")
    if on == HERE:
        return Here()
    if name == RAY:
        try:
            from dosimeter.sweeps.cluster import Cluster
        except ImportError:
            raise SettingError(f"--on {on} needs Ray; install it with pip install 'dosimeter[ray]'.") from None
        return Cluster(on if rest.startswith("//") else rest or None)
    if name != LOCAL or not rest.isdecimal():
        raise SettingError(
            f"Expected a place to run trials (--on), here, local:2, ray or the address of a Ray cluster as "
            f"ray://HOST:10001 or ray:HOST:6379, got {on!r}."
        )
    many = int(rest[:10])  # thousands of digits are no number for Python
    checks.count(f"--on {LOCAL}:{rest[:10]}", "a number of processes", many, most=MOST)
    return Local(many)


def why(error: Exception) -> str:
    """For people: what is wrong in one line where that is known, and the traceback where it is not."""
    return str(error) if isinstance(error, DosimeterError) else theirs.blamed(error) or traceback.format_exc()
