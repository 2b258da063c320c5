"""Whether a floor was reached, and when the machine was too busy to tell."""

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

OTHERS = 0.1
"""Of the cores: what other processes may take of them while all cores are timed."""
MULTIPLE = 0.75
"""Of the cores: how many times one thread's peak all of them must reach."""
HAD = 0.5
"""Of the time by the clock: what one thread must have had of its core. Its time on the core is what counts, but whoever
shares a core shares its caches."""


class Bound(NamedTuple):
    """A floor on so many cores, and what speaks against judging it."""

    cores: int
    floor: float | None
    doubt: str = ""


def compare(ways: Mapping[str, Any], cores: int) -> tuple[str, float]:
    """The fastest of usual and breaching by its median, and how many times as fast the engine's median is.

    On several cores by the clock, and the other ways may use as many threads as serve them best. On one core by the
    time that each way was on it, so that whoever else wants the core counts for little.
    """
    others = [name for name in ways if name.startswith(("usual", "breaching"))]
    if cores == 1:
        rates = {name: float(way["of_core"]["median"]) for name, way in ways.items() if "of_core" in way}
        others, ours = [name for name in others if name in rates], rates["engine, 1 thread"]
    else:
        rates = {name: float(way["median"]) for name, way in ways.items()}
        ours = rates[f"engine, {cores} threads"]
    best = max(others, key=lambda name: rates[name])
    return best, ours / rates[best]


def crowded(others: float | None, one: float = 1.0, all_: float = float("inf"), *, cores: int) -> str:
    """What was wrong with the machine while all cores were timed: others took some of it, or its peak was not there.

    Args:
        others: cores that other processes had, None where nobody counted.
        one, all_: the peak on one thread and on all cores.
    """
    found = []
    if others is not None and others > OTHERS * cores:
        found.append(f"other processes had {others:.2f} of {cores} cores")
    if all_ < MULTIPLE * cores * one:
        found.append(f"the peak on {cores} cores is {all_ / one:.2f} times that on one")
    return " and ".join(found)


def stolen(way: Mapping[str, Any]) -> str:
    """What was wrong while one core was timed: the thread was on it for less than half of the time."""
    pairs = zip(way["rounds"], way["of_core"]["rounds"], strict=True)
    had = statistics.median(rate / of_core for rate, of_core in pairs)
    return f"the thread had {had:.0%} of a core" if had < HAD else ""


def verdict(ratio: float, bound: Bound, *, quick: bool) -> str:
    if quick:
        return "quick"
    if bound.floor is None:
        return ""
    if bound.doubt:
        return "busy"
    return "reached" if ratio >= bound.floor else "not reached"
