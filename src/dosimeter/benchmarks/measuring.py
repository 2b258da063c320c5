"""The whole measurement, as plain values."""

import math
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dosimeter import engine, progress
from dosimeter.benchmarks import breaching, load
from dosimeter.benchmarks.cases import Case, Series, choose
from dosimeter.benchmarks.judging import Bound, compare, crowded, stolen, verdict
from dosimeter.benchmarks.memory import peaks
from dosimeter.benchmarks.rounds import Burst, Taken, interleave, spread
from dosimeter.benchmarks.ways import Ready, flops, multiplied, tiled, usual, vmapped
from dosimeter.errors import SettingError

FORMAT = 2
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


def run(
    effort: Effort, *, only: Sequence[str] = (), python: Path | None = None, cores: int | None = None
) -> dict[str, Any]:
    """Measure the cases and series of those names, all by default.

    Args:
        effort: how long.
        only: names of cases and series.
        python: the interpreter of an environment that has breaching.
        cores: that the engine uses at once, all that there are by default; it is always measured on one core too.
    """
    cases, series = choose(only, quick=effort.quick)
    cores = _cores(cores)
    found: dict[str, Any] = {
        "format": FORMAT,
        "machine": _machine(cores),
        "effort": asdict(effort),
        "cases": [],
        "series": [],
    }
    engine.threads.keep_memory()  # for all ways alike, and not for those that happen to come after the engine
    total, done = sum(_rounds(case, effort) for case in cases) + effort.rounds * len(series), 0
    with progress.bar("Measuring", total) as advance:

        def after(name: str) -> Callable[[], None]:
            def one_more() -> None:
                nonlocal done
                done += 1
                advance(done, name)

            advance(done, name)
            return one_more

        advance(0, "memory")
        for case, most in zip(cases, peaks(cases, cores), strict=True):
            measured = _case(case, effort, breaching.find(python), cores, after(case.name))
            found["cases"].append({**measured, "peak_bytes": most})
        for part in series:
            found["series"].append(_series(part, effort, cores, after(part.name)))
    return found


def _case(case: Case, effort: Effort, python: Path | None, cores: int, after: Callable[[], None]) -> dict[str, Any]:
    """All ways on one case, and what the engine needs for it."""
    ready, seconds = Ready(case, workers=cores), effort.seconds
    alone, counts = ready.alone(), sorted({1, cores})
    with ExitStack() as stack:
        other = stack.enter_context(breaching.started(python, ready))
        ways: dict[str, Burst] = {named("usual", n): usual(ready, n, seconds) for n in counts}
        ways |= {named("breaching", n): other.burst(n, seconds) for n in counts}
        ways["vmap"], at_once = vmapped(ready, seconds)
        for first in ways.values():
            first()  # warm, not timed
        if other.why:
            ways = {name: burst for name, burst in ways.items() if not name.startswith("breaching")}
        for n in counts:  # what is warm already is warmed on its thread
            tiles, workers = ([alone], 1) if n == 1 else (ready.tiles, ready.plan.workers)
            ways[named("engine", n)] = stack.enter_context(tiled(tiles, workers, seconds))
        for n in counts:
            ways[named("matmul", n)] = stack.enter_context(multiplied(n, seconds))
        so_far = load.watch(other.processes)
        taken = interleave(ways, _rounds(case, effort), after)
        seen = so_far()
    taken = {name: rounds for name, rounds in taken.items() if not any(math.isnan(each.rate) for each in rounds)}
    peak = {name: spread([1e-9 * each.rate for each in taken.pop(name)]) for name in ways if name.startswith("matmul")}
    figures = {name: _figures(rounds) for name, rounds in taken.items()}
    operations = flops(ready.tiles[0])
    rate = float(figures[named("engine", cores)]["median"])
    return {
        "name": case.name,
        "model": case.model,
        "settings": case.settings,
        "shape": case.shape,
        "classes": case.classes,
        "sigma": case.sigma,
        "batch": case.batch,
        "victims": ready.victims,
        "victims_asked": case.victims,
        "victims_vmap": at_once,
        "tile": ready.plan.victims,
        "tile_alone": len(alone.labels),
        "workers": ready.plan.workers,
        "form": ready.tiles[0].matcher.way,
        "ways": figures,
        "breaching": f"not measured ({other.why})" if other.why else other.version,
        "ratios": _ratios(case, effort, figures, peak, seen, cores),
        "load": seen.plain(),
        "flop_per_image_step": operations,
        "gflops": 1e-9 * operations * rate,
        "peak_gflops": peak,
    }


def _figures(taken: Sequence[Taken]) -> dict[str, Any]:
    """Rates by the clock, those by the time on a core where that was counted, and steps of a burst."""
    found = {**spread([each.rate for each in taken]), "steps": [each.steps for each in taken]}
    if not any(math.isnan(each.of_core) for each in taken):
        found["of_core"] = spread([each.of_core for each in taken])
    return found


def _ratios(
    case: Case, effort: Effort, ways: dict[str, Any], peak: dict[str, Any], seen: load.Load, cores: int
) -> list[dict[str, Any]]:
    """The engine on all cores by the clock, and on one core by the time that ways had it."""
    bounds = [Bound(1, case.floor_alone, stolen(ways[named("engine", 1)]))]
    if cores > 1:
        few = crowded(seen.others, *(peak[named("matmul", n)]["median"] for n in (1, cores)), cores=cores)
        bounds.insert(0, Bound(cores, case.floor, few))
    found = []
    for bound in bounds:
        best, ratio = compare(ways, bound.cores)
        judged = verdict(ratio, bound, quick=effort.quick)
        found.append({**bound._asdict(), "best_other": best, "ratio": ratio, "verdict": judged})
    return found


def _series(series: Series, effort: Effort, cores: int, after: Callable[[], None]) -> dict[str, Any]:
    """Microseconds of an image-step at every size, all sizes in turn."""
    ready = {size: Ready(case, workers=cores) for size, case in series.points}
    with ExitStack() as stack:
        ways = {
            str(size): stack.enter_context(tiled(each.tiles, each.plan.workers, effort.seconds))
            for size, each in ready.items()
        }
        so_far = load.watch()
        taken = interleave(ways, effort.rounds, after)
        seen = so_far()
    points = [
        {
            "size": size,
            "victims": each.victims,
            "tile": each.plan.victims,
            "workers": each.plan.workers,
            "steps": [burst.steps for burst in taken[str(size)]],
            **spread([1e6 / burst.rate for burst in taken[str(size)]]),
        }
        for size, each in ready.items()
    ]
    costs: dict[int, Any] = {size: point["median"] for size, point in zip(ready, points, strict=True)}
    found: dict[str, Any] = {"name": series.name, "model": series.points[0][1].model, "points": points}
    found["load"] = seen.plain()
    if series.limit is not None and {*series.limit[:2]} <= set(costs):
        small, large, most = series.limit
        growth = costs[large] / costs[small]
        found["limit"] = {"from": small, "to": large, "growth": growth, "most": most}
        bound = Bound(cores, 1 / most, crowded(seen.others, cores=cores))
        found["limit"]["verdict"] = verdict(1 / growth, bound, quick=effort.quick)
    return found


def _rounds(case: Case, effort: Effort) -> int:
    return min(effort.rounds, case.rounds or effort.rounds)


def _cores(asked: int | None) -> int:
    most = load.available()
    if asked is not None and not 1 <= asked <= most:
        raise SettingError(f"This process may use {most} core(s), so --cores is from 1 to {most}; got {asked}.")
    return asked or most


def named(way: str, threads: int) -> str:
    return f"{way}, {threads} thread{'' if threads == 1 else 's'}"


def _machine(cores: int) -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "cores_open": load.available(),
        "cores_used": cores,
        "processor": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "dosimeter": version("dosimeter"),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set"),
    }
