"""Bursts of all ways in turn: what else runs on the machine slows all of them, not one."""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

Burst = Callable[[], float]
"""Runs for a moment and says the rate, work a second; nan when it could not."""


def interleave(ways: Mapping[str, Burst], rounds: int, after: Callable[[], None]) -> dict[str, list[float]]:
    """Every way's rate in every round; the order turns by one place a round."""
    names = list(ways)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            rates[name].append(ways[name]())
        after()
    return rates


def repeat(step: Callable[[], float], seconds: float) -> float:
    """Take steps, at least one, until the time is up; their work a second."""
    begin, done = perf_counter(), 0.0
    while True:
        done += step()
        passed = perf_counter() - begin
        if passed >= seconds:
            return done / passed


def spread(rounds: list[float]) -> dict[str, Any]:
    """The rounds with their median, lowest and highest."""
    return {"median": statistics.median(rounds), "min": min(rounds), "max": max(rounds), "rounds": rounds}


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """So many threads an operation inside the block, as many as before outside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
