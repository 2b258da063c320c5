"""No file, however it came to be, ends a reader otherwise than in one line: no crash, no code, no flood of memory.

`make fuzz-files` tries 10,000 changed files of every reader; here there are 200, or 100.
"""

import os
import random
import shutil
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dosimeter.errors import DosimeterError
from faults import mutate
from faults.readers import READERS, Reader

CASES = int(os.environ.get("DOSIMETER_FUZZ", "200"))
SLOW = ("run", "store", "config toml", "dose json")
"""Those that take ten times as long as the others, of which the tests try half as many."""
MOST = 2**30
"""Bytes that reading may take, for files of a few kilobytes."""


@pytest.mark.parametrize("reader", READERS, ids=lambda each: each.name.replace(" ", "-"))
def test_changed_files_are_read_or_refused_in_a_line(reader: Reader, tmp_path: Path) -> None:
    whole, place, ran = tmp_path / "whole", tmp_path / "place", tmp_path / "ran"
    whole.mkdir()
    reader.make(whole)
    shutil.copytree(whole, place)
    reader.read(place)  # as it is
    before = peak()

    @settings(
        max_examples=CASES // 2 if reader.name in SLOW and CASES <= 200 else CASES,
        deadline=None, database=None, derandomize=CASES <= 200,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(seed=st.integers(0, 2**64))
    def check(seed: int) -> None:
        rng = random.Random(seed)
        shutil.rmtree(place)
        shutil.copytree(whole, place)
        chosen = [path for pattern in reader.files for path in sorted(place.glob(pattern)) if path.is_file()]
        for path in rng.sample(chosen, min(len(chosen), rng.choice((1, 1, 1, 2)))):
            way = rng.random()
            if way < 0.02:
                path.unlink()
            elif way < 0.04:
                path.write_bytes(mutate.evil(ran))
            else:
                path.write_bytes(mutate.content(path.read_bytes(), path.suffix, rng))
        assert_refused(reader, place)
        assert not ran.exists(), "a pickle was run"

    check()
    assert peak() - before < MOST


def assert_refused(reader: Reader, place: Path) -> None:
    """It is read, or refused in one line that steers no terminal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(place)
    except DosimeterError as error:
        said = str(error)
        assert said
        assert "\n" not in said, said


def peak() -> int:
    """The most memory that this process has had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0
