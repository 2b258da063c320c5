"""Sweeps on the command line, and the folder that keeps them."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dosimeter.cli import app

WORDS = ("sweep", "--model", "lenet", "--attack", "ig", "--steps", "2", "--victims", "1")


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.stdout.split()), " ".join(result.stderr.split())


def test_a_sweep_prints_its_grid_and_goes_on_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    more = ("--defense", "none", "--defense", "noise:sigma=0.01+10", "--out", "kept")
    code, out, _ = call(*WORDS, "--defense", "none", "--out", "kept")
    assert (code, out.count("lenet"), "noise" in out) == (0, 1, False)
    code, out, _ = call(*WORDS, *more, "--dry-run")
    assert (code, "kept 1" in out.replace("│ ", "")) == (0, True)
    code, out, _ = call(*WORDS, *more, "--show", "verdict")
    assert code == 0
    assert "noise:sigma=10" in out
    assert "inconclusive" in out
    page = (tmp_path / "kept/sweep.html").read_text()
    assert page.count("Most exposed") == 3
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
        assert [row["defense"] for row in csv.DictReader(file)].count("noise:sigma=10") == 1
    assert call("store", "merge", "other", "kept")[1].startswith("3 trials from kept")
    assert call("store", "prune", "kept", "--stale")[1] == "0 trials removed"


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
