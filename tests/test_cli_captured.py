"""`dosimeter captured` as a person or a script meets it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from dosimeter import auditing, data
from dosimeter.auditing import Audit
from dosimeter.auditing.captured.shadows import InPlace
from dosimeter.cli import app
from dosimeter.store import read_run
from dosimeter.types import Victims
from machine import full_disk

MODEL = """
from torch import nn

def make(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
def other(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 12), nn.ReLU(), nn.Linear(12, 10))
"""
RATE = 0.5


def the_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.fixture(scope="module")
def private() -> Victims:
    return data.pick(data.load("mnist-5k"), 1, seed=5)


def trained(model: nn.Module, private: Victims, steps: int) -> dict[str, Tensor]:
    """The state after local steps of torch's own SGD."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(private.images[0]), private.labels[0]).backward()
        optimiser.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: Victims) -> Path:
    """A folder with a model file, its weights before and after, and updates of one digit in every form."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOSIMETER_DATA", raising=False)
    (tmp_path / "mine.py").write_text(MODEL)
    model = the_model()
    before = model.state_dict()
    save_file(before, "before.safetensors")
    F.cross_entropy(model(private.images[0]), private.labels[0]).backward()
    update = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    save_file(update, "update.safetensors")
    torch.save(update, "update.pt")
    np.savez("update.npz", **{name: g.numpy() for name, g in update.items()})
    np.savez("before.npz", **{name: w.numpy() for name, w in before.items()})
    save_file(trained(the_model(), private, 1), "after1.safetensors")
    after = trained(the_model(), private, 3)
    save_file(after, "after3.safetensors")
    save_file({name: before[name] - w for name, w in after.items()}, "delta3.safetensors")
    pixels = (private.images[0] * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    np.savez("truth.npz", images=pixels, labels=private.labels[0].numpy())
    return tmp_path


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


SOLVE = ("captured", "--model", "mine.py:make", "--weights", "before.safetensors", "--attack", "analytic")
UPDATE = ("--update", "update.safetensors")
DATA = ("--data", "mnist-5k")
NO_DATA = ("--shape", "1,28,28", "--out", "run")


@pytest.mark.parametrize(
    "words",
    [
        ("--update", "update.safetensors"),
        ("--update", "update.npz", "--weights", "before.npz"),
        ("--update", "update.pt"),
        ("--after", "after1.safetensors", "--step", f"local:steps=1,lr={RATE}"),
        ("--after", "after3.safetensors", "--step", f"local:steps=3,lr={RATE}"),
        ("--update", "delta3.safetensors", "--step", f"local:steps=3,lr={RATE}"),
        ("--update", "update.safetensors", "--labels", "LABEL"),
    ],
    ids=" ".join,
)
def test_an_update_of_any_form_gives_its_image_away(here: Path, private: Victims, words: tuple[str, ...]) -> None:
    label = str(private.labels.item())
    code, out, err = call(*SOLVE, *NO_DATA, *(label if word == "LABEL" else word for word in words))
    assert code == 0, err
    assert "The image is certain" in " ".join(out.replace("│", "").split())
    run = read_run(here / "run")
    assert run.document is not None
    assert torch.allclose(run.tensors["images"], private.images, atol=1e-3)
    assert run.document["scores"]["labels"]["found"] == [int(label)]
    assert run.document["threat"]["labels"] is ("--labels" in words)
    assert "originals" not in run.tensors
    assert (here / "run" / "report.html").read_text().startswith("<!doctype html>")
    assert call("report", "run", "--redact")[0] == 0
    redacted = (here / "run" / "report-redacted.html").read_text()
    assert "<img" not in redacted
    assert "left out of this page" in redacted


def test_a_gate_exits_by_the_verdict(here: Path) -> None:
    code, _, err = call(*SOLVE, *NO_DATA, *UPDATE, "--gate")
    assert (code, err) == (1, "Fails: The update leaks: its image is certain.")
    words = (*NO_DATA, "--overwrite", *UPDATE, "--gate", "--batch", "2", "--labels", "1,2", "--attack", "ig:steps=2")
    code, _, err = call(*SOLVE[:-2], *words)
    assert code == 3
    assert err.startswith("Inconclusive: The audit cannot tell: its truth is not known")


def test_weights_that_changed_at_an_unknown_rate_make_no_certificate(here: Path) -> None:
    code, _, err = call(*SOLVE, *NO_DATA, "--after", "after1.safetensors")
    assert code == 0, err
    document = read_run(here / "run").document
    assert document is not None
    assert "lr=1.0" in document["settings"]["step"]
    assert document["scores"]["certificate"]["share"] == 0.0
    assert "least" not in document["scores"]["labels"]


def test_shadows_and_the_truth(here: Path) -> None:
    words = (*UPDATE, *DATA, "--shadows", "2", "--truth", "truth.npz", "--decoys", "5", "--json")
    code, out, err = call(*SOLVE, *words, "--out", "run")
    assert code == 0, err
    document = json.loads(out)
    assert out == (here / "run" / "records.json").read_text()
    assert document["scores"]["shadows"]["updates"] == 2
    assert document["settings"]["shadows"] == "mnist-5k"
    assert document["scores"]["judged"]["success"]["hits"] == 1
    assert document["scores"]["judged"]["identification"]["of"] == 1
    assert document["records"][0]["ssim"] > 0.99
    code, again, _ = call(*SOLVE, *words, "--out", "again")
    assert again == out


@pytest.mark.parametrize(
    ("words", "lr"),
    [
        (("--update", "update.safetensors"), 1.0),
        (("--after", "after1.safetensors", "--step", f"local:steps=1,lr={RATE}"), RATE),
        (("--after", "after3.safetensors", "--step", f"local:steps=3,lr={RATE}"), RATE),
        (("--after", "after1.safetensors", "--step", f"local:steps=1,lr={RATE}", "--perturbed", "steps"), 1.0),
    ],
    ids=["gradient", "one step", "three steps", "gradient of one step"],
)
def test_shadows_have_the_noise_of_what_was_sent(
    here: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], lr: float
) -> None:
    units: list[float] = []

    def noted(audit: Audit, **_: object) -> None:
        assert isinstance(audit.defense, InPlace)
        units.append(audit.defense.lr)
        raise KeyboardInterrupt

    monkeypatch.setattr(auditing.captured.captured, "perform", noted)
    code, _, _ = call(*SOLVE, *words, "--defense", "noise:sigma=0.01", *DATA, "--shadows", "1", "--out", "run")
    assert code == 130
    assert units == [lr]


def test_a_search_without_labels_and_a_folder_of_its_own(here: Path) -> None:
    words = ("captured", "--model", "mine.py:make", "--weights", "before.safetensors", "--update", "update.safetensors")
    code, out, err = call(*words, *DATA, "--steps", "5", "--shadows", "2")
    assert code == 0, err
    assert "On 2 updates of other images" in " ".join(out.replace("│", "").split())
    assert [p.name for p in (here / "runs").iterdir()] == ["captured-mine-ig-1"]


def test_without_data_there_is_nothing_to_compare_with(here: Path) -> None:
    code, out, err = call(*SOLVE, *UPDATE, "--truth", "truth.npz", "--out", "run")
    assert code == 0, err
    assert "there are no shadows, updates of images of your own" in " ".join(out.replace("│", "").split())
    assert "--data" in out
    document = read_run(here / "run").document
    assert document is not None
    assert document["settings"]["form"] == "of mnist-5k, for want of --data or --shape"
    assert "shadows" not in document["settings"]
    assert "identification" not in document["scores"]["judged"]  # decoys would be images of the data, too
    for option in ("--shadows", "--decoys"):
        code, _, err = call(*SOLVE, *UPDATE, "--truth", "truth.npz", option, "3")
        assert code == 2
        assert f"{option} are images of --data" in err


def test_a_page_that_fails_leaves_the_run(here: Path) -> None:
    with full_disk(16_000):
        code, _, err = call(*SOLVE, *NO_DATA, *UPDATE, "--out", "run")
    assert code == 2
    assert "File too large" in err
    assert "The results are kept in 'run'; only their page is missing." in err
    assert read_run(here / "run").info["status"] == "complete"


def test_a_model_of_the_list_takes_its_form_from_data(here: Path) -> None:
    from dosimeter import task

    model = task.load_task("lenet:width=2", "mnist-5k", seed=3).model
    save_file(model.state_dict(), "lenet.safetensors")
    save_file({name: torch.full_like(p, 0.01) for name, p in model.named_parameters()}, "flat.safetensors")
    words = ("captured", "--model", "lenet:width=2", "--weights", "lenet.safetensors", "--update", "flat.safetensors")
    code, _, err = call(*words, "--steps", "3", "--shadows", "0", "--out", "run")
    assert code == 0, err
    code, _, err = call(*words, "--shape", "1,28,28")
    assert code == 2
    assert "takes its classes from data" in err


def spoil(here: Path) -> None:
    """Files that are wrong in every way."""
    update = {name: torch.zeros_like(p) for name, p in the_model().named_parameters()}
    save_file({name: g for name, g in update.items() if name != "1.bias"}, "missing.safetensors")
    save_file(update | {"stranger": torch.ones(1)}, "extra.safetensors")
    save_file(update | {"1.bias": torch.ones(3)}, "misshaped.safetensors")
    save_file(update | {"1.bias": torch.full((16,), torch.nan)}, "nan.safetensors")
    save_file(update | {"1.bias": torch.ones(16, dtype=torch.int64)}, "whole.safetensors")
    save_file(the_model().state_dict() | {"1.bias": torch.full((16,), torch.inf)}, "inf.safetensors")
    np.savez("pickled.npz", evil=np.array([print], dtype=object))
    torch.save({"evil": print}, "pickled.pt")
    (here / "torn.npz").write_bytes(b"PK\x03\x04 this was an npz once")
    pixels = np.zeros((2, 28, 28, 1), np.uint8)
    np.savez("two.npz", images=pixels, labels=np.zeros(2, np.int64))
    np.savez("small.npz", images=pixels[:1, :9], labels=np.zeros(1, np.int64))
    np.savez("first.npz", images=np.zeros((1, 9, 28, 28), np.uint8), labels=np.zeros(1, np.int64))
    np.savez("bright.npz", images=pixels[:1].astype(np.float32) + 7, labels=np.zeros(1, np.int64))
    np.savez("bare.npz", images=pixels)


BAD = [
    (("--update", "missing.safetensors"), "missing '1.bias'"),
    (("--update", "extra.safetensors"), "not in the model 'stranger'"),
    (("--update", "misshaped.safetensors"), "has shape (3,), expected (16,)"),
    (("--update", "nan.safetensors"), "'1.bias' contains NaN"),
    (("--update", "whole.safetensors"), "is of int64, strided, expected plain floats"),
    (("--update", "absent.safetensors"), "There is no update absent.safetensors"),
    (("--update", "mine.py"), "ends in .safetensors, .npz, .pt or .pth"),
    (("--update", "pickled.npz"), "holds Python objects, which could run code"),
    (("--update", "pickled.pt"), "holds Python objects, which could run code"),
    (("--update", "torn.npz"), "torn.npz is damaged"),
    ((*UPDATE, "--weights", "inf.safetensors"), "expected finite weights, but '1.bias' contains infinity"),
    ((*UPDATE, "--model", "mine.py:other"), "does not fit Sequential"),
    ((*UPDATE, "--defense", "precode"), "does not fit"),
    (("--after", "missing.safetensors"), "does not fit Sequential: missing: 1.bias"),
    (("--after", "inf.safetensors"), "expected finite weights"),
    (("--after", "after1.safetensors", "--step", "clipped:bound=1"), "go with --step local"),
    ((*UPDATE, "--after", "after1.safetensors"), "one of them; got both"),
    (("--truth", "truth.npz"), "one of them; got neither"),
    ((*UPDATE, "--perturbed", "steppes"), "Unknown --perturbed 'steppes'"),
    ((*UPDATE, "--step", "local:steps=2,lr=0.1", "--perturbed", "steps"), "Expected one plain step"),
    ((*UPDATE, "--step", "local:steps=2"), "Expected the client's learning rate"),
    ((*UPDATE, "--attack", "auto"), "--attack auto ranks attacks"),
    ((*UPDATE, "--attack", "ig", "--batch", "0"), "at least 1"),
    ((*UPDATE, "--batch", "2"), "--batch 1"),
    ((*UPDATE, "--decoys", "3"), "no use for --decoys; give --truth"),
    ((*UPDATE, "--batch-norm", "sent"), "dosimeter.captured"),
    ((*UPDATE, "--labels", "1,2"), "Expected a label for each of the 1 image(s)"),
    ((*UPDATE, "--labels", "1,x"), "numbers joined by commas"),
    ((*UPDATE, "--labels", "12"), "does not fit cross-entropy on labels up to 12"),
    ((*UPDATE, "--labels", "3", "--attack", "labels"), "finds the labels"),
    ((*UPDATE, "--data", "mnist-5k"), "excludes --data"),
    ((*UPDATE, "--shadows", "3"), "excludes --shadows"),
    ((*UPDATE, "--shape", "28,28"), "channels, height, width"),
    ((*UPDATE, "--shape", "1,0,28"), "at least 1 channel"),
    ((*UPDATE, "--shape", "1,9,9"), "The model cannot take images of shape (1, 1, 9, 9)"),
    ((*UPDATE, "--truth", "two.npz"), "Expected truth of"),
    ((*UPDATE, "--truth", "small.npz"), "Expected truth of"),
    ((*UPDATE, "--truth", "first.npz"), "put channels last"),
    ((*UPDATE, "--truth", "bright.npz"), "[0, 1]"),
    ((*UPDATE, "--truth", "bare.npz"), "lacks labels"),
    ((*UPDATE, "--truth", "torn.npz"), "torn.npz is no npz file"),
    ((*UPDATE, "--truth", "absent.npz"), "absent.npz"),
]


@pytest.mark.parametrize(("words", "expected"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_gets_one_line_and_leaves_nothing(here: Path, words: tuple[str, ...], expected: str) -> None:
    spoil(here)
    before = sorted(p.name for p in here.iterdir())
    result = CliRunner().invoke(app, [*SOLVE, *NO_DATA, *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.stdout
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert expected in result.stderr
    assert result.stderr.startswith("dosimeter: ")
    assert sorted(p.name for p in here.iterdir()) == before


def test_what_needs_data_is_refused_without_a_shape_too(here: Path) -> None:
    plain = ("captured", "--model", "mine.py:make", *UPDATE)
    code, _, err = call(*plain)
    assert code == 2
    assert "give them with --weights" in err
    plain = (*plain, "--weights", "before.safetensors")
    code, _, err = call(*plain, *DATA, "--step", "local:steps=2,lr=0.1", "--guess-local-steps", "1+2")
    assert code == 2
    assert "--shadows 0" in err
    code, _, err = call(*plain, "--shadows", "-1")
    assert code == 2
    assert "at least 0, got -1" in err


def test_a_captured_update_may_go_on_by_itself_and_run_out_of_time(here: Path) -> None:
    words = ("captured", "--model", "mine.py:make", "--weights", "before.safetensors", *UPDATE)
    code, _, err = call(*words, *DATA, "--shadows", "2", "--steps", "1000000", "--minutes", "0.02", "--out", "cut")
    assert code == 0, err
    document = read_run(here / "cut").document
    assert document is not None
    assert document["scores"]["unmeasured"] == {"out of time": 1}
    assert "the time was up" in document["scores"]["shadows"]["left_out"]
    assert call(*words, "--steps", "auto", "--minutes", "10", *NO_DATA)[0] == 0
    document = read_run(here / "run").document
    assert document is not None
    assert (document["settings"]["steps"], document["scores"]["unmeasured"]) == ("auto", {})
    assert document["records"][0]["stopped"] == "settled"
