"""What an item would take before it is run, by the first steps of its trials."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dosimeter.papers.item import Item, Scale
from dosimeter.papers.run import on_shadows, ready, trials_of
from dosimeter.sweeps import Course, Trial
from dosimeter.sweeps.costs import Span
from dosimeter.sweeps.places import HERE
from dosimeter.sweeps.planning import plan
from dosimeter.sweeps.trial import forget


class Estimate(NamedTuple):
    """Trials of an item that are to run, and core-seconds of them; those that other items share count for each."""

    item: str
    kept: int
    left: int
    seconds: Span
    missing: int  # rows that need what is not at hand
    slowest: tuple[float, str] = (0.0, "")  # core-seconds of one trial, and its words


def estimate(item: Item, folder: str | Path, *, scale: Scale = "laptop", ours: bool = True, on: str = HERE) -> Estimate:
    """Of what the store does not have; a row whose attack is chosen among several counts with the first of them."""
    forget()
    small = item.at(scale)
    cases = [ready(case, ours) for case in small.cases]
    trials = [
        each
        for case, why in cases
        if not why
        for each in [*on_shadows(case), *trials_of(case, small.seeds, ours)]
    ]  # fmt: skip
    return estimated(item.key, trials, folder, on=on, missing=sum(bool(why) for _, why in cases))


def estimated(name: str, trials: Sequence[Trial | Course], folder: str | Path, *, on: str, missing: int) -> Estimate:
    """Of these trials."""
    found = plan(trials, folder, on=on)
    slowest = max(((row.seconds.likely, str(dict(row.words))) for row in found.left), default=(0.0, ""))
    return Estimate(name, len(found.rows) - len(found.left), len(found.left), found.seconds, missing, slowest)
