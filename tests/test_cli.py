"""The command line as a person or a script meets it."""

import hashlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from dosimeter import clients, data, defenses, models, servers
from dosimeter.attacks import Search, presets
from dosimeter.cli import app, main
from dosimeter.cli.catalogues import written
from dosimeter.cli.lists import LISTS
from dosimeter.store import read_run
from machine import full_disk

MODEL = """
import torch
from torch import nn

def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Sigmoid(), nn.Linear(16, 10))

def empty(): return nn.Flatten()
def squashed(): return nn.Sequential(make_model(), nn.Sigmoid())
def number(): return 7
def poisoned():
    model = make_model()
    nn.init.constant_(model[1].weight, float("nan"))
    return model
def wide(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))
def regression(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Sigmoid(), nn.Linear(16, 1))
def half_square(output, labels): return 0.5 * (output[:, 0] - labels).square().mean()
def straight():  # whose image takes seconds to solve for
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 17**2, 10))
class Crashing(nn.Flatten):
    def forward(self, x): return {}["a mistake of theirs"]
def crashing(): return nn.Sequential(Crashing(), make_model())
NOT_A_FUNCTION = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a model file, no data but the embedded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOSIMETER_DATA", raising=False)
    monkeypatch.setenv("DOSIMETER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


QUICK = ("audit", "--model", "mine.py:make_model", "--victims", "2", "--steps", "5", "--decoys", "5")


def test_an_audit_prints_a_table_and_writes_a_run(here: Path) -> None:
    code, out, _ = call(*QUICK, "--out", "run")
    assert code == 0
    assert "SSIM" in out
    assert "report.html" in out
    run = read_run(here / "run")
    assert run.document is not None
    assert len(run.document["records"]) == 2
    assert run.info["status"] == "complete"
    assert run.document["settings"]["model"] == "mine.py:make_model"
    assert (here / "run" / "report.html").read_text().startswith("<!doctype html>")
    assert sorted(p.name for p in here.iterdir()) == ["mine.py", "run"]


def test_json_prints_the_records_and_nothing_else(here: Path) -> None:
    command = [sys.executable, "-c", "from dosimeter.cli import main; main()", *QUICK, "--json", "--out"]
    first, again = (subprocess.run([*command, name], capture_output=True, check=True) for name in ("a", "b"))
    assert first.stdout == again.stdout
    document = json.loads(first.stdout)
    assert len(document["records"]) == 2
    assert document["threat"]["labels"] is True
    assert first.stdout == (here / "a" / "records.json").read_bytes()


def test_runs_get_folders_of_their_own(here: Path) -> None:
    assert call(*QUICK)[0] == 0
    assert call(*QUICK)[0] == 0
    assert sorted(p.name for p in (here / "runs").iterdir()) == ["mnist-5k-mine-ig-1", "mnist-5k-mine-ig-2"]


def test_overwrite_replaces_a_run_and_only_when_asked(here: Path) -> None:
    assert call(*QUICK, "--out", "run")[0] == 0
    before = (here / "run" / "run.json").read_bytes()
    code, _, err = call(*QUICK, "--out", "run")
    assert code == 2
    assert "--overwrite" in err
    assert (here / "run" / "run.json").read_bytes() == before
    assert call(*QUICK, "--out", "run", "--overwrite")[0] == 0


@pytest.mark.parametrize("attack", ["ig", "auto"])
def test_a_page_that_fails_leaves_the_run(here: Path, attack: str) -> None:
    with full_disk(22_000):  # more than the tensors take, and less than a page
        code, out, err = call(*QUICK, "--attack", attack, "--out", "run")
    assert (code, out) == (2, "")
    said = err.splitlines()[-1]
    assert "report.html': File too large" in said
    assert said.endswith("The results are kept in 'run'; only their page is missing.")
    for folder in (here / "run", *(here / "run").glob("attacks/*")):
        assert read_run(folder).info["status"] == "complete"
        assert not list(folder.glob("*.html"))
    assert len(list((here / "run").glob("attacks/*"))) == (4 if attack == "auto" else 0)
    assert sorted(p.name for p in here.iterdir()) == ["mine.py", "run"]
    again = (*QUICK, "--attack", attack, "--out", "run", "--overwrite")
    (here / "run" / "images" / "thesis.tex").write_text("years of work")
    code, _, err = call(*again)
    assert code == 2
    assert "'run' holds 'images/thesis.tex' too; move that away" in err
    (here / "run" / "images" / "thesis.tex").unlink()
    assert call(*again)[0] == 0
    assert (here / "run" / "report.html").is_file()


def test_a_panel_that_crashes_keeps_its_finished_attacks(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Search, "__call__", crash)
    assert isinstance(
        CliRunner().invoke(app, [*QUICK, "--attack", "auto", "--out", "run"]).exception, ZeroDivisionError
    )
    run = read_run(here / "run")
    assert run.document is not None
    assert (run.info["status"], [row["attack"] for row in run.document["panel"]]) == ("interrupted", ["analytic"])


def test_a_dry_run_writes_nothing(here: Path) -> None:
    code, out, _ = call("audit", "--model", "cnn", "--victims", "2", "--dry-run")
    assert code == 0
    assert "1x32x32" in out  # the CNN's images are resized for it
    assert "memory" in out
    assert [p.name for p in here.iterdir()] == ["mine.py"]


def test_a_dry_run_of_a_panel_says_what_all_attacks_take(here: Path) -> None:
    words = ("audit", "--model", "mine.py:make_model", "--victims", "2", "--attack", "auto", "--steps", "40")
    code, out, err = call(*words, "--defense", "soteria", "--dry-run")
    assert code == 0, err
    said = " ".join(out.replace("\u2502", " ").split())
    assert "48 steps each, 8 of them trials" in said  # two weights are left out in turn, for 4 steps each
    assert "all of them" in said
    assert "victims each" in said
    assert "one after another" in said
    assert [p.name for p in here.iterdir()] == ["mine.py"]


def test_restarts_that_do_not_fit_are_planned_in_turn(here: Path) -> None:
    words = ("audit", "--model", "mine.py:make_model", "--victims", "1", "--attack", "ig:restarts=4096,steps=2")
    code, out, err = call(*words, "--budget", "0.02", "--dry-run")
    assert code == 0, err
    assert "of 4096 restarts at a time" in " ".join(out.replace("\u2502", " ").split())


def test_an_attack_that_solves_has_no_steps(here: Path) -> None:
    words = ("audit", "--model", "mine.py:make_model", "--victims", "2", "--decoys", "5", "--attack", "analytic")
    code, out, _ = call(*words, "--dry-run")
    assert code == 0
    assert "from the first 1 of 1 victims of a tile" in " ".join(out.split())
    code, _, err = call(*words, "--steps", "5")
    assert code == 2
    assert "no setting 'steps'" in err
    code, _, err = call(*words, "--step", "local", "--guess-local-steps", "1")
    assert code == 2
    assert "guessed by a search" in " ".join(err.split())
    assert call(*words, "--out", "run")[0] == 0
    document = read_run(here / "run").document
    assert document is not None
    assert [record["stopped"] for record in document["records"]] == ["recovered"] * 2
    code, _, err = call("audit", "--model", "convnet:width=2", "--victims", "2", "--attack", "analytic")
    assert code == 2
    assert "it calls max_pool2d" in " ".join(err.split())


def test_labels_are_measured_alone_without_a_search(here: Path) -> None:
    words = (
        "audit",
        "--model",
        "lenet:width=4",
        "--victims",
        "3",
        "--batch",
        "12",
        "--decoys",
        "0",
        "--attack",
        "labels",
    )
    code, out, err = call(*words, "--out", "run")
    assert code == 0, err
    said = " ".join(out.split())
    assert "36 of 36 labels were recovered; an even guess gets" in said
    assert "Labels right" in said
    assert "All labels right" in said
    document = read_run(here / "run").document
    assert document is not None
    assert document["scores"]["labels"]["updates"]["text"].endswith("(3 of 3)")
    assert document["threat"]["labels"] is False
    assert "36 of 36 labels were recovered" in (here / "run" / "report.html").read_text()
    code, out, _ = call(*words, "--dry-run")
    assert code == 0
    assert "from the first 2 of 2 victims of a tile" in " ".join(out.split())
    code, _, err = call(*words, "--steps", "5")
    assert code == 2
    assert "no setting 'steps'" in err


def test_own_loss_and_own_data(here: Path) -> None:
    rng = np.random.default_rng(0)
    images, numbers = rng.random((6, 28, 28)).astype(np.float32), rng.random(6).astype(np.float32)
    np.savez(here / "own.npz", train_images=images, train_labels=numbers, test_images=images, test_labels=numbers)
    words = ("audit", "--model", "mine.py:regression", "--loss", "mine.py:half_square", "--data", "own.npz")
    code, _, err = call(*words, "--victims", "2", "--steps", "5", "--out", "run")
    assert code == 0, err
    document = read_run(here / "run").document
    assert document is not None
    assert document["settings"]["loss"] == "half_square"


def test_clients_may_train_locally_and_the_attacker_may_have_to_guess_how(here: Path) -> None:
    local = ("--step", "local:epochs=2,lr=0.01,batch_size=2,optimiser=momentum,nesterov=true", "--batch", "3")
    assert call(*QUICK, *local, "--out", "told")[0] == 0
    told = read_run(here / "told").document
    assert told is not None
    assert "epochs=2, lr=0.01, batch_size=2" in told["settings"]["step"]
    assert "SGD(momentum=0.9, nesterov=True" in told["settings"]["step"]
    assert told["threat"]["local_steps"] is True
    guessed = (*QUICK, *local, "--guess-local-steps", "1+4", "--guess-local-lr", "0.01")
    code, out, _ = call(*guessed, "--dry-run")
    assert code == 0
    assert "3 of 15 steps" in " ".join(out.split())  # 5 for each guess and 5 with the best
    code, out, _ = call(*guessed, "--out", "guessed")
    assert code == 0
    assert "Local training guessed" in out
    document = read_run(here / "guessed").document
    assert document is not None
    assert (document["threat"]["local_steps"], document["threat"]["local_lr"]) == (False, False)
    assert {r["guessed_steps"] for r in document["records"]} <= {1, 4}
    assert document["scores"]["trained"]["of"] == 2


LISTED = {"models": "cnn", "data": "mnist-5k", "attacks": "ig-cvb", "defenses": "noise", "steps": "local"}
LISTED |= {"servers": "permuted-rows", "protocols": "fedsgd", "studies": "densities"}


@pytest.mark.parametrize("kind", LISTED)
def test_lists_show_what_goes_by_name(here: Path, kind: str) -> None:
    code, out, _ = call("list", kind)
    assert code == 0
    assert LISTED[kind] in out


def test_the_file_of_the_lists_says_what_the_parts_say() -> None:
    assert LISTS.read_text() == written(), "run python -m dosimeter.cli.catalogues"


def test_help_version_and_lists_do_not_import_torch() -> None:
    program = """
import sys
from typer.testing import CliRunner
from dosimeter.cli import app
for words in ("--help", "--version", "audit --help", "captured --help", "bench --help", *sys.argv[1:]):
    found = CliRunner().invoke(app, words.split())
    assert found.exit_code == 0, found.output
    assert "torch" not in sys.modules, words
"""
    lists = [f"list {kind}" for kind in LISTED]
    done = subprocess.run([sys.executable, "-c", program, *lists], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PARTS = {"attacks": presets.BY_NAME, "defenses": defenses.BY_NAME, "steps": clients.BY_NAME, "servers": servers.BY_NAME}


@pytest.mark.parametrize("width", [24, 80, 250])
@pytest.mark.parametrize("kind", PARTS)
def test_lists_cut_nothing_at_any_width(monkeypatch: pytest.MonkeyPatch, kind: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = "".join(cells(call("list", kind)[1]).values()).replace(" ", "")
    for name, maker in PARTS[kind].items():
        said = "".join(inspect.cleandoc(maker.__doc__ or "").partition("\n\n")[0].split())
        assert said[-1] == "."
        assert said in shown, name


def test_the_version_is_that_of_the_installation() -> None:
    assert call("--version") == (0, f"dosimeter {version('dosimeter')}\n", "")


def cells(out: str) -> dict[str, str]:
    """The rows of a list by name, each in one line."""
    rows: dict[str, str] = {}
    name = ""
    for line in out.splitlines():
        if line.startswith("│"):
            first, rest = (cell.strip() for cell in line.strip("│").split("│"))
            name = first or name
            rows[name] = f"{rows.get(name, '')} {rest}".strip()
    return rows


def test_the_models_stand_with_paper_parameters_images_and_settings(here: Path) -> None:
    rows = cells(call("list", "models")[1])
    assert list(rows) == list(models.BY_NAME)
    assert rows["cnn"].startswith("CVB, Sec. III-A | 65,962 parameters | from 29x29 | at hand ")
    assert rows["cnn"].endswith("width=16, activation=relu, bias=True")
    assert "sides in multiples of 4" in rows["vit"]
    assert "hidden=2000+1000" in rows["convbig"]
    assert "batch_norm=first" in rows["lenet-bn"]


def test_the_data_sets_stand_with_papers_shape_counts_and_place(here: Path) -> None:
    rows = cells(call("list", "data")[1])
    assert list(rows) == [row.name for row in data.available()]
    assert "CVB" in rows["mnist-5k"]
    assert "1x28x28 | 4,000 + 1,000 | at hand: in the package" in rows["mnist-5k"]
    assert "CVB | 3x28x28" in rows["dermamnist"]
    assert "not at hand: to download" in rows["dermamnist"]


def test_a_model_takes_settings_in_the_words_of_an_attack(here: Path) -> None:
    words = ("--model", "cnn-bayes:width=4,hidden=6+5,pooling=max", "--victims", "1", "--steps", "1", "--out", "run")
    code, _, err = call("audit", *words)
    assert code == 0, err
    document = read_run(here / "run").document
    assert document is not None
    assert document["settings"]["model"] == "cnn-bayes:width=4,hidden=6+5,pooling=max"
    expected = (9 * 4 + 4) + (9 * 4 * 8 + 8) + (49 * 8 * 6 + 6) + (6 * 5 + 5) + (5 * 10 + 10)
    assert document["settings"]["parameters"] == expected
    assert "weights" not in document["settings"]


@pytest.mark.parametrize("mode", ["running", "batch", "sent"])
def test_batch_norm_is_run_as_asked_and_printed_beside_the_numbers(here: Path, mode: str) -> None:
    words = ("audit", "--model", "lenet-bn", "--victims", "1", "--steps", "2", "--decoys", "0", "--batch-norm", mode)
    code, out, err = call(*words, "--out", "run")
    assert code == 0, err
    document = read_run(here / "run").document
    assert document is not None
    assert document["threat"]["statistics"] == mode
    said = f"batch-norm statistics {'of the batch' if mode == 'batch' else mode}"
    assert said in " ".join(out.split())
    code, out, err = call(*words, "--dry-run")
    assert code == 0, err


@pytest.mark.parametrize("words", ["lenet:width=2", "mine.py:make_model"])
def test_weights_come_from_a_file_and_are_recorded(here: Path, words: str) -> None:
    scale = {"shape": (1, 28, 28), "classes": 10, "mean": (0,), "std": (1,)}
    if words.startswith("lenet"):
        model = models.build("lenet", **scale, seed=7, settings={"width": 2})
    else:
        torch.manual_seed(7)
        model = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(784, 16), torch.nn.Sigmoid(), torch.nn.Linear(16, 10)
        )
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, here / "w.safetensors")
    torch.save(state, here / "w.pth")
    found = {}
    for name in ("w.safetensors", "w.pth", None):
        given = () if name is None else ("--weights", name)
        code, out, err = call(*QUICK, "--model", words, *given, "--json", "--out", f"run-{name}")
        assert code == 0, err
        found[name] = json.loads(out)
    settings = found["w.pth"]["settings"]
    assert settings["weights"] == "w.pth"
    assert settings["weights_fingerprint"] == hashlib.sha256((here / "w.pth").read_bytes()).hexdigest()[:16]
    assert found["w.safetensors"]["records"] == found["w.pth"]["records"]
    assert found[None]["records"] != found["w.pth"]["records"]


REFUSALS = [
    (("--attack", "ig:steps=3", "--steps", "2"), "given twice, in the attack 'ig:steps=3' and by --steps", "once"),
    (("--model", "cmn"), "Unknown model 'cmn'", "'cnn'"),
    (("--model", "convnet:poling=max"), "Unknown setting of model 'convnet' 'poling'", "norm, padding, pooling, width"),
    (("--model", "convnet:shape=3"), "Unknown setting of model 'convnet' 'shape'", "expected one of activation"),
    (("--model", "convnet:pooling=min"), "expects max or average", "'min'"),
    (("--model", "convnet:width"), "key=value", "'width'"),
    (("--model", "convnet:width=8,width=9"), "given twice", "'width'"),
    (("--model", "convnet:width=0"), "needs width of at least 1", "got 0"),
    (("--model", "convnet:width=-2"), "needs width of at least 1", "got -2"),
    (("--model", "cnn-bayes:hidden=8+x"), "expects a whole number", "'x'"),
    (("--model", "resnet18:depth=19"), "depth of 18, 20", "19"),
    (("--batch-norm", "batch"), "The model has no batch norm", "--batch-norm batch"),
    (("--model", "mlp:width=8", "--batch-norm", "batch"), "one value a channel, (1, 8)", "--batch-norm running"),
    (("--model", "mlp:width=8", "--batch-norm", "sent"), "one value a channel, (1, 8)", "--batch-norm running"),
    (("--weights", "absent.pth"), "There is no checkpoint absent.pth", ""),
    (("--weights", "mine.py"), "ends in .safetensors, .npz, .pt or .pth", "mine.py"),
    (("--weights", "torn.pth"), "torn.pth is damaged", ""),
    (("--weights", "other.pth"), "other.pth does not fit Sequential: missing: 1.weight", "extra: some"),
    (("--attack", "gi"), "Unknown attack 'gi'", "'ig'"),
    (("--attack", "ig:tw=1"), "'tw'", "'tv'"),
    (("--attack", "ig:tv=much"), "expects a number", "'much'"),
    (("--attack", "ig:tv"), "key=value", "'tv'"),
    (("--attack", "ig:distance=l3"), "expects cosine or mean-cosine or chord", "'l3'"),
    (("--attack", "ig:labels=idlg", "--batch", "2"), "iDLG reads one label", "labels=counts"),
    (("--attack", "ig:labels=counts", "--loss", "mine.py:half_square"), "only under cross-entropy", "grant"),
    (("--attack", "ig:labels=counts", "--model", "mine.py:squashed"), "not end in a linear layer", "labels=known"),
    (("--attack", "idlg:rule=row"), "expects auto or bias or rows", "'row'"),
    (("--defense", "nois"), "Unknown defense 'nois'", "'noise'"),
    (("--defense", "noise:sigma=-1"), "at least 0", "-1"),
    (("--step", "500"), "Unknown step '500'", "--steps"),
    (("--step", "local:stpes=5"), "'stpes'", "'steps'"),
    (("--step", "local:optimiser=lbfgs"), "expects sgd or momentum or adam", "'lbfgs'"),
    (("--step", "local:steps=5,epochs=2"), "steps or epochs, one of them", ""),
    (("--step", "local:optimiser=adam,momentum=0.5"), "'adam' has no setting 'momentum'", ""),
    (("--step", "clipped"), "needs a value of 'bound'", "clipped:bound="),
    (("--guess-local-steps", "1+2"), "nothing to guess", "one gradient"),
    (("--step", "local", "--average-orders", "4"), "where clients shuffle", "shuffle=true"),
    (("--step", "local:shuffle=true", "--average-orders", "0"), "draws of at least 1", "0"),
    (("--average-orders", "2", "--guess-local-steps", "1"), "choose one of them", ""),
    (("--step", "local", "--guess-local-steps", "1,2"), "expects a whole number", "'1,2'"),
    (("--step", "local", "--guess-local-steps", "0+1"), "of at least 1", "got 0"),
    (("--step", "local", "--guess-local-lr", "much"), "expects a number", "'much'"),
    (("--data", "mnist-5"), "Unknown data set 'mnist-5'", "mnist-5k"),
    (("--data", "absent.npz"), "absent.npz", ""),
    (("--data", "torn.npz"), "torn.npz", ""),
    (("--data", "bright.npz"), "[0, 1]", "bright.npz"),
    (("--victims", "9000"), "9000 images", "4000"),
    (("--victims", "0"), "at least 1", "got 0"),
    (("--victims", "3", "--batch", "2000"), "6000 images (3 batches of 2000)", "4000"),
    (("--steps", "0"), "steps of at least 1", "got 0"),
    (("--split", "trian"), "Unknown split", "'train'"),
    (("--model", "absent.py:make"), "no file 'absent.py'", ""),
    (("--model", "mine.py:mak_model"), "Did you mean 'make_model'", ""),
    (("--model", "mine.py:NOT_A_FUNCTION"), "Unknown function in mine.py", ""),
    (("--model", "mine.py"), "path/to/file.py:function", ""),
    (("--model", "mine.py:empty"), "no trainable parameters", ""),
    (("--model", "mine.py:number"), "returns a int", "torch.nn.Module"),
    (("--model", "mine.py:poisoned"), "NaN", "'1.weight'"),
    (("--model", "mine.py:wide"), "does not fit cross-entropy", "(1, 3)"),
    (("--out", "mine.py/run"), "mine.py", ""),
    (("--out", "mine.py"), "is a file", ""),
    (("--device", "gpu"), "Unknown device 'gpu'", ""),
    (("--lpips", "mine.py"), "mine.py", ""),
    (("--fail-above", "nan"), "in [0, 1]", "nan"),
    (("--threshold", "nan"), "finite", "nan"),
    (("--threshold", "5"), "in (0, 1]", "5"),
    (("--threshold", "0"), "in (0, 1]", "0"),
    (("--delta", "nan"), "finite", "nan"),
    (("--delta", "inf"), "finite", "inf"),
    (("--budget", "nan"), "finite", "nan"),
    (("--budget", "-1"), "above 0", "-1"),
    (("--workers", "0"), "of at least 1", "0"),
]


@pytest.mark.parametrize(("words", "says", "also"), REFUSALS, ids=[" ".join(words) for words, *_ in REFUSALS])
def test_bad_input_gets_one_clear_line_and_writes_nothing(
    here: Path, words: tuple[str, ...], says: str, also: str
) -> None:
    (here / "torn.npz").write_bytes(b"PK\x03\x04 this was an npz once")
    (here / "torn.pth").write_bytes(b"PK\x03\x04 this was a checkpoint once")
    torch.save({"some": torch.ones(1)}, here / "other.pth")
    bright = np.full((4, 28, 28), 3.0, dtype=np.float32)
    labels = np.zeros(4, dtype=np.int64)
    np.savez(here / "bright.npz", train_images=bright, train_labels=labels, test_images=bright, test_labels=labels)
    before = sorted(p.name for p in here.iterdir())
    given = dict(zip(QUICK[1::2], QUICK[2::2], strict=True)) | dict(zip(words[::2], words[1::2], strict=True))
    code, out, err = call("audit", *(word for pair in given.items() for word in pair))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert says in err
    assert also in err
    assert sorted(p.name for p in here.iterdir()) == before


DIVERGING = ("--attack", "ig:by=descent,box=false,lr=1e19,tv=1e19")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (DIVERGING, "Inconclusive: The audit cannot tell: The search diverged on 2 of 2 updates"),
        (("--defense", "prune:ratio=1"), "Inconclusive: The audit cannot tell: The update is zero for 2 of 2 victims"),
    ],
    ids=["diverged", "zero"],
)
def test_a_gate_that_measured_nothing_is_inconclusive(here: Path, words: tuple[str, ...], says: str) -> None:
    code, _, err = call(*QUICK, *words, "--fail-above", "0.9")
    assert code == 3
    assert err.count("\n") == 1
    assert says in err
    assert call(*QUICK, *words)[0] == 0  # without a gate it is only said


@pytest.mark.parametrize(
    ("words", "limits", "code", "says"),
    [
        ("--model cnn --attack ig:steps=3 --victims 2", "0.9", 3, "the search fell short"),
        ("--model mlp-2 --attack analytic --victims 2", "0.9", 1, "2 of 2 images are read"),
        ("--model cnn --attack labels --victims 4", "labels=0.6", 1, "4 of 4 labels are recovered"),
        ("--model cnn --attack ig:steps=60 --victims 4 --defense noise:sigma=30", "read=0.5", 0, "No leak was shown"),
        (
            "--model mlp-bayes --defense ats:policy=7-4-15 --attack analytic --victims 2",
            "0.9",
            1,
            "2 of 2 images are read",
        ),
        ("--model cnn --attack ig:steps=3 --victims 2", "0.05", 2, "use at least 73 (--victims)"),
        ("--model cnn --attack ig:steps=3 --victims 2", "seen=0.5", 2, "Unknown rate of --fail-above 'seen'"),
        ("--model cnn --attack ig:steps=3 --victims 2", "much", 2, "read=0.05,identified=0.1, got 'much'"),
    ],
)
def test_a_gate_passes_fails_cannot_tell_or_is_refused(
    here: Path, words: str, limits: str, code: int, says: str
) -> None:
    found, _, err = call("audit", *words.split(), "--fail-above", limits)
    assert (found, says in err) == (code, True), err


def test_a_search_goes_on_by_itself_unless_it_is_told_and_a_run_says_which(here: Path) -> None:
    words = ("audit", "--model", "mine.py:make_model", "--victims", "2", "--decoys", "5")
    assert call(*words, "--out", "run")[0] == 0
    settings = json.loads((here / "run/records.json").read_text())["settings"]
    assert (settings["steps"], "leg=200" in settings["attack"]) == ("auto", True)
    assert call("audit", "--config", "run/run.toml", "--out", "again")[0] == 0
    assert (here / "run/records.json").read_bytes() == (here / "again/records.json").read_bytes()
    assert call(*words, "--steps", "3", "--out", "three")[0] == 0
    assert call("audit", "--config", "three/run.toml", "--out", "same")[0] == 0  # in which they are a number
    code, out, _ = call(*words, "--attack", "ig-a:restarts=1", "--dry-run")
    assert (code, "4,000 steps each " in " ".join(out.split())) == (0, True)  # the paper's own
    code, out, _ = call(*words, "--attack", "ig-a:restarts=1", "--steps", "auto", "--dry-run")
    assert "600 to 6,200 steps each, and as many again up to 2 times" in " ".join(out.replace("│", " ").split())
    assert "where it settles at once, at most" in " ".join(out.replace("│", " ").split())


def test_an_audit_whose_time_is_up_cannot_tell(here: Path) -> None:
    words = (*QUICK[:5], "--attack", "auto", "--defense", "noise:sigma=30", "--steps", "1000000", "--minutes", "0.02")
    began = time.process_time()  # which neighbours do not add to
    code, _, err = call(*words, "--fail-above", "0.9")
    assert code == 3
    assert time.process_time() - began < 30
    assert "The time of ig was up before it was done with 2 of 2 updates" in err
    assert "give it more time (--minutes 0.04)" in err
    code, _, err = call(*QUICK, "--minutes", "0")
    assert (code, "minutes" in err) == (2, True)


def test_a_gate_leaves_what_pipelines_read(here: Path) -> None:
    words = ("audit", "--model", "cnn", "--attack", "ig:steps=2", "--victims", "2", "--out", "run")
    assert call(*words, "--fail-above", "0.9")[0] == 3
    suite = ElementTree.parse(here / "run/gate.junit.xml").getroot()
    assert (suite.tag, suite.attrib["errors"], suite.attrib["failures"]) == ("testsuite", "1", "0")
    assert "fell short" in suite.find("testcase/error").attrib["message"]  # type: ignore[union-attr]
    sarif = json.loads((here / "run/gate.sarif").read_text())
    assert [found["level"] for found in sarif["runs"][0]["results"]] == ["warning"]
    said = json.loads((here / "run/gate.json").read_text())
    assert (said["code"], said["verdict"], said["rates"]["read"]["of"]) == (3, "inconclusive", 2)
    assert (here / "run/gate.md").read_text().startswith("**Inconclusive: The audit cannot tell")
    assert call(*words, "--overwrite")[0] == 0  # the run's own files stand in nobody's way


def test_a_crash_shows_its_traceback_and_is_no_failed_gate(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(sys, "argv", ["dosimeter", *QUICK])
    monkeypatch.setattr("dosimeter.cli.audit.perform", broken)
    with pytest.raises(SystemExit) as crash:
        main()
    assert crash.value.code == 70
    assert "Traceback" in (said := capsys.readouterr().err)
    assert "KeyError: 'a mistake of ours'" in said


LATER = """
from torch import nn

class Later(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), 0
    def forward(self, x):
        self.calls += 1
        return {}["a mistake of theirs"] if self.calls > 2 else self.net(x)
"""


@pytest.mark.parametrize("model", ["mine.py:crashing", "later.py:Later"])
def test_a_mistake_of_the_users_program_is_said_in_one_line(here: Path, model: str) -> None:
    (here / "later.py").write_text(LATER)
    code, out, err = call(*QUICK, "--model", model)
    assert (code, out) == (2, "")
    assert err.startswith("dosimeter: ")
    assert err.count("\n") == 1
    assert "KeyError: 'a mistake of theirs'" in err
    if model.startswith("later"):
        assert "later.py, line 10, in forward" in err  # which does not fail before any work


def test_a_wrong_option_is_refused_too(here: Path) -> None:
    code, out, err = call("audit", "--victim", "3")
    assert code == 2
    assert "--victims" in err
    assert out == ""
    code, out, err = call("audit", "--batch-norm", "train")
    assert code == 2
    assert "'running', 'batch'" in err
    assert out == ""


def begin(*words: str) -> "subprocess.Popen[str]":
    """The program, as a process of its own."""
    command = [sys.executable, "-c", "from dosimeter.cli import main; main()", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 120
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


ENDLESS = ("audit", "--model", "mine.py:make_model", "--victims", "2", "--decoys", "5", "--out", "run")


def test_ctrl_c_leaves_a_valid_run_that_says_so(here: Path) -> None:
    process = begin(*ENDLESS, "--steps", "1000000")
    try:
        wait_for(here, ".dosimeter-*")
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    run = read_run(here / "run")
    assert run.info["status"] == "interrupted"
    assert run.document is not None
    assert run.document["status"] == "interrupted"
    assert "interrupted" in (here / "run" / "report.html").read_text().lower()
    assert not list(here.glob(".dosimeter-*"))
    assert "interrupted" in out.lower()


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "in a panel"])
def test_ctrl_c_is_heard_while_the_only_victim_of_a_tile_is_solved_for(here: Path, whole: bool) -> None:
    words = ("--attack", "auto", "--steps", "1") if whole else ("--attack", "analytic")
    for pause in (3, 12, 48):  # on a busy machine the attack begins late
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
        try:
            process = begin(
                "audit", "--model", "mine.py:straight", "--size", "51", "--victims", "2", "--out", "run", "--overwrite",
                *words,
            )  # fmt: skip
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            wait_for(here, ".dosimeter-*")
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == 130, err
        run = read_run(here / "run")
        assert run.info["status"] == "interrupted"
        if run.document is not None:
            break
    assert "interrupted" in out.lower()
    assert run.document is not None
    if whole:
        assert [row["attack"] for row in run.document["panel"]] == ["analytic"]  # what it found by then
    else:
        assert {record["stopped"] for record in run.document["records"]} == {"interrupted"}


def test_a_panel_that_is_terminated_keeps_its_finished_attacks(here: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a background job has it
    try:
        process = begin(*ENDLESS, "--attack", "auto", "--defense", "noise:sigma=0.01", "--steps", "500")
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        wait_for(here, ".dosimeter-*")
        process.send_signal(signal.SIGINT)
        wait_for(here, ".dosimeter-run/run/attacks/01-*/run.json")
        process.terminate()
        process.terminate()
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 143, err
    assert "Traceback" not in err
    run = read_run(here / "run")
    assert run.info["status"] == "interrupted"
    assert run.document is not None
    kept = sorted((here / "run" / "attacks").iterdir())
    assert len(run.document["panel"]) == len(kept)
    ended = [read_run(folder).info["status"] for folder in kept]
    assert ended[0] == "complete"
    assert all(each == "complete" for each in ended[:-1])
    assert ended[-1] in ("complete", "interrupted")  # what the one that was stopped had is kept, and said to be so
    assert (kept[0] / "report.html").is_file()
    assert "interrupted" in out.lower()
    assert sorted(p.name for p in here.iterdir()) == ["mine.py", "run"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_command_is_stopped_by_every_signal(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    (here / "slow.py").write_text(f"import signal\ndef make(): signal.raise_signal({number})\n")
    for command in ("audit", "check --weights x", "train", "follow", "compare --defense none", "search-policies"):
        monkeypatch.setattr(sys, "argv", ["dosimeter", *command.split(), "--model", "slow.py:make"])
        handler = signal.signal(number, signal.default_int_handler)  # instead of the end of all tests
        try:
            with pytest.raises(SystemExit) as stopped:
                main()
        finally:
            assert signal.signal(number, handler) is signal.default_int_handler
        assert stopped.value.code == 128 + number
        assert capfd.readouterr().err.startswith("Interrupted")


def test_a_dishonest_server_is_audited_and_named(here: Path) -> None:
    words = ("audit", "--model", "cnn", "--victims", "2", "--decoys", "5", "--attack", "analytic")
    code, out, _ = call(*words, "--server", "first-layer:neurons=4", "--out", "run")
    assert code == 0
    assert "server first-layer" in " ".join(out.split())
    document = read_run(here / "run").document
    assert document is not None
    assert document["threat"]["server"] == "first-layer"
    assert document["settings"]["server"] == "FirstLayer(neurons=4)"
    assert [record["stopped"] for record in document["records"]] == ["recovered"] * 2
    assert "It is not honest" in (here / "run" / "report.html").read_text()
    code, _, err = call(*words, "--server", "permuted-row")
    assert code == 2
    assert "Did you mean 'permuted-rows'?" in " ".join(err.split())


def test_a_batch_is_read_image_by_image_where_each_has_its_own_weights(here: Path) -> None:
    words = ("audit", "--model", "cnn", "--victims", "1", "--batch", "2", "--attack", "features:labels=known")
    code, _, err = call(*words)
    assert code == 2
    assert "of one image alone" in " ".join(err.split())
    assert call(*words, "--decoys", "5", "--server", "first-layer+separate-weights", "--out", "run")[0] == 0
    document = read_run(here / "run").document
    assert document is not None
    assert document["threat"]["server"] == "first-layer+separate-weights"
    assert [record["stopped"] for record in document["records"]] == ["recovered"] * 2


def test_a_client_checks_what_it_was_sent(here: Path) -> None:
    agreed = models.build("cnn", shape=(1, 32, 32), classes=10, mean=(0.1,), std=(0.3,), seed=1)
    sent = servers.PermutedRows()(agreed, shape=(1, 32, 32), batch=1)
    save_file(agreed.state_dict(), "last.safetensors")
    save_file(sent.state_dict(), "sent.safetensors")
    assert call("check", "--weights", "sent.safetensors")[0] == 0  # nothing to compare with
    code, out, _ = call("check", "--weights", "sent.safetensors", "--before", "last.safetensors")
    assert code == 1
    assert "permuted rows" in out
    code, out, _ = call("check", "--weights", "last.safetensors", "--before", "last.safetensors")
    assert code == 0
    assert "no proof of honesty" in " ".join(out.split())
    code, out, _ = call("check", "--model", "mlp", "--sent", "mine.py:make_model")
    assert code == 1
    assert "architecture" in out
    code, _, err = call("check")
    assert code == 2
    assert "nothing to check" in err


def test_a_run_can_be_done_again_by_its_file(here: Path) -> None:
    words = ("--defense", "noise:sigma=0.01", "--metric", "m.py:FAR", "--batch-norm", "running", "--indices", "3+17")
    (here / "m.py").write_text(
        "import dosimeter as dm\nFAR = dm.Metric(name='far', function=lambda a, b: (a - b).abs().flatten(1).mean(1),"
        " higher=False)\n"
    )
    code, _, err = call(*QUICK, *words, "--seed", "3", "--out", "a")
    assert code == 0, err
    text = (here / "a" / "run.toml").read_text()
    assert text.startswith('command = "audit"\n')
    assert 'indices = "3+17"\n' in text
    assert "# threshold = 0.5\n" in text
    assert "out" not in {line.partition(" ")[0] for line in text.splitlines()}
    code, _, err = call("audit", "--config", "a/run.toml", "--out", "b")
    assert code == 0, err
    assert (here / "a" / "records.json").read_bytes() == (here / "b" / "records.json").read_bytes()
    assert [record["index"] for record in json.loads((here / "b" / "records.json").read_text())["records"]] == [3, 17]
    assert call("audit", "--config", "a/run.toml", "--out", "b", "--overwrite", "--seed", "4")[0] == 0
    assert "seed = 4\n" in (here / "b" / "run.toml").read_text()  # the command line wins
    assert call(*QUICK, "--attack", "auto", "--out", "p")[0] == 0
    assert 'attack = "auto"\n' in (here / "p" / "run.toml").read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("victim = 3", "Unknown option in run.toml 'victim'; expected one of at, attack"),
        ("batch_norm = 'batch'", "Did you mean 'batch-norm'?"),
        ("out = 'x'", "Unknown option in run.toml 'out'"),
        ("[victims]\na = 1", "got a table; write victims = ..."),
        ("victims = ", "Expected a TOML file of options, but 'run.toml'"),
        ("command = 'train'", "is of dosimeter train, not of dosimeter audit"),
        ("attack = 'gi'", "Unknown attack 'gi'"),
    ],
)
def test_a_file_of_options_that_is_wrong_is_refused_in_one_line(here: Path, text: str, says: str) -> None:
    (here / "run.toml").write_text(text)
    code, out, err = call("audit", "--config", "run.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert sorted(p.name for p in here.iterdir()) == ["mine.py", "run.toml"]


def test_what_moved_is_refused_with_its_new_name(here: Path) -> None:
    for option in ("--update", "--after"):
        code, _, err = call("audit", option, "u.safetensors", "--weights", "w.safetensors")
        assert (code, err.count("\n")) == (2, 1)
        assert "dosimeter captured" in err


def test_victims_may_be_picked_by_their_gradients(here: Path) -> None:
    code, out, err = call(*QUICK, "--pick", "largest-gradient", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["settings"]["pick"] == "largest-gradient of 256"
    assert len(found["ids"]) == 2
    assert found["ids"] != json.loads(call(*QUICK, "--pick", "smallest-gradient", "--json")[1])["ids"]


def test_victims_may_be_named(here: Path) -> None:
    code, out, err = call(*QUICK, "--indices", "5+6+7+8", "--batch", "2", "--json")
    assert code == 0, err
    assert json.loads(out)["ids"] == ["train:5+6", "train:7+8"]
    for words, says in (
        (("--indices", "5+6+7", "--batch", "2"), "Expected --indices of whole updates, 2 images each, got 3"),
        (("--indices", "5+6+7"), "The indices name 3 batches of 1, not 2"),
        (("--indices", "5+x"), "expects a whole number"),
        (("--indices", "5+5"), "more than once"),
        (("--indices", "5+6", "--distinct"), "leave one out"),
        (("--indices", "5+6", "--pick", "largest-gradient"), "leave one out"),
    ):
        code, _, err = call(*QUICK, *words)
        assert code == 2
        assert says in err
