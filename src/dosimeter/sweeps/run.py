"""Many trials as one: those that the store has cost nothing, the others run in turn or side by side."""

import multiprocessing
import multiprocessing.connection
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dosimeter.errors import DosimeterError, SettingError
from dosimeter.federated import Training
from dosimeter.sweeps.store import Entry, Status, Store
from dosimeter.sweeps.table import Table
from dosimeter.sweeps.trial import Prepared, Trial, product_of, trained_numbers

HERE, LOCAL = "here", "local"
"""Where trials run."""

WAIT = 0.5
"""Seconds between two looks at trials that another process runs."""


@dataclass
class Progress:
    """How far a sweep is, for whoever shows it."""

    digests: frozenset[str]
    before: frozenset[str]  # those that were done when it began
    workers: int = 1
    done: int = 0
    failed: int = 0
    running: tuple[str, ...] = ()  # their words, here and in other processes
    seconds: float = 0.0  # of those that were done since

    @property
    def kept(self) -> int:
        return len(self.before)

    @property
    def left(self) -> int:
        return len(self.digests) - self.kept - self.done - self.failed

    @property
    def remaining(self) -> float | None:
        """Seconds that the rest may take by those that were run; None before the first."""
        return self.seconds / self.done * self.left / self.workers if self.done else None

    def look(self, store: Store) -> "Progress":
        """As the store says it is by now."""
        mine = [each for digest, each in store.standing().items() if digest in self.digests - self.before]
        took = [seconds or 0.0 for status, seconds in mine if status is Status.DONE]
        self.done, self.seconds = len(took), sum(took)
        self.failed = sum(status is Status.FAILED for status, _ in mine)
        running = [each for each in store.entries(Status.RUNNING) if each.digest in self.digests]
        self.running = tuple(_said(each.words) for each in running)
        return self


Told = Callable[[Progress], None]


def sweep(
    axes: Mapping[str, Any] | Sequence[Trial],
    *,
    store: str | Path = "sweep",
    on: str = HERE,
    retry_failed: bool = False,
    told: Told | None = None,
) -> Table:
    """Run every trial that the store does not have, and give all of them as a table.

    Args:
        axes: {setting of `Trial`: value or values}, of which every combination is tried; or trials.
        store: the folder of trials, which is made; other sweeps may share it.
        on: "here", one after another with all cores; or "local:2", two processes of one thread each.
        retry_failed: run those again that failed before.
        told: how far it is, whenever that changes.
    """
    trials = list(product_of(axes)) if isinstance(axes, Mapping) else list(axes)
    prepared = list({each.digest: each for each in map(Trial.prepare, trials)}.values())
    workers, wanted = _workers(on), frozenset(each.digest for each in prepared)
    with Store(store) as kept:
        if retry_failed:
            kept.prune(each.digest for each in kept.entries(Status.FAILED) if each.digest in wanted)
        before = wanted & {digest for digest, (status, _) in kept.standing().items() if status is Status.DONE}
        progress = Progress(wanted, before, workers or 1)

        def tell() -> None:
            if told:
                told(progress.look(kept))

        tell()  # also where all of it is kept
        if workers:
            _side_by_side(trials, kept.folder, workers, tell)
        left = [each for each in prepared if each.digest not in before]
        _take(kept, left, tell)  # all, or what is left where processes were killed
        entries = {each.digest: each for each in kept.entries()}
        found = [(each.trial, entries[each.digest]) for each in prepared if each.digest in entries]
        accuracies = {each.digest: entries.get(each.training or "") for each in prepared}
    return Table([_row(trial, entry, accuracies[entry.digest]) for trial, entry in found])


def _workers(on: str) -> int:
    """How many processes of their own; none for this one."""
    place, _, many = on.partition(":")
    if on == HERE:
        return 0
    if place != LOCAL or not many.isdecimal() or int(many) < 1:
        raise SettingError(f"Expected a place to run trials (--on), here or local:2, got {on!r}.")
    return int(many)


def _side_by_side(trials: Sequence[Trial], folder: Path, workers: int, tell: Callable[[], None]) -> None:
    """Have processes take trials from the store until none is left."""
    spawned = multiprocessing.get_context("spawn")
    working = [spawned.Process(target=_work, args=(list(trials), str(folder)), daemon=True) for _ in range(workers)]
    for each in working:
        each.start()
    try:
        while any(each.is_alive() for each in working):
            multiprocessing.connection.wait([each.sentinel for each in working if each.is_alive()], WAIT)
            tell()
    finally:
        for each in working:
            each.terminate()
            each.join()


def _work(trials: list[Trial], folder: str) -> None:
    """A process that takes trials until none is left, on one thread."""
    torch.set_num_threads(1)
    with Store(folder) as store:
        _take(store, [each.prepare() for each in trials], lambda: None, workers=1)


def _take(store: Store, trials: Sequence[Prepared], tell: Callable[[], None], workers: int | None = None) -> None:
    """Run all that can be claimed; those of other processes are looked at again once all others are done."""
    left = list(trials)
    while left:
        waiting = []
        for one in left:
            if store.claim(one.digest, "audit", one.trial.words, uses=one.training):
                tell()
                _run(store, one, workers)
                continue
            entry = store.entry(one.digest)
            if entry is None or entry.status is Status.RUNNING:
                waiting.append(one)
        tell()
        if waiting and len(waiting) == len(left):
            time.sleep(WAIT)
        left = waiting


def _run(store: Store, one: Prepared, workers: int | None) -> None:
    """One claimed trial, with its training where it has one; what fails is kept and stops nothing else."""
    try:
        trained = _trained(store, one, workers) if one.training else None
        store.finish(one.digest, one.run(trained, workers=workers))
    except KeyboardInterrupt:
        store.release(one.digest)
        raise KeyboardInterrupt from None
    except Exception as error:  # whatever a part of the user's raises is kept for them to see
        store.fail(one.digest, str(error) if isinstance(error, DosimeterError) else traceback.format_exc())


def _said(words: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in words.items()) or "all by default"


def _trained(store: Store, one: Prepared, workers: int | None) -> Training:
    """The training that a trial needs: what the store has, or what comes of it now; others wait for it."""
    assert one.training is not None
    words = {
        key: value for key, value in one.trial.words.items() if key in ("model", "data", "defense", "protocol", "seed")
    }
    while not store.claim(one.training, "training", words, again=True):
        entry = store.entry(one.training)
        if entry is not None and entry.status is Status.DONE:
            return one.train(store.place(one.training), workers=workers)  # which reads what is there
        time.sleep(WAIT)
    began = time.monotonic()
    try:
        found = one.train(store.place(one.training), workers=workers)
    except BaseException:
        store.release(one.training)
        raise
    store.trained(one.training, trained_numbers(found), time.monotonic() - began)
    return found


def _row(trial: Trial, entry: Entry, training: Entry | None) -> dict[str, Any]:
    """A trial's words and numbers side by side."""
    told = {"digest": entry.digest, "status": entry.status.value, "seconds": entry.seconds}
    accuracy = (training.found or {}) if training else {}
    why = {"why": entry.why.strip().splitlines()[-1]} if entry.why else {}
    return {
        **vars(trial),
        **told,
        **why,
        **{key: accuracy[key] for key in ("accuracy",) if key in accuracy},
        **(entry.found or {}),
    }
