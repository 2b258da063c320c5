"""A row as it was run."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dosimeter.metrics import Rate
from dosimeter.papers.quantities import QUANTITIES, Value

Point = tuple[float, float]


class Measured(NamedTuple):
    """A row as it was run, in the paper's units."""

    name: tuple[str, ...]
    values: Mapping[str, Value]
    read: Rate | None = None  # images, by the paper's own attack
    strongest: Value | None = None  # SSIM of the strongest attack
    by: str = ""  # which that is
    read_by: Rate | None = None  # images that it reads
    verdict: str = ""
    evidence: str = ""
    why_not: str = ""  # it was not run
    digest: str = ""  # of the paper's attack in the store
    short: Rate | None = None  # images of the paper's attack whose search fell short of the truth
    short_by: Rate | None = None  # the same of the strongest
    seconds: float = 0.0  # that its trials took
    series: Mapping[str, Mapping[str, Sequence[Point]]] = {}  # {drawing: {line: points}}


def in_units(name: str, mean: float, spread: float | None = None) -> Value:
    """A number of ours in the paper's unit."""
    times = QUANTITIES[name].times
    return Value(times * mean, None if spread is None else times * spread)
