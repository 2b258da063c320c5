"""The whole measurement, as plain values."""

import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dosimeter import progress
from dosimeter.benchmarks import breaching
from dosimeter.benchmarks.cases import Case, Series, choose
from dosimeter.benchmarks.memory import peaks
from dosimeter.benchmarks.rounds import Burst, interleave, spread
from dosimeter.benchmarks.ways import Ready, flops, multiply, tiled, usual, vmapped
from dosimeter.errors import SettingError

FORMAT = 1
"""The version of the file; raised when an older reader would misread it."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure."""

    seconds: float = 0.5
    """Of a burst, about; slower ways take one step however long it is."""
    rounds: int = 7
    quick: bool = False
    """Few victims and short bursts, to see that all works; too little to judge floors."""

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise SettingError(f"A burst needs more than 0 seconds, got {self.seconds}.")


FULL, QUICK = Effort(), Effort(seconds=0.01, rounds=2, quick=True)


def run(effort: Effort, *, only: Sequence[str] = (), python: Path | None = None) -> dict[str, Any]:
    """Measure the cases and series of those names, all by default.

    Args:
        effort: how long.
        only: names of cases and series.
        python: the interpreter of an environment that has breaching.
    """
    cases, series = choose(only, quick=effort.quick)
    found: dict[str, Any] = {
        "format": FORMAT,
        "machine": _machine(),
        "effort": asdict(effort),
        "cases": [],
        "series": [],
    }
    total, done = effort.rounds * (len(cases) + len(series)), 0
    with progress.bar("Measuring", total) as advance:

        def after(name: str) -> Callable[[], None]:
            def one_more() -> None:
                nonlocal done
                done += 1
                advance(done, name)

            advance(done, name)
            return one_more

        advance(0, "memory")
        for case, most in zip(cases, peaks(cases), strict=True):
            measured = _case(case, effort, breaching.find(python), after(case.name))
            found["cases"].append({**measured, "peak_bytes": most})
        for part in series:
            found["series"].append(_series(part, effort, after(part.name)))
    return found


def _case(case: Case, effort: Effort, python: Path | None, after: Callable[[], None]) -> dict[str, Any]:
    """All ways on one case, and what the engine needs for it."""
    ready, seconds, cores = Ready(case), effort.seconds, os.cpu_count() or 1
    counts = sorted({1, cores})
    with breaching.started(python, ready) as other:
        others = {_named("usual", n): usual(ready, n, seconds) for n in counts}
        others |= {_named("breaching", n): other.burst(n, seconds) for n in counts}
        for first in others.values():
            first()  # warm, not timed
        others = {name: burst for name, burst in others.items() if not (other.why and name.startswith("breaching"))}
        vmap, at_once = vmapped(ready, seconds)
        products: dict[str, Burst] = {_named("matmul", n): multiply(n, seconds) for n in counts}
        rates = interleave({**others, "vmap": vmap, "engine": tiled(ready, seconds), **products}, effort.rounds, after)
        rates = {name: rounds for name, rounds in rates.items() if not any(map(math.isnan, rounds))}
        not_measured, release = other.why, other.version
    ways: dict[str, dict[str, Any]] = {name: spread(rounds) for name, rounds in rates.items() if name not in products}
    best, ratio = compare(ways, [name for name in others if name in ways])
    operations = flops(ready.tiles[0])
    return {
        "name": case.name,
        "model": case.model,
        "settings": case.settings,
        "sigma": case.sigma,
        "batch": case.batch,
        "victims": ready.victims,
        "victims_asked": case.victims,
        "victims_vmap": at_once,
        "tile": ready.plan.victims,
        "workers": ready.plan.workers,
        "form": ready.tiles[0].matcher.way,
        "ways": ways,
        "breaching": release if not not_measured else f"not measured ({not_measured})",
        "best_other": best,
        "ratio": ratio,
        "floor": case.floor,
        "verdict": verdict(case.floor is not None and ratio >= case.floor, effort),
        "flop_per_image_step": operations,
        "gflops": 1e-9 * operations * float(ways["engine"]["median"]),
        "peak_gflops": {name: spread([1e-9 * rate for rate in rates[name]]) for name in products},
    }


def _series(series: Series, effort: Effort, after: Callable[[], None]) -> dict[str, Any]:
    """Microseconds of an image-step at every size, all sizes in turn."""
    ready = {size: Ready(case) for size, case in series.points}
    ways = {str(size): tiled(each, effort.seconds) for size, each in ready.items()}
    rates = interleave(ways, effort.rounds, after)
    points = [
        {
            "size": size,
            "victims": each.victims,
            "tile": each.plan.victims,
            "workers": each.plan.workers,
            **spread([1e6 / rate for rate in rates[str(size)]]),
        }
        for size, each in ready.items()
    ]
    costs: dict[int, Any] = {size: point["median"] for size, point in zip(ready, points, strict=True)}
    found: dict[str, Any] = {"name": series.name, "model": series.points[0][1].model, "points": points}
    if series.limit is not None and {*series.limit[:2]} <= set(costs):
        small, large, most = series.limit
        growth = costs[large] / costs[small]
        found["limit"] = {"from": small, "to": large, "growth": growth, "most": most}
        found["limit"]["verdict"] = verdict(growth <= most, effort)
    return found


def compare(ways: dict[str, dict[str, Any]], others: Sequence[str]) -> tuple[str, float]:
    """The fastest other way by its median, and how many times as fast the engine's median is."""
    best = max(others, key=lambda name: float(ways[name]["median"]))
    return best, float(ways["engine"]["median"]) / float(ways[best]["median"])


def verdict(reached: bool, effort: Effort) -> str:
    return "quick" if effort.quick else "reached" if reached else "not reached"


def _named(way: str, threads: int) -> str:
    return f"{way}, {threads} thread{'' if threads == 1 else 's'}"


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dosimeter": version("dosimeter"),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set"),
    }
