"""`dosimeter train-generator` and the attack that uses what it writes, as a person meets them."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from dosimeter.attacks import generators
from dosimeter.cli import app


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a data set of 8x8 stripes."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 8, 160)
    images = np.repeat((np.eye(8)[labels] * 255).astype("uint8")[:, :, None], 8, axis=2)
    halves = {"train_images": images[:20], "train_labels": labels[:20]}
    np.savez(tmp_path / "stripes.npz", **halves, test_images=images[20:], test_labels=labels[20:])
    return tmp_path


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


TRAIN = ("train-generator", "--data", "stripes.npz", "--latent", "4", "--width", "2", "--epochs", "2")
AUDIT = ("audit", "--data", "stripes.npz", "--model", "lenet", "--victims", "2", "--steps", "3", "--decoys", "2")


def test_a_generator_is_trained_written_and_searched(here: Path) -> None:
    code, out, _ = call(*TRAIN)
    assert code == 0
    assert "generator.safetensors: a generator of 1x8x8" in out
    assert "mean SSIM" in " ".join(out.split())
    assert sorted(p.name for p in here.iterdir()) == ["generator.safetensors", "stripes.npz"]
    with safe_open(here / "generator.safetensors", "pt") as file:
        about = file.metadata()["about"]
    assert "stripes test, 140 images" in about
    assert "variational autoencoder" in about
    for attack in ("ggl", "ggl:by=adam,fit=prune", "grnn:width=2"):
        code, out, err = call(*AUDIT, "--attack", attack, "--json", "--out", attack.replace(":", "-"))
        assert code == 0, err
        document = json.loads(out)
        assert len(document["records"]) == 2
        if attack == "ggl":
            fingerprint = generators.load_generator("generator.safetensors").name
            assert f"Generator('{fingerprint}', latent=4, shape=(1, 8, 8))" in document["settings"]["attack"]


def test_what_does_not_fit_is_refused_in_one_line(here: Path) -> None:
    cases = {
        "There is no generator 'generator.safetensors'": (*AUDIT, "--attack", "ggl"),
        "There is no generator 'other.safetensors'": (*AUDIT, "--attack", "ggl:generator=other.safetensors"),
        "ends in .safetensors": (*TRAIN, "--out", "generator.pt"),
        "is not there or cannot be written": (*TRAIN, "--out", "none/generator.safetensors"),
        "at least 64 images": (*TRAIN, "--images", "30"),
        "epochs of at least 1": ("train-generator", "--data", "stripes.npz", "--epochs", "0"),
        "split": (*TRAIN, "--split", "validation"),
    }
    for words, command in cases.items():
        code, out, err = call(*command)
        assert (code, out) == (2, ""), words
        assert words in err
        assert len(err.strip().splitlines()) == 1
    assert [p.name for p in here.iterdir()] == ["stripes.npz"]
    assert call(*TRAIN)[0] == 0
    assert "there already" in call(*TRAIN)[2]
    code, _, err = call(*AUDIT, "--attack", "ggl", "--size", "12")
    assert code == 2
    assert "makes images of 1x8x8, but the victims' are 1x12x12" in err
    assert [p.name for p in here.iterdir() if p.suffix != ".npz"] == ["generator.safetensors"]


def test_ctrl_c_leaves_no_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generators, "train_generator", interrupted)
    code, _, err = call(*TRAIN)
    assert code == 130
    assert "no generator was written" in err
    assert [p.name for p in here.iterdir()] == ["stripes.npz"]
