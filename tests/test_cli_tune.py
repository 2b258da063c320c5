"""Tuning on the command line, and the preset that comes of it."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dosimeter.cli import app
from dosimeter.sweeps import sweep

WORDS = (
    "tune",
    "--model",
    "lenet",
    "--attack",
    "bayes:density=cosine",
    "--steps",
    "8",
    "--shadows",
    "2",
    "--victims",
    "2",
)
OWN = (
    "--set",
    "lr=0.05..1:log",
    "--set",
    "tv=0.0001,0.01",
    "--trials",
    "13",
    "--prune",
    "none",
    "--name",
    "mine",
    "--out",
    "kept",
)


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.stdout.split()), " ".join(result.stderr.split())


def test_a_tuning_keeps_a_preset_that_audits_and_sweeps_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(*WORDS, *OWN, "--dry-run")
    assert (code, "image-steps" in out, (tmp_path / "kept").exists()) == (0, True, False)
    code, out, _ = call(*WORDS, *OWN)
    assert code == 0
    assert all(f"{name} {on}" in out for name in ("untuned", "tuned") for on in ("shadows", "victims"))
    assert "tuned/mine.toml" in out
    page = (tmp_path / "kept/tune.html").read_text()
    assert "Which settings matter" in page
    code, out, _ = call("tune", "--config", "kept/run.toml", "--out", "kept", "--json")
    document = json.loads(out)
    assert (code, document["name"], len(document["trials"])) == (0, "mine", 13)
    assert document["victims"].keys() == {"untuned", "tuned"}
    assert document["attack"].startswith("bayes:density=cosine,steps=8,lr=")
    assert call("report", "kept")[0] == 0
    task = {"model": "lenet", "victims": 2, "attack": "tuned:mine"}
    there: list[int] = []
    (row,) = sweep(task, store="kept/victims", told=lambda progress: there.append(progress.kept)).rows
    assert there[0] == 1  # as it was compared with the untuned one
    assert row["attack_name"] == "tuned mine"
    code, out, _ = call("audit", "--model", "lenet", "--attack", "tuned:mine", "--victims", "1", "--out", "run")
    assert (code, "tuned mine on lenet" in out) == (0, True)


def test_bad_words_end_with_2_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/mine.toml").write_text("of somebody else")
    for words, said in (
        (("--set", "speed=1..2"), "Unknown setting of attack 'bayes' 'speed'"),
        (("--set", "rate=0.1..0.2"), "rate does nothing beside density=cosine"),
        (("--space", "bayes-500"), "Unknown space"),
        (("--sampler", "annealing"), "Unknown sampler"),
        (("--attack", "analytic", "--set", "lr=1..2"), "Unknown setting of attack 'analytic'"),
        (("--name", "../x"), "Expected a name"),
        (("--name", "mine"), "of another tuning"),
        (("--attack", "tuned:mine"), "Unknown attack 'tuned'"),
    ):
        code, _, err = call(*WORDS, *words)
        assert (code, said in err) == (2, True), err
    code, _, err = call("sweep", "--model", "lenet", "--attack", "tuned:mine", "--victims", "1", "--out", "s")
    assert (code, "mine.toml" in err) == (2, True)


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("dosimeter.tuning") or each == "dosimeter.cli.tune"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, err = call(*WORDS)
    assert (code, err) == (2, "dosimeter: dosimeter tune needs Optuna; install it (pip install 'dosimeter[tune]').")
