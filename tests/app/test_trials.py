"""What the explorer asks of a store, against what the store itself says, and of stores that were tampered with."""

import csv
import io
import json
import sqlite3
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import many
from dosimeter import plain
from dosimeter.app import figures, places
from dosimeter.app.trials import CHOICES, USUAL, Asked, Trials
from dosimeter.errors import DataError
from dosimeter.sweeps import Store, Trial


def change(store: Path, question: str, *given: Any) -> None:
    base = sqlite3.connect(store / "trials.sqlite")
    with base:
        base.execute(question, given)
    base.close()


def test_what_words_leave_out_is_what_a_trial_has() -> None:
    usual = {each.name: each.default for each in fields(Trial)}
    assert {name: usual[name] for name in USUAL} == USUAL


@pytest.mark.parametrize("sort", ["ssim", "model", "defense", "seed", "began", "accuracy"])
def test_rows_are_the_entries_of_the_store_in_their_order(small: Path, sort: str) -> None:
    asked = Asked(chosen={"model": "lenet", "kind": "audit"}, text="NOISE 0.001", sort=sort, down=False)
    with Store(small, create=False) as store:
        entries = [each for each in store.entries() if each.kind == "audit"]
    right = {
        each.digest
        for each in entries
        if each.words.get("model", "cnn") == "lenet" and "noise" in str(each.words) and "0.001" in str(each.words)
    }
    trials = Trials(small)
    found, counted = trials.page(asked, most=100)
    assert {row["digest"] for row in found} == right
    assert trials.many(asked) == counted == len(right) > 1
    assert trials.rows(asked, most=100) == found
    values = [row[sort] for row in found if row[sort] is not None]
    assert values == sorted(values)
    pages = [row["digest"] for skip in range(0, len(right), 2) for row in trials.page(asked, most=2, skip=skip)[0]]
    assert trials.page(asked, most=2, skip=100) == ([], len(right))
    assert pages == [row["digest"] for row in found]


def test_words_that_are_usual_are_found_too(small: Path) -> None:
    with Store(small, create=False) as store:
        right = {each.digest for each in store.entries() if each.words.get("model", "cnn") == "cnn"}
    assert {row["digest"] for row in Trials(small).rows(Asked(text="CNN"), most=500)} == right
    change(small, "UPDATE trials SET words = ? WHERE digest = ?", json.dumps({"defense": 'é "x"'}), many.digest_of(3))
    for text in ('É "x"', "é"):
        assert [row["digest"] for row in Trials(small).rows(Asked(text=text), most=9)] == [many.digest_of(3)]


def test_choices_are_all_values_that_are_there(small: Path) -> None:
    found = Trials(small).choices()
    assert set(found) == set(CHOICES)
    assert found["model"] == sorted(many.MODELS)
    assert found["kind"] == ["audit", "training"]


def test_an_audit_has_the_accuracy_of_its_training_or_of_one_like_it(small: Path) -> None:
    trials, used = Trials(small), many.digest_of(0)
    (row,) = trials.some([used])
    assert row["accuracy"] == pytest.approx(0.5 + 60 % 50 / 100)
    alone = many.digest_of(13)
    assert trials.trial(alone)["accuracy"] is None  # type: ignore[index]
    model, defense = (Trial(**many.words_of(13)).model, Trial(**many.words_of(13)).defense)  # type: ignore[arg-type]
    words = {"model": model, "defense": defense, "data": Trial(**many.words_of(13)).data, "protocol": "ppp"}  # type: ignore[arg-type]
    for seed, accuracy in enumerate((0.5, 0.7)):
        told = ("training", json.dumps({**words, "seed": seed}), "done", None, 0, 1, json.dumps({"accuracy": accuracy}))
        change(small, "INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)", f"aa{seed}", *told)
    assert trials.trial(alone)["accuracy"] == pytest.approx(0.6)  # type: ignore[index]
    other = json.dumps({**words, "protocol": "cvb"})
    change(small, "UPDATE trials SET words = ? WHERE digest = 'aa1'", other)
    assert trials.trial(alone)["accuracy"] is None, "two protocols, of which neither is this audit's"  # type: ignore[index]


def test_damaged_rows_stay_rows(small: Path) -> None:
    wrong = {
        0: ("words", "{"), 1: ("words", "[1]"), 2: ("found", "no JSON"), 3: ("status", "perhaps"),
        4: ("words", b"\xff\xfe\x00"), 5: ("digest", "../../etc/passwd"), 6: ("found", '{"ssim": "<b>", "read": []}'),
    }  # fmt: skip
    for at, (column, value) in wrong.items():
        change(small, f"UPDATE trials SET {column} = ? WHERE digest = ?", value, many.digest_of(at))
    trials = Trials(small)
    rows = {row["digest"]: row for row in trials.rows(Asked(), most=500)}
    assert len(rows) == 110
    gone = [many.digest_of(at) for at in range(5)] + ["../../etc/passwd"]
    assert {digest for digest, row in rows.items() if row["status"] == "damaged"} == set(gone)
    assert trials.many(Asked(chosen={"status": "damaged"})) == 6
    assert all(axis.value(rows[many.digest_of(6)]) is None for axis in figures.AXES.values() if axis.name == "ssim")
    trials.choices(), trials.export(Asked()), trials.running()
    with pytest.raises(DataError, match="digest"):
        places.trial(small, "../../etc/passwd")


def test_numbers_that_are_none_do_not_damage_a_trial(small: Path) -> None:
    found = json.dumps({"ssim": float("nan"), "psnr": float("-inf"), "read": 0, "of": 12, "verdict": "inconclusive"})
    change(small, "UPDATE trials SET found = ? WHERE digest = ?", found, many.digest_of(7))
    row = Trials(small).trial(many.digest_of(7))
    assert row is not None
    assert (row["status"], row["ssim"], row["verdict"]) == ("done", None, "inconclusive")


def test_records_come_by_exposure_and_damaged_ones_too(small: Path) -> None:
    trials, digest = Trials(small), many.digest_of(59)
    right = sorted((many.record_of(59, image)["ssim"] for image in range(12)), reverse=True)
    found = trials.records(digest, most=12, order="most exposed first")
    assert [each["ssim"] for each in found if each] == right
    read = trials.images(digest, said="read")
    assert read == sum(ssim >= 0.5 for ssim in right)  # type: ignore[operator]
    change(small, "UPDATE records SET record = '{' WHERE digest = ? AND place = 3", digest)
    assert trials.records(digest, most=12).count(None) == 1
    assert trials.images(digest) == 12


def test_a_file_that_is_no_store_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "trials.sqlite").write_bytes(b"no database at all, but of some length" * 50)
    with pytest.raises(DataError, match="damaged"):
        Trials(tmp_path).counts()


def test_cells_of_a_table_run_nowhere() -> None:
    for text in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1"):
        made = io.StringIO()
        csv.writer(made).writerow([plain.cell(text)])
        assert next(csv.reader(io.StringIO(made.getvalue())))[0].startswith("'")
    assert plain.cell(-1) == -1


def test_a_large_store_answers_at_once(large: Path) -> None:
    """The measured times are in docs/app.md; these bounds hold on a machine that does much else."""
    trials = Trials(large)
    asked = Asked(text="noise", chosen={"model": "lenet", "kind": "audit"}, sort="ssim")
    questions = (trials.counts, lambda: trials.page(Asked(), most=25), lambda: trials.page(asked, most=25))
    for question in questions:
        began = time.perf_counter()
        question()
        assert time.perf_counter() - began < 2
