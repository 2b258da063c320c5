"""`dosimeter reproduce` on a small item of each kind."""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dosimeter import files, papers
from dosimeter.cli import app, reproduced
from dosimeter.papers.claims import Claim, Stated
from dosimeter.papers.item import Case, Cut, Item
from dosimeter.sweeps import Course, Trial

MINE = Item(
    paper="mine",
    name="table1",
    about="Two defenses.",
    heading=("data", "defense"),
    quantities=("accuracy", "ssim"),
    cases=(
        Case(
            name=("digits", "none"),
            trial=Trial(model="mlp:width=16,depth=1", attack="ig", steps=9, victims=2, decoys=0),
            course=Course(model="mlp:width=16,depth=1", protocol="ppp:rounds=2,clients=2"),
            published={"ssim": 0.5, "accuracy": (90.0, 1.0)},
        ),
        Case(
            name=("digits", "noise"),
            trial=Trial(model="mlp:width=16,depth=1", attack="ig", defense="noise", victims=2, decoys=0),
            tries=("ig:tv=0.1,steps=2", "ig:tv=0.001,steps=2"),
            published={"ssim": 0.1},
        ),
        Case(name=("digits", "more"), trial=Trial(), needs="weights that are not at hand"),
    ),
    laptop=Cut(victims=1, steps=2, rounds=1, panel=2),
    figure="tradeoff",
)


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setitem(papers.ITEMS, MINE.key, MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["reproduce", *words])
    if found.exception and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.exit_code, found.stdout, found.stderr


def test_a_table_is_run_kept_written_and_not_run_again(mine: Path) -> None:
    code, out, err = call(MINE.key, "--results", "results")
    assert code == 0, err
    assert "| digits | none |" in out
    assert "not run: needs weights that are not at hand" in out
    cut = "Cut at this scale: 1 of 2 victims, 2 of 9 steps of searches, 1 of 2 rounds of training, "
    assert f"{cut}2 steps of every search of ours." in out
    found = json.loads((mine / "results/mine-table1-laptop.json").read_text())
    first, second, third = found["rows"]
    assert first["published"] == {"accuracy": [90.0, 1.0], "ssim": 0.5}
    assert 0 < first["measured"]["accuracy"][0] < 100
    assert first["by"]
    assert third["not_run"]
    assert second["measured"]["ssim"]
    assert (mine / "results/mine-table1-laptop.svg").read_text().startswith("<svg")
    assert (mine / "results/mine-table1-laptop.png").read_bytes().startswith(b"\x89PNG")
    assert (mine / "results/mine-table1-laptop-pictures.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((mine / "results/mine-table1-laptop.csv").read_text().splitlines()))
    assert [row["defense"] for row in rows] == ["none", "noise", "more"]
    assert (rows[0]["accuracy published"], rows[0]["accuracy published spread"]) == ("90", "1")
    assert float(rows[0]["ssim"]) == pytest.approx(first["measured"]["ssim"][0], rel=1e-4)
    assert "dosimeter reproduce" in (mine / "results/mine-table1-laptop.md").read_text()
    assert "table1" in (mine / "runs/papers/study.html").read_text()
    code, again, err = call(MINE.key)
    assert code == 0
    assert "0 left" not in err  # for nothing was run
    assert call(MINE.key, "--results", "published", "--redact")[0] == 0
    assert not list((mine / "published").glob("*pictures*"))
    assert "pictures" not in (mine / "published/mine-table1-laptop.md").read_text()
    table = [line for line in out.splitlines() if line.startswith("| digits")]
    assert [line for line in again.splitlines() if line.startswith("| digits")] == table


def test_all_items_are_listed_and_a_wrong_name_is_refused(mine: Path) -> None:
    code, out, _ = call("--list")
    assert code == 0
    assert all(key in out for key in papers.ITEMS)
    code, _, err = call("mine/table7")
    assert (code, "mine/table7" in err, (mine / "runs").exists()) == (2, True, False)
    assert call()[0] == 2


def test_claims_are_judged_by_what_is_kept(mine: Path) -> None:
    (mine / "runs/papers").mkdir(parents=True)
    code, out, _ = call("--claims", "--results", "results")
    assert code == 0
    assert out.count("| not tested") == 2 * len(papers.CLAIMS)
    none = f"0 held, 0 not held, {len(papers.CLAIMS)} not tested"
    assert f"by the papers' own attacks: {none}; by ours: {none}." in out
    assert none in (mine / "results/claims-laptop.md").read_text()


def test_claims_are_judged_by_files_where_the_store_has_nothing(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim(
        name="mine: images are read",
        where="here",
        item=MINE.key,
        checks=(Stated(rows=("digits", "none"), quantity="ssim", above=-1.0),),
    )
    monkeypatch.setattr(papers, "CLAIMS", (claim,))
    assert call(MINE.key, "--results", "results", "--redact")[0] == 0
    by_store = papers.judge_all("runs/papers")
    assert by_store[0][1].held is papers.Held.HELD
    assert papers.judge_all("elsewhere")[0][1].held is papers.Held.UNTESTED
    assert papers.judge_all("elsewhere", results=mine / "results") == by_store
    rows = papers.from_document(files.read_json(mine / "results/mine-table1-laptop.json"))
    for row, kept in zip(rows, papers.recall(MINE, "runs/papers"), strict=True):
        assert row.name == kept.name
        assert {key: each.pair for key, each in row.values.items()} == {
            key: each.pair for key, each in kept.values.items()
        }
        assert (row.by, row.verdict, row.evidence, row.why_not) == (kept.by, kept.verdict, kept.evidence, kept.why_not)
        for name in ("read", "read_by", "short", "short_by"):
            told, was = getattr(row, name), getattr(kept, name)
            assert (told and (told.hits, told.of)) == (was and (was.hits, was.of))
    (mine / "results/mine-table1-laptop.json").write_text('{"rows": [{"name": 3}]}')
    code, _, err = call("--claims", "--out", "elsewhere", "--results", "results")
    assert (code, "mine-table1-laptop.json" in err) == (2, True)


@given(st.integers(1, 300))
def test_many_points_of_a_line_are_thinned_evenly_with_both_ends(many: int) -> None:
    line = [(float(at), at / 7) for at in range(many)]
    kept = [float(row["x"]) for row in csv.DictReader(reproduced.points({"f": {"l": line}}).splitlines())]
    assert len(kept) == min(many, 20)
    assert (kept[0], kept[-1]) == (0.0, many - 1.0)
    assert kept == sorted(set(kept))
