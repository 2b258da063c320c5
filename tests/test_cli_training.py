"""Training on the command line: killed and resumed, followed, compared, calibrated, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dosimeter.cli import app, tradeoff
from dosimeter.federated import setup
from dosimeter.sweeps import Entry, Status, Store
from dosimeter.sweeps.tradeoff import Balance
from small_federation import dataset

MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 3))
"""

TASK = ("--model", "mine.py:make", "--data", "rows.npz")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a data set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    rows = dataset()
    arrays = {
        f"{split}_{part}": getattr(rows, f"{split}_{part}")
        for split in ("train", "test")
        for part in ("images", "labels")
    }
    np.savez("rows.npz", **arrays)
    setup._federation.cache_clear()  # as in a process of its own
    return tmp_path


def kept(folder: str, kind: str = "audit") -> list[Entry]:
    with Store(folder, create=False) as store:
        return [each for each in store.entries(Status.DONE) if each.kind == kind]


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.stdout.split()), " ".join(result.stderr.split())


def test_a_training_says_how_it_went(here: Path) -> None:
    code, out, err = call(
        "train", *TASK, "--protocol", "ppp:rounds=4,clients=3,lr=0.05", "--seeds", "2", "--out", "run"
    )
    assert code == 0
    assert "±" in out
    assert "samples/s" in err
    for seed in (0, 1):
        history = json.loads((here / "run" / f"seed-{seed}" / "training.json").read_text())
        assert [entry["round"] for entry in history["rounds"]] == [1, 2, 3, 4]
        assert (here / "run" / f"seed-{seed}" / "model.safetensors").is_file()
    assert "<svg" in (here / "run" / "training.html").read_text()
    code, _, _ = call("audit", *TASK, "--weights", "run/seed-0/model.safetensors", "--steps", "3", "--victims", "2")
    assert code == 0


def test_a_killed_training_ends_as_an_unbroken_one(here: Path) -> None:
    words = [*TASK, "--protocol", "ppp:rounds=80,clients=4,lr=0.01", "--defense", "noise:sigma=0.01"]
    assert call("train", *words, "--out", "whole")[0] == 0
    command = [sys.executable, "-c", "from dosimeter.cli import main; main()", "train", *words, "--out", "broken"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    kept = here / "broken" / "seed-0" / "round.safetensors"
    deadline = time.monotonic() + 120
    while not kept.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(json.loads((here / "broken" / "seed-0" / "training.json").read_text())["rounds"])
    assert 0 < done < 80
    assert call("train", *words, "--out", "broken")[0] == 0
    whole = here / "whole" / "seed-0" / "round.safetensors"
    assert kept.read_bytes() == whole.read_bytes()


def test_a_killed_comparison_runs_only_what_is_missing_and_ends_as_an_unbroken_one(here: Path) -> None:
    words = "compare --protocol ppp:rounds=60,clients=4,lr=0.01 --victims 1 --steps 2 --seeds 2 --defense none"
    code, whole, _ = call(*words.split(), *TASK, "--out", "whole", "--json")
    assert code == 0
    line = [sys.executable, "-c", "from dosimeter.cli import main; main()", *words.split(), *TASK, "--out", "broken"]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    deadline = time.monotonic() + 120
    while not list(here.glob("broken/trials/*/round.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {each.digest: each.began for each in [*kept("broken"), *kept("broken", "training")]}
    assert 0 < len(done) < len([*kept("whole"), *kept("whole", "training")])
    code, again, _ = call(*words.split(), *TASK, "--out", "broken", "--json")
    assert code == 0
    after = {each.digest: each.began for each in [*kept("broken"), *kept("broken", "training")]}
    assert done.items() <= after.items()  # what was done is not run again
    assert unhurried(json.loads(again)["balances"]) == unhurried(json.loads(whole)["balances"])
    for each in kept("whole", "training"):
        name = f"trials/{each.digest}/round.safetensors"
        assert (here / "broken" / name).read_bytes() == (here / "whole" / name).read_bytes()


def unhurried(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Figures without times."""
    return [{key: value for key, value in each.items() if key != "seconds"} for each in found]


def test_leakage_is_followed_over_rounds(here: Path) -> None:
    words = ("follow", *TASK, "--protocol", "bayes:steps=1,rounds=4", "--at", "0+2+4", "--victims", "2", "--steps", "5")
    code, out, _ = call(*words, "--server", "honest", "--server", "permuted-rows", "--out", "run")
    assert code == 0
    assert out.count("permuted-rows") == 3
    assert {each.words["round"] for each in kept("run")} == {0, 2, 4}
    page = (here / "run" / "training.html").read_text()
    assert "Accuracy." in page
    assert page.count('id="picture-') == 6


def test_the_dose_is_followed_over_rounds(here: Path) -> None:
    words = ("follow", *TASK, "--protocol", "bayes:steps=1,rounds=2", "--at", "0+2", "--victims", "2", "--steps", "2")
    code, out, err = call(*words, "--defense", "noise:sigma=0.01", "--dose", "--out", "way", "--json")
    assert code == 0, err
    points = json.loads(out)["points"]
    assert [0 < point["dose"]["share"] <= 1 for point in points] == [True, True]
    assert points[0]["dose"] != points[1]["dose"]


EARLY = "ppp:rounds=40,clients=3,lr=0.3,validation=0.25,patience=2"


def test_a_training_that_ends_early_says_which_rounds_were_not_reached(here: Path) -> None:
    few = ("--victims", "1", "--steps", "2", "--out", "run")
    code, _, err = call("follow", *TASK, "--protocol", EARLY, "--at", "0+38+40", *few)
    assert code == 0
    last = max((each.found or {})["rounds"] for each in kept("run", "training"))
    assert 2 < last < 38
    said = f"Training ended after round {last}, which is attacked instead of rounds 38, 40."
    assert said in err
    assert said in " ".join((here / "run" / "training.html").read_text().split())


def test_a_training_names_the_round_that_validation_chooses(here: Path) -> None:
    assert "best" not in call("train", *TASK, "--protocol", "ppp:rounds=3,clients=3", "--out", "plain")[2]
    _, _, err = call("train", *TASK, "--protocol", EARLY, "--out", "run")
    rounds = json.loads((here / "run" / "seed-0" / "training.json").read_text())["rounds"]
    best = min(rounds, key=lambda entry: entry["validation_loss"])
    assert f"{best['accuracy']:.2%} in round {best['round']}, the best by validation loss" in err


def test_what_batch_norm_leaves_out_is_said(here: Path) -> None:
    (here / "mine.py").write_text(MODEL.replace("nn.Sigmoid()", "nn.BatchNorm1d(8)"))
    _, _, err = call("train", *TASK, "--protocol", "ppp:rounds=1,clients=3,batch_size=15", "--out", "run")
    assert "3 images left out of every epoch" in err


def test_defenses_are_compared_and_kept(here: Path) -> None:
    words = ("compare", *TASK, "--protocol", "ppp:rounds=2,clients=3", "--victims", "2", "--steps", "5", "--out", "run")
    code, _, err = call(*words, "--defense", "none", "--defense", "noise:sigma=0.1", "--explain")
    assert code == 0
    assert err.count("attacks were tried") == 2
    began = {each.digest: each.began for each in [*kept("run"), *kept("run", "training")]}
    assert len(began) == 4
    assert call(*words, "--defense", "none")[0] == 0
    page = (here / "run" / "compare.html").read_text()
    assert "noise:sigma=0.1" not in page  # only what this call asked for
    assert "1 - SSIM" in page
    assert page.count('id="picture-') == 1
    code, out, _ = call(*words, "--defense", "none", "--seeds", "2")
    assert (code, "±" in out) == (0, True)
    after = {each.digest: each.began for each in [*kept("run"), *kept("run", "training")]}
    assert len(after) == 5  # one more training
    assert began.items() <= after.items()


def test_a_defense_is_calibrated_and_goes_on(here: Path) -> None:
    words = (
        "calibrate",
        *TASK,
        "--protocol",
        "ppp:rounds=2,clients=3",
        "--victims",
        "2",
        "--steps",
        "5",
        "--out",
        "run",
    )
    code, out, err = call(*words, "--defense", "noise", "--allow", "1")
    assert code == 0
    assert "sigma=0.0001 stops all attacks" in err
    assert "noise:sigma=0.0001: " in out
    assert "accuracy" in out
    began = {each.began for each in kept("run")}
    assert call(*words, "--defense", "noise", "--allow", "1")[:2] == (0, out)
    assert call("compare", *words[1:], "--defense", "noise:sigma=0.0001")[0] == 0
    assert {each.began for each in kept("run")} == began  # what was tried is kept, for comparisons too


def test_what_dp_sgd_costs_stands_beside_accuracy(here: Path) -> None:
    private = "dp-sgd:sigma=0.8"
    one = ("--protocol", "ppp:rounds=1,clients=2", "--defense", private)
    code, out, err = call("train", *TASK, *one, "--out", "run")
    assert code == 0
    spent = json.loads((here / "run" / "seed-0" / "training.json").read_text())["rounds"][-1]["epsilon"]
    assert f"epsilon {spent:.3g} at delta 1e-05" in err
    assert out.partition(" report ")[0].endswith(f" {spent:.3g}")
    assert "Epsilon at delta 1e-05" in (here / "run" / "training.html").read_text()
    few = ("--victims", "1", "--steps", "2")
    code, out, _ = call("follow", *TASK, *one, "--at", "0+1", *few, "--out", "way")
    assert code == 0
    assert out.partition(" report ")[0].endswith((f" {spent:.3g}", f" {spent:.3g} % (0 of 1)"))
    assert "Epsilon at delta 1e-05" in (here / "way" / "training.html").read_text()


def test_a_comparison_has_the_epsilon_of_dp_sgd_alone() -> None:
    plain = Balance("none", 0.9, 0.0, 0.9, "ig", {"hits": 1, "of": 1}, "leaks", {"read": 1}, "read", 0.0, 1024, 1.0)
    private = plain._replace(defense="dp-sgd", privacy={"epsilon": 2.5, "delta": 1e-5})
    head, rows = tradeoff._table([plain, private])
    assert head[-1] == "epsilon"
    assert [row[-1] for row in rows] == ["", "2.5 at delta 1e-05"]
    assert tradeoff._table([plain])[0] == tradeoff.HEAD


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", *TASK, "--protocol", "pp"), "Unknown protocol 'pp'"),
        (("train", *TASK, "--protocol", "ppp:rounds=0"), "rounds of at least 1"),
        (("train", *TASK, "--protocol", "ppp:round=3"), "Did you mean 'rounds'"),
        (("train", *TASK, "--protocol", "ppp:clients=100"), "cannot give 100 clients one each"),
        (("train", *TASK, "--defense", "noise:sigma=-1"), "at least 0"),
        (("train", *TASK, "--protocol", "ppp:perturbed=update", "--defense", "dp-sgd"), "use perturbed=steps"),
        (("train", *TASK, "--out", "mine.py"), "mine.py"),
        (("follow", *TASK, "--at", "0+many"), "a whole number"),
        (("follow", *TASK, "--at", "0+500"), "no round 500"),
        (("follow", *TASK, "--server", "nobody"), "Unknown server"),
        (("compare", *TASK, "--defense", "nothing"), "Unknown defense"),
        (("compare", *TASK, "--defense", "none", "--on", "mars"), "Expected a place to run trials (--on)"),
        (("calibrate", *TASK, "--defense", "none"), "no strength"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(here: Path, words: tuple[str, ...], said: str) -> None:
    code, _, err = call(*words)
    assert code == 2, err
    assert said in err
    assert not (here / "runs").exists()


COMMANDS = ("train", "follow", "compare --defense none", "calibrate --defense noise", "study pooling")


@pytest.mark.parametrize("words", COMMANDS)
def test_a_folder_that_cannot_be_written_is_said_before_any_work(here: Path, words: str) -> None:
    code, _, err = call(*words.split(), "--data", "absent.npz", "--out", "mine.py/run")  # before data is looked for
    assert code == 2
    assert "Cannot write 'mine.py/run': Not a directory; choose another --out." in err
    code, _, err = call(*words.split(), "--data", "absent.npz", "--out", "new/run")
    assert code == 2
    assert "absent.npz" in err
    assert sorted(path.name for path in here.iterdir()) == ["mine.py", "rows.npz"]


@pytest.mark.parametrize("command", ["train", "follow", "compare"])
def test_pages_have_the_names_of_files_and_not_where_they_are(here: Path, command: str) -> None:
    with (here / "mine.py").open("a") as file:
        file.write(
            "\n\nfrom dosimeter.defenses import GaussianNoise\n\ndef noise():\n    return GaussianNoise(sigma=0.1)\n"
        )
    words = [
        "--model",
        f"{here}/mine.py:make",
        "--data",
        f"{here}/rows.npz",
        "--defense",
        f"prune|{here}/mine.py:noise",
    ]
    few = {"train": [], "follow": ["--at", "0+1", "--victims", "1", "--steps", "1"],
           "compare": ["--victims", "1", "--steps", "1"]}[command]  # fmt: skip
    assert call(command, *words, *few, "--protocol", "ppp:rounds=1,clients=2", "--out", "run")[0] == 0
    page = (here / "run" / ("compare.html" if command == "compare" else "training.html")).read_text()
    assert here.name not in page
    assert "mine.py:make" in page
    assert "rows.npz" in page
    assert "prune|mine.py:noise" in page


def test_a_tilde_is_the_home_folder_in_every_option(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    task = ("--model", "~/mine.py:make", "--data=~/rows.npz")
    code, _, err = call("train", *task, "--protocol", "ppp:rounds=1,clients=2", "--out=~/run")
    assert code == 0, err
    assert (here / "run" / "seed-0" / "model.safetensors").is_file()
    few = ("--victims", "1", "--steps", "1")
    assert call("audit", *task, "--weights=~/run/seed-0/model.safetensors", *few, "--out", "~/audited")[0] == 0
    assert (here / "audited" / "report.html").is_file()
    assert not list((here / "elsewhere").iterdir())


PAGES = {
    "train --protocol ppp:rounds=1,clients=2": ("training.html", "test accuracy", "seed-0/training.json"),
    "follow --protocol bayes:steps=1,rounds=1 --at 0 --victims 1 --steps 2": ("training.html", "norm", "trials.sqlite"),
    "compare --defense none --protocol ppp:rounds=1,clients=2 --victims 1 --steps 2": (
        "compare.html", "best attack", "trials.sqlite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", PAGES)
def test_a_page_that_fails_takes_no_results_with_it(here: Path, words: str) -> None:
    page, printed, kept = PAGES[words]
    assert call(*words.split(), *TASK, "--out", "run")[0] == 0
    (here / "run" / page).unlink()
    (here / "run" / page).mkdir()
    code, out, err = call(*words.split(), *TASK, "--out", "run")
    assert code == 2
    assert printed in out
    assert "Is a directory; choose another --out. The results are kept in 'run'; only their page is missing." in err
    assert (here / "run" / kept).is_file()


FEW = "--victims 1 --steps 2"
KEEPING = (
    "train --protocol ppp:rounds=1,clients=2",
    f"follow --protocol bayes:steps=1,rounds=1 --at 0+1 {FEW}",
    f"compare --protocol ppp:rounds=1,clients=2 --defense none {FEW}",
    f"calibrate --protocol ppp:rounds=1,clients=2 --defense noise --allow 1 {FEW}",
)


def test_a_training_of_another_model_or_other_data_is_refused(here: Path) -> None:
    words = KEEPING[0].split()
    assert call(*words, *TASK)[0] == 0
    (here / "mine.py").write_text(MODEL.replace("Sigmoid", "Tanh"))  # of the same weights
    setup._federation.cache_clear()
    code, _, err = call(*words, *TASK)
    assert code == 2, err
    assert "another model (Sequential " in err
    change_data(here)
    setup._federation.cache_clear()
    code, _, err = call(*words, *TASK)
    assert code == 2, err
    assert "data (rows " in err
    assert len(list((here / "runs").iterdir())) == 1


def change_data(here: Path) -> None:
    (here / "mine.py").write_text(MODEL)
    arrays = dict(np.load("rows.npz"))
    arrays["train_images"][0] += 1
    np.savez("rows.npz", **arrays)


@pytest.mark.parametrize("words", KEEPING[1:3])
def test_what_was_kept_of_another_model_or_other_data_is_not_taken_for_this(here: Path, words: str) -> None:
    assert call(*words.split(), *TASK, "--out", "run")[0] == 0
    before = len(kept("run"))
    (here / "mine.py").write_text(MODEL.replace("Sigmoid", "Tanh"))  # of the same weights
    assert call(*words.split(), *TASK, "--out", "run")[0] == 0
    assert len(kept("run")) > before
    change_data(here)
    between = len(kept("run"))
    assert call(*words.split(), *TASK, "--out", "run")[0] == 0
    assert len(kept("run")) > between
    (here / "taken").mkdir()
    (here / "taken" / "notes.txt").write_text("mine")
    code, _, err = call(*words.split(), *TASK, "--out", "taken")
    assert code == 2
    assert "Expected a store of trials or an empty folder in 'taken', found 'notes.txt'; choose another --out." in err
    assert [path.name for path in (here / "taken").iterdir()] == ["notes.txt"]


def test_every_setting_has_a_folder_of_its_own(here: Path) -> None:
    one = "train --model lenet:width=2 --protocol ppp:rounds=1,clients=2,epochs=none,steps=1"
    others = ("--model lenet:width=2,activation=tanh", "--defense noise:sigma=0.1", "--protocol fedsgd:rounds=1")
    for more in ("", *others):
        assert call(*one.split(), "--data", "mnist-5k", *more.split())[0] == 0
    found = sorted(path.name for path in (here / "runs").iterdir())
    assert len(found) == 1 + len(others)
    assert any("lenet_width=2_activation=tanh-mnist-5k-ppp_rounds=1" in name for name in found)


DEFENSE = """
from dosimeter.defenses import Defense

class Mine(Defense):
    def on_gradient(self, gradient, moment, rng):
        return {name: g * 1.0 for name, g in gradient.items()}
"""


def test_a_defense_of_ones_own_that_changed_is_compared_anew(here: Path) -> None:
    words = ("compare", *TASK, "--protocol", "ppp:rounds=1,clients=2", *FEW.split(), "--out", "run")
    for text in (DEFENSE, DEFENSE.replace("1.0", "0.0"), DEFENSE):
        (here / "own.py").write_text(text)
        assert call(*words, "--defense", "own.py:Mine")[0] == 0
    assert len({(each.found or {})["ssim"] for each in kept("run")}) == len(kept("run")) == 2


OTHER = """
def mirrored(output, labels):
    return nn.functional.cross_entropy(-output, labels)

def wide():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(200, 3))
"""


@pytest.mark.parametrize("words", KEEPING)
def test_every_training_takes_the_options_of_an_audit_and_can_be_done_again(here: Path, words: str) -> None:
    (here / "mine.py").write_text(MODEL + OTHER)
    command, *rest = words.split()
    form = ("--model", "mine.py:wide", "--data", "rows.npz", "--size", "12", "--channels", "3")
    form = (*form, "--loss", "mine.py:mirrored")
    if command != "train":
        form = (*form, "--split", "test", "--indices", "2", "--batch-norm", "batch")
    code, out, err = call(command, *rest, *form, "--dry-run")
    assert code == 0, err
    assert "Dry run" in out
    assert sorted(path.name for path in here.iterdir()) == ["mine.py", "rows.npz"]
    code, _, err = call(command, *rest, *form, "--out", "run")
    assert code == 0, err
    code, out, err = call(command, "--config", "run/run.toml", "--out", "run", "--json")  # answered from what is kept
    assert code == 0, err
    document = json.loads(out)
    assert document["command"] == command
    figures = {"train": "trainings", "follow": "points", "compare": "balances", "calibrate": "balance"}
    assert document[figures[command]]
    if command == "follow":
        assert [image["index"] for point in document["points"] for image in point["images"]] == [2, 2]


def test_training_begins_from_weights_and_learns_by_its_loss(here: Path) -> None:
    (here / "mine.py").write_text(MODEL + OTHER)
    plain = ("train", *TASK, "--protocol", "ppp:rounds=3,clients=3,lr=0.05", "--json")
    code, out, err = call(*plain, "--out", "plain")
    assert code == 0, err
    first = json.loads(out)["trainings"]["0"]
    weights = ("--weights", "plain/seed-0/model.safetensors")
    more = json.loads(call(*plain, *weights, "--out", "more")[1])["trainings"]["0"]
    assert more[0]["train_loss"] < first[0]["train_loss"]
    other = json.loads(call(*plain, "--loss", "mine.py:mirrored", "--out", "other")[1])["trainings"]["0"]
    assert other[-1]["accuracy"] < first[-1]["accuracy"]


@pytest.mark.parametrize("option", ["--split", "--indices", "--batch-norm"])
def test_training_refuses_what_speaks_of_victims(here: Path, option: str) -> None:
    value = {"--split": "test", "--indices": "1", "--batch-norm": "batch"}[option]
    code, _, err = call("train", *TASK, option, value)
    assert code == 2
    assert f"Training attacks nobody and has no use for {option}; leave that out." in err
    assert not (here / "runs").exists()


def test_time_may_be_given_to_the_attacks_of_a_comparison(here: Path) -> None:
    """What is cut by it is told apart from what is not, and is no evidence."""
    words = ("follow", *TASK, "--protocol", "bayes:steps=1,rounds=1", "--at", "0", "--victims", "1", "--steps", "50000")
    code, out, _ = call(*words, "--minutes", "0.0001", "--out", "run")
    assert code == 0
    assert "inconclusive" in out
    assert call(*words, "--minutes", "0.0002", "--out", "run")[0] == 0
    assert len(kept("run")) == 2
