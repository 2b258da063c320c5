"""Bursts of all ways in turn: what else runs on the machine slows all of them, not one."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Taken(NamedTuple):
    """What the steps of a burst came to."""

    rate: float  # work a second by the clock; nan when it could not run
    of_core: float  # work a second of the time that its threads spent on cores; nan where that was not counted
    steps: int  # that the thread with the fewest took

    @property
    def share(self) -> float:
        """Of the time by the clock, how much a single thread had a core for itself."""
        return self.rate / self.of_core


FAILED = Taken(math.nan, math.nan, 0)

Burst = Callable[[], Taken]
"""Runs for a moment and says what it did."""


def interleave(ways: Mapping[str, Callable[[], T]], rounds: int, after: Callable[[], None]) -> dict[str, list[T]]:
    """What every way's burst gave in every round; the order turns by one place a round."""
    names = list(ways)
    given: dict[str, list[T]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            given[name].append(ways[name]())
        after()
    return given


def repeat(step: Callable[[], float], seconds: float) -> Taken:
    """Take steps on this thread, at least one, until the time is up; each says its work."""
    work, steps = 0.0, 0
    begin, spent = time.perf_counter(), time.thread_time()
    while True:
        work += step()
        steps += 1
        passed = time.perf_counter() - begin
        if passed >= seconds:
            return Taken(work / passed, work / max(1e-9, time.thread_time() - spent), steps)


def spread(rounds: Sequence[float]) -> dict[str, Any]:
    """The rounds with their median, lowest and highest."""
    return {"median": statistics.median(rounds), "min": min(rounds), "max": max(rounds), "rounds": list(rounds)}


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """So many threads an operation inside the block, as many as before outside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
