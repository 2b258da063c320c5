"""Sweeps on the command line, and the folder that keeps them."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dosimeter.cli import app
from dosimeter.cli.parts import standing
from dosimeter.sweeps import Progress, Status, Store, Table, Trial, sweep

WORDS = ("sweep", "--model", "lenet", "--attack", "ig", "--steps", "2", "--victims", "1")


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.stdout.split()), " ".join(result.stderr.split())


def test_a_table_says_how_far_a_sweep_is() -> None:
    running = tuple(f"seed {at}" for at in range(20))
    progress = Progress(frozenset(map(str, range(100))), frozenset("0123"), workers=20, done=10, failed=2)
    progress.running, progress.seconds, progress.behind, progress.ahead = running, 100.0, 10.0, 84.0
    console = Console(width=100, color_system=None)
    with console.capture() as shown:
        console.print(standing(progress))
    lines = [line.split() for line in shown.get().splitlines()]
    assert lines[0] == ["done", "running", "failed", "kept", "left", "time", "left"]
    assert lines[1] == ["10", "20", "2", "4", "84", "42.0", "s", "seed", "0"]
    assert (len(lines), lines[-1]) == (10, ["and", "12", "more"])


def test_a_sweep_prints_its_grid_and_goes_on_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    more = ("--defense", "none", "--defense", "noise:sigma=0.01+10", "--out", "kept")
    code, out, _ = call(*WORDS, "--defense", "none", "--out", "kept")
    assert (code, out.count("lenet"), "noise" in out) == (0, 1, False)
    code, out, _ = call(*WORDS, *more, "--dry-run")
    assert (code, "1 kept, 2 to run" in out) == (0, True)
    code, out, _ = call(*WORDS, *more, "--show", "verdict")
    assert code == 0
    assert "noise:sigma=10" in out
    assert "inconclusive" in out
    page = (tmp_path / "kept/sweep.html").read_text()
    assert page.count('id="picture-') == 3
    assert "of 3 trials leak" in page
    assert "data:image" in page
    code, out, _ = call("sweep", "--config", "kept/run.toml", "--out", "kept", "--json")
    assert (code, len(json.loads(out)["trials"])) == (0, 3)
    assert call("report", "kept")[0] == 0  # the page anew

    code, out, _ = call("store", "list", "kept", "--status", "done")
    assert (code, out.count("audit done")) == (0, 3)
    digest = json.loads(call("sweep", "--config", "kept/run.toml", "--out", "kept", "--json")[1])["trials"][0]["digest"]
    code, out, _ = call("store", "show", "kept", digest[:6])
    assert (code, json.loads(out)["digest"], len(json.loads(out)["records"])) == (0, digest, 1)
    assert call("store", "export", "kept", "all.csv", "--records")[0] == 0
    with open("all.csv") as file:
        assert {row["defense"] for row in csv.DictReader(file)} == {"none", "noise:sigma=0.01", "noise:sigma=10"}
    assert call("store", "merge", "other", "kept")[1].startswith("3 trials from kept")
    assert call("store", "prune", "kept", "--stale")[1].startswith("0 trials removed next ")


def test_what_a_store_cannot_do_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words, says in (
        (("store", "list", "nothing"), "found none"),
        ((*WORDS, "--defense", "nois"), "Unknown defense 'nois'"),
        ((*WORDS, "--seeds", "0"), "0 is not in the range"),
    ):
        code, _, err = call(*words)
        assert (code, says in err) == (2, True), err
    assert call(*WORDS, "--out", "kept")[0] == 0
    for words, says in (
        (("store", "show", "kept", "zzz"), "Expected the digest of one trial"),
        (("store", "export", "kept", "a.xls"), "ends in .csv, .jsonl or .parquet"),
        (("store", "prune", "kept"), "say --failed, --stale or both"),
        (("store", "list", "kept", "--status", "donne"), "Did you mean 'done'"),
        ((*WORDS, "--out", "kept", "--rows", "defence"), "Unknown column of a sweep"),
    ):
        code, _, err = call(*words)
        assert (code, says in err) == (2, True), err


def test_exports_say_the_same_whatever_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    task = {"model": "lenet", "attack": "ig", "steps": 2, "victims": 1}
    sweep([Trial(**task), Trial(**task, batch=2, defense="ppp")], store="kept")
    with Store("kept") as store:  # settings of two types, numbers of steps and how they are chosen
        unlike = json.dumps(task | {"steps": "auto", "batch": 2})
        with store._base.writing() as base:
            base.execute("UPDATE trials SET words = ? WHERE words LIKE '%ppp%'", (unlike,))
    for records, rows in ((), 2), (("--records",), 3):
        for ending in ("csv", "jsonl", "parquet"):
            said = call("store", "export", "kept", f"all.{ending}", *records)[1]
            assert said.startswith(f"{rows} rows all.{ending} next ")
        text = pandas.read_csv("all.csv")
        lines = pandas.read_json("all.jsonl", lines=True, precise_float=True)
        table = pandas.read_parquet("all.parquet")
        assert len(table) == rows
        assert list(table.columns) == list(text.columns) == list(lines.columns)
        for name in table.columns:
            ours = [None if value is None or value != value else value for value in table[name].tolist()]
            for other in (text[name].tolist(), lines[name].tolist()):
                told = [json.dumps(value) if isinstance(value, dict | list) else value for value in other]
                told = [None if value is None or value != value else value for value in told]
                assert [str(v) if isinstance(o, str) else v for v, o in zip(told, ours, strict=True)] == (
                    [pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for value in ours]
                ), name
    assert table["read"].dtype == bool
    assert table["ssim"].dtype == "float64"
    assert set(table["steps"]) == {2}  # the steps of a record beside those that were asked for, of two types
    assert set(table["steps_asked"]) == {"2", "auto"}
    assert table["weights"].isna().all()
    assert json.loads(table["baseline"][0])["ssim"] < 1


def test_a_cell_of_a_spreadsheet_runs_nothing() -> None:
    cells = {"a": "=1+1", "b": "@x", "c": "-rm", "d": -1.5, "e": "plain", "f": "+1", "g": None}
    (row,) = csv.DictReader(io.StringIO(Table([cells]).csv()))
    assert list(row.values()) == ["'=1+1", "'@x", "'-rm", "-1.5", "plain", "'+1", ""]


def test_parquet_without_pyarrow_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Store("kept").__exit__()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = call("store", "export", "kept", "all.parquet")
    assert (code, "Parquet needs pyarrow; install it" in err) == (2, True)
    assert not Path("all.parquet").exists()
    assert call("store", "export", "kept", "all.csv")[0] == 0
    assert call("store", "merge", "new", "nothing")[0] == 2
    assert not Path("new").exists()  # nothing is made where something is refused


def test_ctrl_c_ends_two_workers_cleanly(tmp_path: Path) -> None:
    """In processes of their own, as in a terminal, where all of them hear it."""
    words = ["--model", "lenet", "--attack", "ig", "--steps", "5000", "--victims", "1", "--seeds", "2"]
    program = [sys.executable, "-c", "from dosimeter.cli import main; main()"]
    command = [*program, "sweep", *words, "--on", "local:2", "--out", str(tmp_path / "kept")]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.05)
        if (tmp_path / "kept/trials.sqlite").is_file():
            with Store(tmp_path / "kept") as store:
                if len(store.entries(Status.RUNNING)) == 2:
                    break
    os.killpg(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, "Traceback" in err) == (130, False), err
    assert "the same command goes on" in " ".join(err.split())
    with Store(tmp_path / "kept") as store:
        assert store.entries() == []  # nothing is left that would look as if it ran
    assert not list((tmp_path / "kept/owners").iterdir())
    assert not list((tmp_path / "kept/drafts").glob("*"))
