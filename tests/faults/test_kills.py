"""A dozen kills and one fault of every other kind; `make faults` tries hundreds."""

import random
from pathlib import Path

import pytest

from faults import others
from faults.table import Count, Whole, kills, undisturbed
from faults.writers import WRITERS, Writer

BY_NAME = {each.name: each for each in WRITERS}
TRIED = {"panel": 4, "train": 4, "sweep": 4}


@pytest.fixture(scope="module", params=TRIED)
def writer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Writer, Whole, Path]:
    found, place = BY_NAME[request.param], tmp_path_factory.mktemp(request.param)
    return found, undisturbed(found, place), place


def assert_clean(found: Count) -> None:
    assert not found.notes
    assert (found.lost, found.corrupt, found.left) == (0, 0, 0)
    assert found.resumed == found.whole == found.tried


def test_kills_lose_nothing_and_leave_nothing(writer: tuple[Writer, Whole, Path]) -> None:
    found, whole, place = writer
    assert_clean(kills(found, whole, place, TRIED[found.name], seed=1))


@pytest.mark.parametrize("name", others.FAULTS)
def test_other_faults_lose_nothing_either(name: str, writer: tuple[Writer, Whole, Path], tmp_path: Path) -> None:
    if name in others.MOUNTS and not others.can_mount(tmp_path):
        pytest.skip("this process may not mount a disk")
    assert_clean(others.FAULTS[name](*writer[:2], tmp_path / "fault", random.Random(0)))
