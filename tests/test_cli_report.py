"""A stored run is looked at and scored again without an attack, and says which command made it."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dosimeter import store
from dosimeter.auditing import Result
from dosimeter.cli import app
from dosimeter.metrics.lpips import ALEXNET, VGG16, Backbone

WORDS = "audit --model mlp-2 --size 12 --victims 2 --batch 2 --steps 3 --decoys 3 --defense ats:policy=0-0-0"
AUDIT = WORDS.split()
METRIC = """import dosimeter as dm
FAR = dm.Metric(name="far", function=lambda a, b: (a - b).abs().flatten(1).amax(1), higher=False, label="Farthest")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOSIMETER_DATA", raising=False)
    (tmp_path / "mine.py").write_text(METRIC)
    return tmp_path


def call(*words: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, words)
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


def weights(backbone: Backbone, path: Path) -> str:
    """A network of that form with weights by chance."""
    numbers = torch.Generator().manual_seed(0)
    found = {}
    for conv in backbone.convs:
        found[f"features.{conv.place}.weight"] = 0.1 * torch.randn(conv.shape, generator=numbers)
        found[f"features.{conv.place}.bias"] = torch.zeros(conv.shape[0])
    read = [conv for conv in backbone.convs if conv.read]
    found |= {f"lin{i}.model.1.weight": torch.rand(1, conv.shape[0], 1, 1) for i, conv in enumerate(read)}
    torch.save(found, path)
    return str(path)


def shown(path: Path) -> str:
    """A page without the time at which it was written."""
    return re.sub(r"written [^<]*", "", path.read_text())


def test_scoring_again_says_what_an_audit_would_have_said(here: Path) -> None:
    networks = [weights(ALEXNET, here / "alex.pth"), weights(VGG16, here / "vgg.pth")]
    call(*AUDIT, "--out", "plain")
    options = ["--threshold", "0.05", "--delta", "1.5", "--metric", "mine.py:FAR"]
    options += [word for network in networks for word in ("--lpips", network)]
    said = call("score", "plain", *options)
    assert "LPIPS, VGG-16" in said
    call(*AUDIT, "--out", "asked", *options)
    again, asked = (json.loads((here / name / "records.json").read_text()) for name in ("plain-scored-1", "asked"))
    assert again == asked
    assert {"lpips", "lpips_vgg", "far"} <= set(again["scores"]["scores"])
    assert again["scores"]["transformed"] == asked["scores"]["transformed"]
    page = (here / "plain-scored-1" / "report.html").read_text()
    for label in ("Farthest", "LPIPS, VGG-16"):
        assert label in page
    assert "dosimeter score plain --threshold 0.05" in page
    assert str(here) not in page
    twice = call(*AUDIT, "--out", "twice", "--lpips", networks[0], "--lpips", networks[0], code=2)
    assert "'lpips' twice" in twice
    assert not (here / "twice").exists()


def test_a_page_is_made_anew_from_the_folder_of_a_run(here: Path) -> None:
    call(*AUDIT, "--out", "run", "--lpips", weights(ALEXNET, here / "weights of mine.pth"))
    page = here / "run" / "report.html"
    before = shown(page)
    assert "--lpips &#x27;weights of mine.pth&#x27;" in before  # a path elsewhere by its name alone
    page.unlink()
    assert "report run/report.html" in call("report", "run")
    assert shown(page) == before
    assert "expected a file of a run" in call("report", "nothing", code=2)


def test_a_panel_is_looked_at_and_scored_as_a_whole(here: Path) -> None:
    call(*AUDIT[:-2], "--attack", "auto", "--out", "run")
    pages = sorted(Path("run").rglob("report.html"))
    before = [shown(page) for page in pages]
    for page in pages:
        page.unlink()
    call("report", "run")
    assert [shown(page) for page in pages] == before
    call("score", "run", "--threshold", "0.01", "--out", "lax")
    lax = store.read(here / "lax")
    assert isinstance(lax, Result)
    assert lax.scores.success.threshold == 0.01
    assert all(t.result.scores.success.threshold == 0.01 for t in lax.panel if t.result)
    assert lax.verdict != store.read(here / "run").verdict  # type: ignore[union-attr]


def test_a_training_and_a_study_say_their_command_and_are_drawn_anew(here: Path) -> None:
    call("train", "--model", "mlp-2", "--protocol", "ppp:rounds=1,clients=2", "--out", "train")
    few = ("--data", "mnist-5k", "--victims", "1", "--steps", "1", "--metric", "mine.py:FAR")
    said = call("study", "architectures", "--only", "mlp", *few, "--out", "study")
    assert "| Farthest |" in said
    for page in (here / "train" / "training.html", here / "study" / "study.html"):
        before = page.read_text()
        assert f"dosimeter {page.parent.name}" in before
        page.unlink()
        call("report", str(page.parent))
        assert page.read_text() == before
    (here / "train" / "page.json").write_text("{}")
    assert "expected what a page shows" in call("report", "train", code=2)
