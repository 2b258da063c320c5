"""Where the time of the engine's step goes: its operations by `torch.profiler`, on one tile and one thread."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from dosimeter.benchmarks.cases import Case, choose
from dosimeter.benchmarks.rounds import on_threads
from dosimeter.benchmarks.ways import Ready
from dosimeter.engine.program import OFTEN

STEPS = 10


class Line(NamedTuple):
    """One operation on tensors of certain shapes."""

    operation: str
    shapes: str
    calls: float  # in a step
    microseconds: float  # of an image-step, without the operations that it calls


def profiles(only: Sequence[str], *, quick: bool) -> Iterator[tuple[str, list[Line]]]:
    """Of every case of those names what was measured, in a line, and a step's operations, the costliest first."""
    for case in choose(only, quick=quick)[0]:
        yield _profile(case)


def _profile(case: Case) -> tuple[str, list[Line]]:
    ready = Ready(case, lean=True)
    tile = ready.tiles[0]
    with on_threads(1):
        for _ in range(OFTEN + 2):
            tile.slope()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
            for _ in range(STEPS):
                tile.slope()
    each = STEPS * tile.work
    lines = [
        Line(e.key, _shapes(e.input_shapes), e.count / STEPS, e.self_cpu_time_total / each)
        for e in found.key_averages(group_by_input_shape=True)
    ]
    total = sum(line.microseconds for line in lines)
    size = f"a tile of {len(tile.labels)} victims on one thread"
    about = f"{case.name}, {size}, by {tile.matcher.way}: {total:,.0f} microseconds an image-step, recording included"
    return about, sorted(lines, key=lambda line: -line.microseconds)


def _shapes(given: object) -> str:
    shapes = given if isinstance(given, list) else []
    return " ".join("x".join(map(str, torch.Size(shape))) for shape in shapes if shape)
