"""Sweeps: nothing is run twice, nothing is lost, and several processes share a store."""

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dosimeter import defenses, fingerprint, presets, spec
from dosimeter.errors import DataError, DosimeterError, SettingError
from dosimeter.sweeps import Status, Store, Table, Trial, product_of, sweep, versions
from dosimeter.sweeps.places import Later
from stores import contents

TASK = {"model": "lenet", "attack": "ig", "steps": 2, "victims": 2}
SIX = TASK | {"defense": ["none", "noise:sigma=0.01+10"], "seed": [0, 1]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of six trials."""
    folder = tmp_path_factory.mktemp("whole") / "store"
    sweep(SIX, store=folder)
    return folder


def test_what_is_kept_is_not_run_again(whole: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    found = sweep(SIX, store=whole, told=lambda p: seen.append((p.kept, p.done, p.failed)))
    assert seen[-1] == (6, 0, 0)
    assert len(found) == 6
    assert {row["status"] for row in found.rows} == {"done"}
    assert found.grid(show="verdict")[0] == ["defense \\ model", "lenet"]
    assert len(found.to_pandas()) == 6
    assert Table([json.loads(line) for line in found.json_lines().splitlines()]) == found
    assert found.csv().count("\n") == 7
    with pytest.raises(SettingError, match="Unknown column of a sweep 'ssmi'"):
        found.grid(show="ssmi")


def test_a_trial_is_told_from_all_others_by_what_determines_it() -> None:
    trials = [Trial(**TASK | more).prepare().digest for more in ({}, {"seed": 1}, {"victims": 3}, {"defense": "ppp"})]
    assert len({*trials}) == 4
    assert Trial(**TASK | {"defense": "none"}).prepare().digest == trials[0]
    assert Trial(**TASK | {"protocol": "ppp:rounds=1"}).prepare().digest != trials[0]


def test_updates_of_several_rounds_are_averaged_as_an_audit_does(tmp_path: Path) -> None:
    found = sweep(TASK | {"rounds": 3, "defense": "noise:sigma=0.01"}, store=tmp_path / "store")
    assert [(row["status"], row["rounds"]) for row in found.rows] == [("done", 3)]
    assert "rounds averaged" in Trial(**TASK | {"rounds": 3}).prepare().audit.attack.name


def test_a_changed_part_makes_anew_what_used_it_and_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = presets.inverting_gradients()
    before = [versions.of(attack, each) for each in (defenses.Ats(), defenses.GaussianNoise(), defenses.NoDefense())]
    digest = versions._digest
    monkeypatch.setattr(versions, "_digest", lambda name: "new" if name == "dosimeter.defenses.ats" else digest(name))
    after = [versions.of(attack, each) for each in (defenses.Ats(), defenses.GaussianNoise(), defenses.NoDefense())]
    assert [now == then for now, then in zip(after, before, strict=True)] == [False, True, True]
    for name in ("dosimeter.attacks.search.running", "dosimeter.engine.matching", "dosimeter.attacks.search.priors"):
        monkeypatch.setattr(versions, "_digest", lambda each, name=name: "new" if each == name else digest(each))
        assert versions.of(attack, defenses.GaussianNoise()) != before[1]
    assert "dosimeter.defenses.ats" not in versions._core()
    assert "dosimeter.attacks.search.likelihoods" in fingerprint.ours_in(attack)


def test_numbers_joined_by_plus_are_several_values() -> None:
    assert spec.spread("noise:sigma=0.01+1e-3+10") == ["noise:sigma=0.01", "noise:sigma=1e-3", "noise:sigma=10"]
    assert spec.spread("cvb:beta=1+2|noise:sigma=3+4") == [
        f"cvb:beta={beta}|noise:sigma={sigma}" for beta in "12" for sigma in "34"
    ]
    assert spec.spread("ats:policy=7-4-15+21-13-3") == ["ats:policy=7-4-15+21-13-3"]  # one hybrid
    assert len(list(product_of({"defense": ["none", "noise:sigma=1+2"], "seed": range(3)}))) == 9
    with pytest.raises(SettingError, match="Unknown setting of a sweep 'atack'"):
        list(product_of({"atack": "ig"}))


def test_a_trial_that_fails_stops_no_other_and_is_tried_again_when_asked(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    text = (
        "from dosimeter import NoDefense\n\nclass Own(NoDefense):\n    def on_gradient(self, gradient, moment, rng):\n"
    )
    text = text.replace("dosimeter import", "dosimeter.defenses import")
    own.write_text(text + "        raise ZeroDivisionError('mine')\n")
    axes = TASK | {"defense": [f"{own}:Own", "none"]}
    found = sweep(axes, store=tmp_path / "store")
    assert [row["status"] for row in found.rows] == ["failed", "done"]
    assert "ZeroDivisionError: mine" in found.rows[0]["why"]
    with Store(tmp_path / "store") as store:
        (failed,) = store.entries(Status.FAILED)
        assert "own.py, line" in (failed.why or "")
    seen: list[int] = []
    sweep(axes, store=tmp_path / "store", told=lambda p: seen.append(p.done))
    assert max(seen) == 0
    failed: list[int] = []
    sweep(axes, store=tmp_path / "store", retry_failed=True, told=lambda p: failed.append(p.failed))
    assert (failed[0], failed[-1]) == (0, 1)  # it was run and failed again


def test_halves_merged_are_the_whole(whole: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        sweep(SIX | {"seed": seed}, store=tmp_path / name)
    with Store(tmp_path / "a") as store, Store(tmp_path / "b", create=False) as other:
        assert store.merge(other) == 3
        assert store.merge(other) == 0
    assert contents(tmp_path / "a") == contents(whole)
    with Store(tmp_path / "a") as store:
        assert store.prune([each.digest for each in store.entries()[:2]]) == 2
        assert len(store.entries()) == 4
        assert len(list((tmp_path / "a" / "trials").iterdir())) == 4


def test_trainings_are_trials_that_audits_share(tmp_path: Path) -> None:
    axes = TASK | {"protocol": "ppp:rounds=1,clients=2", "attack": ["ig", "idlg"]}
    found = sweep(axes, store=tmp_path / "store")
    assert len({row["accuracy"] for row in found.rows}) == 1
    with Store(tmp_path / "store") as store:
        kinds = [each.kind for each in store.entries(Status.DONE)]
        assert sorted(kinds) == ["audit", "audit", "training"]
        (training,) = [each for each in store.entries() if each.kind == "training"]
        assert {each.uses for each in store.entries() if each.kind == "audit"} == {training.digest}


def _sweep(folder: str) -> None:
    os.setpgid(0, 0)
    sweep(SIX, store=folder)


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    """Processes that have all imported and nothing begun."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["dosimeter.sweeps", "dosimeter.data.sources"])
    return made


def test_a_sweep_that_is_killed_twenty_times_ends_as_one_that_is_not(
    whole: Path, tmp_path: Path, processes: Any
) -> None:
    folder, drawn, killed = tmp_path / "store", random.Random(0), 0
    while killed < 20:
        child = processes.Process(target=_sweep, args=(str(folder),))
        child.start()
        child.join(drawn.uniform(0.05, 1.5))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join()
        killed += 1
        if (folder / "trials.sqlite").is_file():
            with Store(folder) as store:  # nothing is damaged at any moment
                for each in store.entries(Status.DONE):
                    store.result(each.digest)
    sweep(SIX, store=folder)
    assert contents(folder) == contents(whole)
    assert not list((folder / "drafts").iterdir())


def _sweep_until_the_entry(folder: str) -> None:
    Store._enter = lambda *_: os._exit(9)  # type: ignore[method-assign]
    sweep(SIX | {"defense": "none", "seed": 0}, store=folder)


def test_a_folder_that_a_killed_process_had_finished_is_entered_and_not_run_again(
    whole: Path, tmp_path: Path, processes: Any
) -> None:
    child = processes.Process(target=_sweep_until_the_entry, args=(str(tmp_path / "store"),))
    child.start()
    child.join(60)
    assert child.exitcode == 9
    with Store(tmp_path / "store") as store:
        (left,) = store.entries()
        assert (left.status, store.records(left.digest)) == (Status.RUNNING, [])
        file = store.place(left.digest) / "records.json"
    before = file.stat()
    sweep(SIX | {"defense": "none", "seed": 0}, store=tmp_path / "store")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert contents(tmp_path / "store") == {left.digest: contents(whole)[left.digest]}
    (file.parent / "run.json").write_text("{}")  # one that is not whole is run again
    with Store(tmp_path / "store") as store, store._base.writing() as base:
        base.execute("UPDATE trials SET status = 'running', owner = 'gone'")
    sweep(SIX | {"defense": "none", "seed": 0}, store=tmp_path / "store")
    assert file.stat().st_ino != before.st_ino
    assert contents(tmp_path / "store") == {left.digest: contents(whole)[left.digest]}


def test_two_sweeps_share_a_store_and_run_nothing_twice(whole: Path, tmp_path: Path, processes: Any) -> None:
    folder = tmp_path / "store"
    both = [processes.Process(target=_sweep, args=(str(folder),)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(120)
        assert each.exitcode == 0
    assert contents(folder) == contents(whole)


def test_processes_take_trials_from_the_store(whole: Path, tmp_path: Path) -> None:
    last: list[tuple[int, int]] = []
    sweep(SIX, store=tmp_path / "store", on="local:2", told=lambda p: last.append((p.done, p.left)))
    assert contents(tmp_path / "store") == contents(whole)  # to the byte
    assert last[-1] == (6, 0)
    with pytest.raises(SettingError, match=r"here, local:2, ray .* got 'local'"):
        sweep(SIX, store=tmp_path / "store", on="local")


def test_what_changed_since_it_was_asked_for_is_not_run_by_a_worker() -> None:
    one = Trial(**TASK).prepare()
    assert Later(one).made.digest == one.digest
    other = Later(one)
    other.digest = "0" * 16
    with pytest.raises(DosimeterError, match="changed while the sweep ran; start it again"):
        assert other.needs


def test_a_store_of_ten_thousand_trials_opens_in_less_than_a_second(tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store, store._base.writing() as base:
        rows = [(f"{at:016x}", "audit", '{"model": "cnn"}', "done", '{"ssim": 0.5}') for at in range(10_000)]
        base.executemany("INSERT INTO trials (digest, kind, words, status, found) VALUES (?, ?, ?, ?, ?)", rows)
    began = time.process_time()
    with Store(tmp_path / "store") as store:
        assert len(store.entries()) == 10_000
        assert all(store.entry(f"{at:016x}") for at in range(0, 10_000, 10))
    assert time.process_time() - began < 1


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found none"):
        Store(tmp_path / "nothing", create=False)
    (tmp_path / "trials.sqlite").write_bytes(b"something else entirely, and long enough to be looked at")
    with pytest.raises(DataError, match="no store of trials"):
        Store(tmp_path)
    (tmp_path / "trials.sqlite").unlink()
    Store(tmp_path)
    with sqlite3.connect(tmp_path / "trials.sqlite") as base:
        base.execute("UPDATE about SET format = 99")
    with pytest.raises(DataError, match="expected a store of format 1, got 99"):
        Store(tmp_path)
