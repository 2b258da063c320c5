"""`dosimeter lint` as a person or a pipeline meets it."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dosimeter.cli import app

MODEL = """
import torch
from torch import nn

def dense(width=16): return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Sigmoid(), nn.Linear(width, 10))
def few(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 3))

class Quiet(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.last = nn.MaxPool2d(14), nn.Linear(4, 10).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(4))
    def forward(self, x): return self.last(self.pool(x).flatten(1) * self.scale)

class Picky(nn.Linear):
    def forward(self, x):
        if len(x) > 2: raise RuntimeError("batches of one or two")
        return super().forward(x.flatten(1))
def picky(): return Picky(784, 10)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


OWN = ("--model", "mine.py:dense", "--shape", "1,28,28")


def test_a_table_of_eighty_columns_says_what_leaks_what_shows_it_and_what_removes_it(here: Path) -> None:
    code, out, _ = call("lint", *OWN)
    assert code == 0
    table, *rest = out.split("\n\n")
    assert all(len(line) <= 80 for line in table.splitlines())
    assert table.splitlines()[1].split()[:2] == ["error", "first-layer"]
    assert sum("shown by    dosimeter audit --model mine.py:dense" in each for each in rest) == 2
    assert sum("removed by" in each for each in rest) == 2
    assert "1 error, 1 warning" in rest[-1]


def test_the_commands_that_it_names_run_and_show_it(here: Path) -> None:
    code, out, _ = call("lint", *OWN, "--json")
    assert code == 0
    leaks = {leak["rule"]: leak for leak in json.loads(out)["leaks"]}
    for rule, shows in (("first-layer", "recovered"), ("labels", "labels")):
        program, *words = shlex.split(leaks[rule]["shown_by"])
        assert program == "dosimeter"
        code, said, _ = call(*words, "--out", str(here / rule), "--json")
        assert code == 0
        (record,) = json.loads(said)["records"]
        assert record["stopped"] == shows
    assert leaks["first-layer"]["share"] == 1


def test_settings_of_a_model_and_of_clients_stand_in_the_commands(here: Path) -> None:
    words = ("--batch", "4", "--defense", "noise:sigma=0.1", "--seed", "3")
    _, out, _ = call("lint", "--model", "mine.py:dense:width=8", "--shape", "1,28,28", *words, "--json")
    first, labels = json.loads(out)["leaks"]
    if first["rule"] != "first-layer":
        first, labels = labels, first
    base = (
        "dosimeter audit --model mine.py:dense:width=8 --data mnist-5k --size 28 --batch {} --defense noise:sigma=0.1"
    )
    assert first["shown_by"] == base.format(1) + " --seed 3 --victims 1 --attack analytic"
    assert labels["shown_by"] == base.format(4) + " --seed 3 --victims 1 --attack labels"
    _, out, _ = call("lint", "--model", "vit", "--json")
    shown = json.loads(out)["leaks"][0]["shown_by"]
    assert shown.startswith("dosimeter audit --model vit --data mnist-5k --size 32 --channels 3 ")
    _, out, _ = call("lint", "--model", "mine.py:few", "--shape", "1,8,8", "--classes", "3", "--json")
    assert "--data YOURS.npz" in json.loads(out)["leaks"][0]["shown_by"]


def test_pipelines_are_told_by_exit_codes_and_sarif(here: Path) -> None:
    code, _, _ = call("lint", *OWN, "--fail-on", "error", "--sarif", "found.sarif")
    assert code == 1
    (run,) = json.loads((here / "found.sarif").read_text())["runs"]
    assert [each["level"] for each in run["results"]] == ["error", "warning"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {"first-layer", "labels"}
    (place,) = run["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "mine.py"
    assert MODEL.splitlines()[place["physicalLocation"]["region"]["startLine"] - 1].startswith("def dense")
    assert place["logicalLocations"] == [{"fullyQualifiedName": "1", "kind": "member"}]
    assert call("lint", *OWN, "--fail-on", "warning")[0] == 1
    noisy = ("--defense", "noise:sigma=0.1")
    assert call("lint", *OWN, *noisy, "--fail-on", "error")[0] == 0
    assert call("lint", *OWN, *noisy, "--fail-on", "warning")[0] == 1


def test_a_model_without_findings_is_no_pass(here: Path) -> None:
    code, out, _ = call("lint", "--model", "mine.py:Quiet", "--shape", "1,28,28", "--fail-on", "note")
    assert code == 0
    assert "That is no pass" in out


def test_explained(here: Path) -> None:
    code, out, _ = call("lint", "--model", "resnet20:width=0.25", "--explain")
    assert code == 0
    assert "fixed at most" in out
    assert "analytic does not fit" in out
    assert "what becomes of updates: the update as it is" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "mine.py:picky", "--shape", "1,28,28"), "cannot be traced: batches of one or two"),
        (("--model", "mine.py:dense"), "cannot take images"),
        (("--model", "cnn", "--shape", "3,8,8"), "29x29"),
        (("--model", "cnn", "--shape", "3,32"), "A shape is channels"),
        (("--model", "cnn", "--data", "mnist-5k", "--shape", "1,32,32"), "--shape"),
        (("--model", "cnn", "--batch", "0"), "batch"),
    ],
)
def test_what_cannot_be_linted_is_said_in_one_line(here: Path, words: tuple[str, ...], said: str) -> None:
    code, out, err = call("lint", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_the_form_may_be_that_of_data(here: Path) -> None:
    _, out, _ = call("lint", "--model", "cnn", "--data", "mnist-5k", "--json")
    found = json.loads(out)
    assert found["shape"] == [1, 32, 32]
    assert "--data mnist-5k --victims" in found["leaks"][0]["shown_by"]


def test_help_does_not_wait_for_torch() -> None:
    program = """
import sys
from typer.testing import CliRunner
from dosimeter.cli import app
assert CliRunner().invoke(app, ["lint", "--help"]).exit_code == 0
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
