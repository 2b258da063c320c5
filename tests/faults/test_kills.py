"""A dozen kills, and a fault of every other kind; `make faults` tries hundreds."""

import random
from functools import cache
from pathlib import Path

import pytest

from faults import others
from faults.table import Count, Whole, kills, undisturbed
from faults.writers import WRITERS

BY_NAME = {each.name: each for each in WRITERS}
TRIED = {"train": 6, "sweep": 6}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@cache
def whole(name: str, place: Path) -> Whole:
    return undisturbed(BY_NAME[name], place / name)


def assert_clean(found: Count) -> None:
    assert not found.notes
    assert (found.lost, found.corrupt, found.left) == (0, 0, 0)
    assert found.resumed == found.whole == found.tried


@pytest.mark.parametrize("name", TRIED)
def test_kills_lose_nothing_and_leave_nothing(name: str, place: Path) -> None:
    assert_clean(kills(BY_NAME[name], whole(name, place), place / name, TRIED[name], seed=1))


@pytest.mark.parametrize("fault", others.FAULTS)
def test_other_faults_of_a_training_lose_nothing_either(fault: str, place: Path, tmp_path: Path) -> None:
    if fault in others.MOUNTS and not others.can_mount(tmp_path):
        pytest.skip("this process may not mount a disk")
    found = others.FAULTS[fault](BY_NAME["train"], whole("train", place), tmp_path / "fault", random.Random(0))
    assert_clean(found)
