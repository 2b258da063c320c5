"""A few of the hostile calls that `make fuzz` makes, and that a bad end of one is seen."""

from pathlib import Path

import pytest

from fuzz import cases, files
from fuzz.__main__ import prepare, told
from fuzz.calling import Call, Ending, attempt

CALLS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prepare()
    place = tmp_path_factory.mktemp("files")
    files.build(place)
    return place


def test_hostile_calls_are_refused_in_one_line_or_end_well(folder: Path) -> None:
    calls = cases.all_calls(folder)
    assert len(calls) >= 3000
    seen = [attempt(call) for call in cases.sample(calls, CALLS, seed=0)]
    assert {each.call.kind for each in seen} == {call.kind for call in calls}
    assert not [told(each) for each in seen if each.ending.bad]
    assert sum(each.ending is Ending.REFUSED for each in seen) > CALLS / 2


def test_calls_that_once_ended_badly_are_refused(folder: Path) -> None:
    seen = [attempt(cases.placed(call, folder)) for call in cases.FOUND]
    assert not [told(each) for each in seen if each.ending is not Ending.REFUSED]
    good = [attempt(cases.placed(Call("found", words, sane=True), folder)) for words in cases.SANE]
    assert not [told(each) for each in good if each.ending is not Ending.ACCEPTED]


def test_a_bad_end_is_seen(folder: Path) -> None:
    (folder / "bad.py").write_text(
        "import time, torch\n"
        "def waits(): time.sleep(60)\n"
        "def holds():\n    kept = torch.ones(2**27)\n    time.sleep(60)\n"
        "def leaves():\n    import os\n    os._exit(9)\n"
    )
    ends = {
        "waits": (Ending.HUNG, {"seconds": 0.5}),
        "holds": (Ending.OVER, {"room": 2**28}),
        "leaves": (Ending.TRACEBACK, {}),
    }
    for name, (ending, limit) in ends.items():
        words = ("lint", "--model", f"{folder}/bad.py:{name}", "--shape", "1,8,8")
        assert attempt(Call("bad", words), **limit).ending is ending, name
    assert attempt(Call("bad", ("list", "models"))).ending is Ending.WRONG
    assert attempt(Call("bad", ("list", "models"), sane=True)).ending is Ending.ACCEPTED


def test_the_same_seed_draws_the_same_calls() -> None:
    calls = cases.all_calls(Path("x"))
    assert cases.sample(calls, 50, seed=1) == cases.sample(calls, 50, seed=1) != cases.sample(calls, 50, seed=2)
