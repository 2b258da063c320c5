"""How long `dosimeter lint` takes, each model in a process of its own, as users run it, beside loading torch."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dosimeter import models

TORCH = "import torch"
COMMAND = "from dosimeter.cli import app; app()"
TURNS = 3
"""How often each is run; the fastest counts, since what else runs only makes it slower."""


class Took(NamedTuple):
    """Seconds of one process."""

    clock: float
    processor: float


class Linting(NamedTuple):
    """Of one model."""

    model: str
    whole: Took
    own: Took  # less what loading torch takes


def lintings(only: Sequence[str] = (), turns: int = TURNS) -> Iterator[Linting]:
    """The time of every model of the list, or of some."""
    torch = _fastest(TORCH, turns=turns)
    for name in only or models.BY_NAME:
        whole = _fastest(COMMAND, "lint", "--model", name, "--json", turns=turns)
        yield Linting(name, whole, Took(whole.clock - torch.clock, whole.processor - torch.processor))


def _fastest(*words: str, turns: int) -> Took:
    return min(_run(*words) for _ in range(turns))


def _run(*words: str) -> Took:
    began, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", *words], stdout=subprocess.DEVNULL, check=True)
    clock, after = time.perf_counter() - began, os.times()
    children = [times.children_user + times.children_system for times in (before, after)]
    return Took(clock, children[1] - children[0])
