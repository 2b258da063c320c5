"""A soak in seconds: a few cycles of light work, and leaks that it would notice."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import soak
import soak_jobs
from soak import Cycle, Limits

NOW = Limits(settled=0.0, cycles=1, growth=1.0)
"""Of a process that has just begun: its memory says nothing yet, but what it holds does."""


def light(seed: int, place: Path) -> None:
    """An audit by the command line and its page, a training, a lint and a captured update."""
    soak_jobs.call("audit", "--model", "cnn:width=4", "--victims", 1, "--steps", 2, "--out", place / "run")
    soak_jobs.call("audit", "--model", "nothing", code=2)
    soak_jobs.trained_here(seed, place)
    soak_jobs.captures(seed, place)
    soak_jobs.call("lint", "--model", "lenet", "--json")


def test_a_few_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    found = list(soak.cycles([light], range(3), 0.0))[1:]  # the first fills caches
    assert soak.wrong(found, NOW) == []
    assert found[-1].tensors == found[0].tensors
    assert found[-1].children == found[0].children  # of other tests, such as a browser
    soak.write(tmp_path, found)
    assert len((tmp_path / "soak.csv").read_text().splitlines()) == 3
    assert "<svg" in (tmp_path / "soak.svg").read_text()


@pytest.fixture
def kept() -> Iterator[list[object]]:
    """What a leaking job holds on to, given back after the test."""
    held: list[object] = []
    yield held
    for each in held:
        if isinstance(each, int):
            os.close(each)
        elif isinstance(each, threading.Event):
            each.set()


def opens() -> int:
    return os.open("/dev/null", os.O_RDONLY)


def waits() -> threading.Event:
    event = threading.Event()
    threading.Thread(target=event.wait).start()
    return event


@pytest.mark.parametrize(
    ("leak", "name"), [(lambda: torch.zeros(1), "tensors"), (opens, "descriptors"), (waits, "threads")]
)
def test_what_is_left_behind_is_noticed(kept: list[object], leak: object, name: str) -> None:
    assert callable(leak)
    found = list(soak.cycles([lambda seed, place: kept.append(leak())], range(3), 0.0))
    assert soak.wrong(found, NOW) == [f"2 {name} were left behind"]


def test_memory_is_compared_after_it_has_settled() -> None:
    def at(minutes: float, rss: float) -> Cycle:
        return Cycle(minutes, minutes, rss, 10, 4, 0, 100, 1000)

    flat = [at(1, 300), at(9, 480), at(11, 500), at(60, 520), at(120, 510)]
    assert soak.wrong(flat) == []
    assert soak.wrong([*flat[:3], at(60, 530), flat[-1]]) == ["memory grew by 6.0%, expected less than 5%"]
    assert "run for longer" in soak.wrong(flat[:3])[0]
    line = [at(minutes, 500 + minutes - 11) for minutes in range(1, 121)]
    assert soak.trend(line) == pytest.approx(110 / 499)


def test_cycles_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = [Cycle(1.25, 1.0, 300.5, 10, 4, 0, 100, 1000), Cycle(2.5, 2.0, 301.25, 10, 4, 0, 100, 1000)]
    soak.write(tmp_path, found)
    assert soak.read(tmp_path) == found
