"""What audits were planned to take beside what they took at most: `dosimeter bench memory`.

Every setting runs in a process of its own, forked from one that has torch and has run nothing: a process's peak cannot
be set back.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dosimeter.auditing import perform
from dosimeter.auditing.job import Job
from dosimeter.benchmarks.memory import apart, forget_highest, highest, resident
from dosimeter.reports import charts
from dosimeter.reports.markup import Html
from dosimeter.sweeps import Trial

STEPS = 3
WITHIN = 0.3
WARM = Trial(model="lenet", attack="ig", steps=1, victims=1)
SETTINGS = (
    Trial(model="cnn", attack="ig", victims=64),
    Trial(model="cnn", attack="ig", victims=2, batch=64),
    Trial(model="cnn", attack="ig", victims=1, batch=512),
    Trial(model="cnn", attack="ig", victims=1, batch=2048),
    Trial(model="cnn", attack="ig", victims=1, rounds=200),
    Trial(model="cnn", attack="ig", victims=8, rounds=100),
    Trial(model="cnn", attack="ig", victims=8, defense="noise:sigma=0.01"),
    Trial(model="cnn", attack="ig", victims=2, size=224),
    Trial(model="mlp", attack="ig", victims=8),
    Trial(model="mlp", attack="ig", victims=8, defense="noise:sigma=0.01"),
    Trial(model="mlp", attack="ig", victims=1, rounds=50),
    Trial(model="mlp", attack="ig", victims=1, batch=256),
    Trial(model="lenet", attack="ig", victims=64, batch=8),
    Trial(model="convnet", attack="ig", victims=2, size=32),
    Trial(model="resnet18", attack="ig", victims=2, size=32),
    Trial(model="resnet18", attack="ig", victims=1, batch=32, size=32),
    Trial(model="resnet20", attack="ig", victims=4, size=32),
    Trial(model="vgg16", attack="ig", victims=2, size=32),
    Trial(model="vit", attack="ig", victims=4, size=32),
    Trial(model="cnn", attack="ig", victims=4, batch=8, step="local:steps=5,lr=0.01,batch_size=4"),
    Trial(model="lenet", attack="ig", victims=8, batch=4, step="clipped:bound=1"),
    Trial(model="cnn", attack="ig:restarts=8", victims=8),
    Trial(model="cnn", attack="bayes", victims=8),
)
"""What takes enough to be told from what a process takes in any case."""
OTHERS = (
    Trial(model="lenet", attack="ig", victims=16, batch=4),
    Trial(model="cnn", attack="ig", victims=4, batch=32),
    Trial(model="cnn", attack="ig", victims=32, defense="cvb"),
    Trial(model="lenet", attack="ig", victims=24, defense="precode"),
    Trial(model="cnn", attack="ig", victims=4, batch=8, defense="cvb"),
    Trial(model="mlp-2", attack="ig", victims=16),
    Trial(model="mlp", attack="ig", victims=40),
    Trial(model="convnet:width=16", attack="ig", victims=4, size=32),
    Trial(model="resnet20", attack="ig", victims=2, batch=16, size=32),
    Trial(model="vit", attack="ig", victims=1, batch=8, size=32),
)
"""Settings that the plan's factors were not chosen by."""


class Row(NamedTuple):
    """One audit in words, the bytes that it was planned to take, and those that it took beside the program."""

    words: str
    planned: int
    taken: int

    @property
    def ratio(self) -> float:
        return self.planned / max(1, self.taken)


def compare(settings: Sequence[Trial], told: Callable[[str], None] = print) -> list[Row]:
    """Every audit planned, then run for a few steps; those that nobody counts are left out."""
    found = []
    for each in settings:
        words = " ".join(f"--{key} {value}" for key, value in each.words.items() if key != "attack" or value != "ig")
        told(words)
        said = apart(lambda: _both(each)) if hasattr(os, "fork") else None  # noqa: B023
        if said:
            planned, taken = map(int, said.split())
            found.append(Row(words, planned, taken))
        else:
            told(f"not measured: {words}")
    return found


def _both(trial: Trial) -> str:
    """Bytes that were planned and those that were taken."""
    perform(WARM.prepare().audit)  # loads what torch loads at first use
    audit = replace(trial, steps=STEPS).prepare().audit
    planned = Job(audit).bytes
    forget_highest()  # of reading and resizing the data set
    before = resident()
    perform(audit, once=True)
    return f"{planned} {highest() - before}"


def figure(rows: Sequence[Row]) -> Html:
    """Planned against taken in MiB, in powers of ten; both are the same on the diagonal."""
    points = {
        "within 30 %": [_point(row) for row in rows if abs(row.ratio - 1) <= WITHIN],
        "outside": [_point(row) for row in rows if abs(row.ratio - 1) > WITHIN],
    }
    kept = {name: each for name, each in points.items() if each}
    return charts.scatter(kept, x="log10 of MiB taken", y="log10 of MiB planned", keys=True, diagonal=True)


def _point(row: Row) -> tuple[float, float]:
    return math.log10(max(1, row.taken) / 2**20), math.log10(row.planned / 2**20)
