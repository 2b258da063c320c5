"""A machine's prices (`sweeps.costs`), fitted to the benchmark's cases: `dosimeter bench costs`.

Every case is counted once and timed in rounds, all of them in turn, by the time of its core and not by the clock, so
that what else runs on the machine counts for little. Prices are those that make the sum of squared relative errors
least, none of them below 0. Two audits that are not among the cases say how far off they are.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.optimize import nnls

from dosimeter.attacks import presets
from dosimeter.auditing import perform
from dosimeter.auditing.job import Job
from dosimeter.auditing.setting import Audit
from dosimeter.benchmarks.cases import Case
from dosimeter.benchmarks.rounds import Burst, interleave, on_threads, repeat
from dosimeter.benchmarks.ways import Ready, tiled
from dosimeter.sweeps import Store, Trial
from dosimeter.sweeps.costs import KEPT, Cost, Counter, Prices, Work, cost_of, machine
from dosimeter.sweeps.planning import costs_of

FORMS = ("chain", "tape", "vmap", "search")
START = """
import time
from dosimeter.benchmarks.memory import highest
from dosimeter.sweeps import Store, Trial
Trial().prepare()
took, began = time.process_time(), time.process_time()
Trial(seed=1).prepare()
print([took, time.process_time() - began, highest()])
"""
CROWD = 1.0
"""Seconds of a burst on all cores."""
WRITTEN = 20
"""Results that are written to a store to see how long one takes."""


@dataclass(frozen=True, kw_only=True)
class Fitted(Case):
    """A case whose tile is compared in a certain way, where that is not the fastest."""

    way: Literal["vmap"] | None = None


def _case(model: str, victims: int, **more: Any) -> Fitted:
    return Fitted(name=" ".join([model, str(victims), *map(str, more.values())]), model=model, victims=victims, **more)


CASES = (
    _case("cnn", 8),
    _case("cnn", 64),
    _case("cnn", 4, batch=16),
    _case("cnn", 16, sigma=1e-2),
    _case("lenet", 4),
    _case("lenet", 64),
    _case("mlp", 16, settings={"width": 256}),
    _case("mlp", 16),
    _case("mlp", 16, sigma=1e-2, settings={"width": 512}),
    _case("resnet20", 4),
    _case("resnet18", 4),
    _case("vit", 2),
    _case("cnn", 8, way="vmap"),
    _case("lenet", 8, way="vmap"),
    _case("resnet20", 4, way="vmap"),
    _case("mlp", 8, way="vmap", settings={"width": 256}),
)
SMALL = CASES[:1]
UNSEEN = (
    Trial(model="convnet:width=16", data="cifar10", attack="ig", steps=40, victims=4, batch=2),
    Trial(model="cnn:activation=tanh", defense="noise:sigma=0.01", steps=200, victims=6, batch=3),
)
"""Audits by which prices are judged: neither their models nor their batches are among the cases."""


class Point(NamedTuple):
    """What a step of one case took, and what the fit says of it."""

    name: str
    form: str
    images: int  # of a step
    work: Work
    seconds: float

    def said(self, priced: Prices) -> float:
        return priced.of(self.work, self.form)


class Check(NamedTuple):
    """An audit that was predicted, then run."""

    words: str
    said: float  # core-seconds
    took: float

    @property
    def ratio(self) -> float:
        return self.said / self.took


class Fit(NamedTuple):
    prices: Prices
    points: list[Point]
    checks: list[Check]


def fit(*, rounds: int = 5, seconds: float = 0.2, quick: bool = False, told: Callable[[str], None] = print) -> Fit:
    """Measure, fit and check; a quick one takes few cases and checks nothing."""
    told("cases of the engine")
    points = _timed(SMALL if quick else CASES, rounds, seconds)
    told("searches without updates")
    points += [_search(model, victims) for model, victims in (("lenet", 1), ("cnn", 8), ("lenet", 16))]
    found = _solve(points)
    told("whole audits of one step")
    found = _fixed(found, 1.0 if quick else _crowd())
    checks = []
    for trial in () if quick else UNSEEN:
        told(f"an audit that is not among them: {_words(trial)}")
        checks.append(_check(trial, found))
    return Fit(found, points, checks)


def _timed(cases: Sequence[Fitted], rounds: int, seconds: float) -> list[Point]:
    bursts: dict[str, Burst] = {}
    counted = {}
    with on_threads(1):
        for case in cases:
            ready = Ready(case, lean=True)
            tile = ready.tile(0, len(ready.tiles[0].images), case.way)
            for _ in range(2):
                tile.slope()  # records its passes
            with Counter() as counter:
                tile.slope()
            counted[case.name] = (tile.matcher.way or "", tile.work, counter.so_far())
            bursts[case.name] = partial(repeat, tile.step, seconds)
        found = interleave(bursts, rounds, lambda: None)
    best = {name: max(taken.of_core for taken in rounds) for name, rounds in found.items()}  # images a second of a core
    return [Point(name, *counted[name], counted[name][1] / best[name]) for name in counted]


def _search(model: str, victims: int, *, steps: int = 300) -> Point:
    """A step of a search that compares nothing: its priors and its moves."""
    audit = Trial(model=model, attack="ig", steps=steps, victims=victims).prepare().audit
    work, times = [], []
    for many in (2, steps):
        job = Job(_alone(replace(audit, attack=presets.inverting_gradients(steps=many))))
        times.append(min(_cpu(lambda: _blind(job)) for _ in range(3)))  # noqa: B023
        with Counter() as counter:
            _blind(job)
        work.append(counter.so_far())
    each = (work[1] - work[0]) / (steps - 2)
    return Point(f"search, {model} {victims}", "search", victims, each, max(1e-9, times[1] - times[0]) / (steps - 2))


def _blind(job: Job) -> None:
    job.attack_first_tile(lambda **_: None, blind=True)


def _alone(audit: Audit) -> Audit:
    return replace(audit, resources=replace(audit.resources, workers=1))


def _cpu(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _solve(points: Sequence[Point]) -> Prices:
    """Prices of calls, operations and bytes by non-negative least squares of relative errors."""
    rows = [
        [each.work.calls * (each.form == form) for form in FORMS] + [each.work.flops, each.work.bytes]
        for each in points
    ]
    took = np.array([each.seconds for each in points])
    found = nnls(np.array(rows) / took[:, None], np.ones(len(took)))[0].tolist()
    calls = dict(zip(FORMS, found, strict=False))
    calls = {form: price or max(calls.values()) for form, price in calls.items()} | {"one by one": calls["vmap"]}
    flop, byte = found[len(FORMS) :]
    return Prices(
        machine=machine(), calls=calls, flop=flop, byte=byte,
        attack=0.0, image=0.0, start=0.0, trial=0.0, kept=0.0, resident=0, crowd=1.0,
    )  # fmt: skip


def _fixed(found: Prices, crowd: float) -> Prices:
    """With what is the same for every attack, image, trial and process."""
    spent = []
    for victims in (2, 32):
        audit = _alone(Trial(model="lenet", attack="ig", steps=1, victims=victims).prepare().audit)
        said = cost_of(audit, found).seconds.likely
        spent.append(max(0.0, min(_cpu(lambda: perform(audit)) for _ in range(3)) - said))  # noqa: B023
    image = max(0.0, (spent[1] - spent[0]) / 30)
    answer = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True).stdout
    start, trial, resident = json.loads(answer)
    fixed = {"attack": max(0.0, spent[0] - 2 * image), "image": image, "start": start, "resident": resident}
    return replace(found, **fixed, trial=trial, kept=_kept(), crowd=crowd)


def _kept() -> float:
    """Core-seconds in which a store takes in a result."""
    result = Trial(model="lenet", attack="ig", steps=1, victims=KEPT).prepare().run(Path())

    def write(store: Store) -> None:
        for at in range(WRITTEN):
            store.claim(f"{at:016x}", "audit", {})
            store.finish(f"{at:016x}", result)

    with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
        return _cpu(lambda: write(store)) / WRITTEN


def _crowd() -> float:
    """How much longer a tile takes beside others in this process, one a core."""
    if (os.cpu_count() or 1) == 1:
        return 1.0
    ready = Ready(Case(name="cnn", model="cnn", victims=64))
    workers = ready.plan.workers
    with tiled(ready.tiles, 1, CROWD) as alone, tiled(ready.tiles, workers, CROWD) as beside:
        found = interleave({"one": alone, "all": beside}, 3, lambda: None)
    one, all_ = (max(taken.rate for taken in found[name]) for name in ("one", "all"))
    return max(1.0, workers * one / all_)


def _check(trial: Trial, found: Prices) -> Check:
    prepared = trial.prepare()
    costs: list[Cost] = costs_of(prepared, found, threads=1)
    took = _cpu(lambda: prepared.run(None, workers=1))  # type: ignore[arg-type]
    return Check(_words(trial), sum(each.seconds.likely for each in costs), took)


def _words(trial: Trial) -> str:
    return " ".join(f"--{key} {value}" for key, value in trial.words.items())
