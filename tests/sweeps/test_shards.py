"""Trials whose victims are attacked in shards are the trials, wherever and however often they are begun."""

from pathlib import Path

import pytest

from dosimeter.sweeps import Progress, Status, Store, Trial, sweep
from dosimeter.sweeps.shards import shards_of
from stores import contents

TASK = {"model": "lenet", "attack": "ig", "steps": 2, "victims": 5, "budget": 0.0016, "seed": [0, 1]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "store"
    sweep(TASK, store=folder)
    return folder


def test_shards_side_by_side_give_what_the_whole_gives(whole: Path, tmp_path: Path) -> None:
    assert len(shards_of(Trial(**TASK | {"seed": 0}).prepare(), 3)) == 3
    seen: list[Progress] = []
    sweep(TASK, store=tmp_path / "store", on="local:2", shards=3, told=seen.append)
    assert contents(tmp_path / "store") == contents(whole)
    assert (seen[-1].done, seen[-1].left, seen[-1].running) == (2, 0, ())
    assert len(list((tmp_path / "store/trials").iterdir())) == 2  # of shards nothing is left


def test_shards_that_were_done_are_not_run_again(whole: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.behind:
            assert progress.remaining is not None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(TASK, store=tmp_path / "store", shards=3, told=stop)
    with Store(tmp_path / "store") as store:
        (kept,) = store.entries()
        assert (kept.kind, kept.status, kept.words["shard"]) == ("shard", Status.DONE, "1 of 3")
        began = kept.began
    said: set[str] = set()
    sweep(TASK, store=tmp_path / "store", shards=3, told=lambda progress: said.update(progress.running))
    assert began is not None
    assert sum("1 of 3" in each for each in said) == 1  # the other trial's
    assert sum("2 of 3" in each for each in said) == 2
    assert contents(tmp_path / "store") == contents(whole)


def test_a_shard_that_fails_fails_its_trial_and_is_tried_again(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    text = "from dosimeter.defenses import NoDefense\n\nclass Own(NoDefense):\n    "
    own.write_text(text + "def on_gradient(self, gradient, moment, rng):\n        raise ZeroDivisionError('mine')\n")
    axes = TASK | {"defense": f"{own}:Own", "seed": 0}
    for again in (False, True):
        found = sweep(axes, store=tmp_path / "store", shards=2, retry_failed=again)
        assert found.rows[0]["status"] == "failed"
        assert "ZeroDivisionError: mine" in found.rows[0]["why"]
        with Store(tmp_path / "store") as store:
            assert [each.kind for each in store.entries()] == ["audit"]
