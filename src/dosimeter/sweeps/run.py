"""Many trials as one: those that the store has cost nothing, the others run in turn or side by side."""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dosimeter.auditing import Interrupted
from dosimeter.errors import DosimeterError
from dosimeter.federated import Training
from dosimeter.sweeps.store import Entry, Status, Store
from dosimeter.sweeps.table import Table
from dosimeter.sweeps.trial import Prepared, Trial, product_of, trained_numbers

WAIT = 0.5
"""Seconds between two looks at trials that another process runs."""


@dataclass
class Progress:
    """How far a sweep is, for whoever shows it."""

    trials: Sequence[Prepared]
    kept: int = 0  # that the store had
    done: int = 0
    failed: int = 0
    elsewhere: int = 0  # that other processes run
    running: str = ""
    seconds: list[float] = field(default_factory=list)  # of those that were run here

    @property
    def left(self) -> int:
        return len(self.trials) - self.kept - self.done - self.failed

    @property
    def remaining(self) -> float | None:
        """Seconds that the rest may take by those that were run; None before the first."""
        return sum(self.seconds) / len(self.seconds) * self.left if self.seconds else None


Told = Callable[[Progress], None]


def sweep(
    axes: Mapping[str, Any] | Sequence[Trial],
    *,
    store: str | Path = "sweep",
    retry_failed: bool = False,
    told: Told | None = None,
) -> Table:
    """Run every trial that the store does not have, and give all of them as a table.

    Args:
        axes: {setting of `Trial`: value or values}, of which every combination is tried; or trials.
        store: the folder of trials, which is made; other sweeps may share it.
        retry_failed: run those again that failed before.
        told: how far it is, whenever that changes.
    """
    trials = list(product_of(axes)) if isinstance(axes, Mapping) else list(axes)
    prepared = list({each.digest: each for each in map(Trial.prepare, trials)}.values())
    progress = Progress(prepared)
    tell = told or (lambda _: None)
    with Store(store) as kept:
        for one in _in_turn(kept, prepared, progress, tell, retry_failed):
            _run(kept, one, progress, tell)
        entries = {each.digest: each for each in kept.entries()}
        found = [(each.trial, entries[each.digest]) for each in prepared if each.digest in entries]
        accuracies = {each.digest: entries.get(each.training or "") for each in prepared}
    return Table([_row(trial, entry, accuracies[entry.digest]) for trial, entry in found])


def _in_turn(
    store: Store, trials: Sequence[Prepared], progress: Progress, tell: Told, again: bool
) -> Iterator[Prepared]:
    """Trials to run, each claimed; those of other processes are looked at again once all others are done."""
    left = list(trials)
    while left:
        waiting = []
        for one in left:
            if store.claim(one.digest, "audit", one.trial.words, uses=one.training, again=again):
                yield one
                continue
            entry = store.entry(one.digest)
            if entry is None or entry.status is Status.RUNNING:
                waiting.append(one)
            elif entry.status is Status.DONE:
                progress.kept += 1
            else:
                progress.failed += 1
        progress.elsewhere = len(waiting)
        tell(progress)
        if waiting and len(waiting) == len(left):
            time.sleep(WAIT)
        left = waiting


def _run(store: Store, one: Prepared, progress: Progress, tell: Told) -> None:
    """One claimed trial, with its training where it has one; what fails is kept and stops nothing else."""
    progress.running = ", ".join(f"{key} {value}" for key, value in one.trial.words.items()) or "all by default"
    tell(progress)
    began = time.monotonic()
    try:
        trained = _trained(store, one) if one.training else None
        store.finish(one.digest, one.run(trained))
        progress.done += 1
        progress.seconds.append(time.monotonic() - began)
    except (KeyboardInterrupt, Interrupted):
        store.release(one.digest)
        raise KeyboardInterrupt from None
    except Exception as error:  # whatever a part of the user's raises is kept for them to see
        why = str(error) if isinstance(error, DosimeterError) else traceback.format_exc()
        store.fail(one.digest, why)
        progress.failed += 1
    progress.running = ""
    tell(progress)


def _trained(store: Store, one: Prepared) -> Training:
    """The training that a trial needs: what the store has, or what comes of it now; others wait for it."""
    assert one.training is not None
    words = {
        key: value for key, value in one.trial.words.items() if key in ("model", "data", "defense", "protocol", "seed")
    }
    while not store.claim(one.training, "training", words, again=True):
        entry = store.entry(one.training)
        if entry is not None and entry.status is Status.DONE:
            return one.train(store.place(one.training))  # which reads what is there
        time.sleep(WAIT)
    began = time.monotonic()
    try:
        found = one.train(store.place(one.training))
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
