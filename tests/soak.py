"""Hours of mixed work in one process: memory stays flat, and no descriptor or thread is left behind.

make soak                                         two hours, into runs/soak
python tests/soak.py FOLDER --minutes 120         writes soak.csv and soak.svg there; ends with 1 where something grows
python tests/soak.py FOLDER --judge               the same verdict on what is there
"""

import argparse
import csv
import ctypes
import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from dosimeter.reports import charts
from soak_jobs import JOBS, Job


class Cycle(NamedTuple):
    """What the process holds at the end of a cycle, after a collection of garbage."""

    minutes: float
    busy: float  # minutes of a core
    rss: float  # MiB
    descriptors: int
    threads: int
    children: int
    tensors: int
    objects: int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """From when on nothing may grow, and by how much memory may."""

    settled: float = 10.0
    """Minutes until caches are full,"""
    cycles: int = 1
    """and cycles at least."""
    growth: float = 0.05


def _give_back() -> None:
    """Have the allocator return what was freed, where it can be asked to: what is held counts, not what it keeps."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def measured(began: float) -> Cycle:
    gc.collect()
    _give_back()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    kinds = [type(each) for each in gc.get_objects()]  # not isinstance: it would wake objects that are made lazily
    here = f"/proc/self/task/{os.getpid()}/children"
    return Cycle(
        minutes=(time.monotonic() - began) / 60,
        busy=time.process_time() / 60,
        rss=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        children=len(Path(here).read_text().split()),
        tensors=sum(issubclass(kind, torch.Tensor) for kind in kinds),
        objects=len(kinds),
    )


def cycles(jobs: Sequence[Job], seeds: Iterable[int], began: float) -> Iterator[Cycle]:
    """All jobs, once for every seed, in a folder that is emptied in between."""
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        for seed in seeds:
            for job in jobs:
                job(seed, place)
            shutil.rmtree(place)
            place.mkdir()
            yield measured(began)
    finally:
        shutil.rmtree(place)


def after(found: Sequence[Cycle], limits: Limits = Limits()) -> list[Cycle]:
    """The cycles that count."""
    return [each for each in found[limits.cycles - 1 :] if each.minutes >= limits.settled]


def growth(found: Sequence[Cycle], limits: Limits = Limits()) -> float:
    """The share by which the largest memory is above that of the first cycle after things have settled."""
    settled = [each.rss for each in after(found, limits)]
    return max(settled) / settled[0] - 1


def trend(found: Sequence[Cycle], limits: Limits = Limits()) -> float:
    """The share by which memory rises along the straight line through all of these cycles."""
    settled = after(found, limits)
    minutes = [each.minutes for each in settled]
    slope, start = statistics.linear_regression(minutes, [each.rss for each in settled])
    return slope * (minutes[-1] - minutes[0]) / (start + slope * minutes[0])


def wrong(found: Sequence[Cycle], limits: Limits = Limits()) -> list[str]:
    """What grows that should not, in words."""
    settled = after(found, limits)
    if len(settled) < 2:
        return [f"expected two cycles or more after {limits.settled:g} minutes, got {len(settled)}; run for longer"]
    said = []
    if (grown := growth(found, limits)) >= limits.growth:
        said.append(f"memory grew by {grown:.1%}, expected less than {limits.growth:.0%}")
    for name in ("descriptors", "threads", "children", "tensors"):
        first, last = getattr(settled[0], name), getattr(settled[-1], name)
        if last > first:
            said.append(f"{last - first} {name} were left behind")
    return said


def write(folder: Path, found: Sequence[Cycle]) -> None:
    """Every cycle as a row, and memory over time as a figure."""
    with (folder / "soak.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(Cycle._fields)
        rows.writerows([f"{value:.2f}" if isinstance(value, float) else value for value in each] for each in found)
    points = {"resident memory": [(each.minutes, each.rss) for each in found]}
    charts.write_svg(folder / "soak.svg", charts.lines(points, x="minutes", y="MiB"))


def main(folder: Path, minutes: float) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    began, found = time.monotonic(), list[Cycle]()
    for each in cycles(JOBS, range(1_000_000), began):
        found.append(each)
        sys.stdout.write(
            f"cycle {len(found):4d}  {each.minutes:6.1f} min, {each.busy:.1f} of a core  {each.rss:7.1f} MiB  "
            f"{each.descriptors} descriptors  "
            f"{each.threads} threads  {each.children} children  {each.tensors} tensors  {each.objects} objects\n"
        )
        sys.stdout.flush()
        write(folder, found)
        if each.minutes >= minutes:
            break
    tell(found)


def tell(found: Sequence[Cycle]) -> NoReturn:
    """A line of what came out; the process ends with 1 where something grows."""
    said = wrong(found)
    settled = [each.rss for each in after(found)]
    if len(settled) > 1:
        sys.stdout.write(
            f"{len(found)} cycles in {found[-1].minutes:.0f} minutes, {found[-1].busy:.0f} of a core; after ten, "
            f"{settled[0]:.0f} MiB at first, {min(settled):.0f} to {max(settled):.0f}, "
            f"{statistics.median(settled):.0f} at the median, {settled[-1]:.0f} last; "
            f"by the line through all {trend(found):+.1%}\n"
        )
    sys.exit("\n".join(said) if said else 0)


def read(folder: Path) -> list[Cycle]:
    """What `write` wrote."""
    kinds = [float, float, float, int, int, int, int, int]
    with (folder / "soak.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [Cycle(*(kind(value) for kind, value in zip(kinds, row, strict=True))) for row in rows]


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Hours of mixed work in one process.")
    words.add_argument("folder", type=Path)
    words.add_argument("--minutes", type=float, default=120.0)
    words.add_argument("--judge", action="store_true", help="only judge the soak.csv that is there")
    asked = words.parse_args()
    tell(read(asked.folder)) if asked.judge else main(asked.folder, asked.minutes)
