"""What a soak does over and over: every kind of work of the program, small, by Python and by the command line."""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import dosimeter as dm
import small_federation
from dosimeter import federated
from dosimeter.cli import app
from dosimeter.task import load_task
from dosimeter.types import Victims

Job = Callable[[int, Path], None]
"""One piece of work, given a seed and a folder of its own."""

NET = """
from torch import nn

def make(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
"""

AUDITS = {
    "cnn:width=4": ("ig:steps=10", "none"),
    "mlp:width=64,depth=2": ("analytic", "ppp:sigma=0.01"),
    "cnn-bayes:width=4,hidden=8": ("bayes:steps=8", "noise:sigma=0.001"),
    "lenet": ("dlg:steps=2", "laplace:scale=0.001"),
    "cnn:width=4,bias=False": ("leave-out:steps=5", "soteria"),
    "resnet20:width=0.25": ("ig:steps=4", "prune:ratio=0.5"),
    "vit:width=16,heads=4,depth=1": ("joint:steps=5", "cvb"),
    "resnet18:width=0.0625": ("grad-inversion:steps=3", "quantise"),
    "lenet-bn": ("recover-key:steps=5", "fedkl:key=64,share=lock"),
    "cnn:width=4,activation=tanh": ("eliminate", "precode:k=16"),
    "lenet:width=6": ("grnn:steps=3,width=4", "dropout"),
    "mlp-2:width=16": ("labels", "dp-sgd:sigma=0.1,clip=1"),
    "cnn:width=8": ("deep", "ats"),
}
"""{model: (attack, defense)}."""


def digits(seed: int, many: int = 2, batch: int = 1) -> Victims:
    return dm.pick(dm.load("mnist-5k", size=32), many, batch=batch, seed=seed)


def built(words: str, seed: int) -> nn.Module:
    return load_task(words, "mnist-5k", seed=seed, size=32).model


def call(*words: object, code: int = 0) -> str:
    """A command in this process, as a person types it; anything but the expected exit code ends the soak."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exit_code != code:
        raise RuntimeError(
            f"{words}: expected exit code {code}, got {done.exit_code}: {done.output}"
        ) from done.exception
    return done.output


def audits(seed: int, place: Path) -> None:
    """Models, defenses and attacks of every kind, each result drawn as a page and read again."""
    for at, (model, (attack, defense)) in enumerate(AUDITS.items()):
        found = dm.audit(built(model, seed), digits(seed), attack=attack, defense=defense, seed=seed)
        if at % 4 == 0:
            dm.report(found, place / f"api-{at}")
            dm.read(place / f"api-{at}").summary()


def local_training(seed: int, place: Path) -> None:
    """A client that trains locally, on batches."""
    dm.audit(
        built("cnn:width=4", seed), digits(seed, batch=2), attack="ig:steps=4", step="local:steps=2,lr=0.1", seed=seed
    )


def panels(seed: int, place: Path) -> None:
    """Every attack made for a defense, by Python and by the command line."""
    dm.panel(built("cnn:width=4", seed), digits(seed, 1), steps=4, defense="noise:sigma=0.01", seed=seed).summary()
    words = ("--model", "lenet", "--victims", 1, "--attack", "auto", "--steps", 4, "--seed", seed, "--defense", "cvb")
    call("audit", *words, "--out", place / "panel")


def doses(seed: int, place: Path) -> None:
    dm.dose(built("cnn:width=4", seed), digits(seed, 1), defense="noise:sigma=0.01", seed=seed)
    call("dose", "--model", "lenet", "--victims", 1, "--prior", "white", "--seed", seed, "--out", place / "dose")


def lints(seed: int, place: Path) -> None:
    for model in ("cnn", "resnet20:width=0.25", "vit:width=16,heads=4,depth=1"):
        dm.lint(built(model, seed), (1, 32, 32), seed=seed)
    call("lint", "--model", "lenet-bn", "--json")


def trained_here(seed: int, place: Path) -> None:
    """Rounds by Python, each kept in a file."""
    federated.train(small_federation.federation(), workers=1, processes=False, folder=place / "rounds")


def trainings(seed: int, place: Path) -> None:
    """Rounds by the command line, and attacks on what they made."""
    words = small_federation.words(place)
    task = ("--model", words["model"], "--data", words["data"], "--protocol", "ppp:rounds=2,clients=3,lr=0.05")
    task = (*task, "--seed", seed)
    call("train", *task, "--workers", 1, "--out", place / "train")
    call("follow", *task, "--at", "0+2", "--victims", 1, "--steps", 3, "--workers", 1, "--out", place / "follow")


def captures(seed: int, place: Path) -> None:
    """An update in a file and one in memory."""
    torch.manual_seed(seed)
    held: dict[str, Callable[[], nn.Module]] = {}
    exec(NET, held)
    model, victim = held["make"](), dm.pick(dm.load("mnist-5k"), 1, seed=seed)
    F.cross_entropy(model(victim.images[0]), victim.labels[0]).backward()
    update = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    dm.captured(model, dm.Capture(update, (1, 28, 28)), attack="ig:steps=4", shadows=victim, seed=seed)
    (place / "net.py").write_text(NET)
    save_file(model.state_dict(), place / "before.safetensors")
    save_file(update, place / "update.safetensors")
    words = ("--model", f"{place}/net.py:make", "--weights", place / "before.safetensors", "--attack", "analytic")
    call(
        "captured", *words, "--update", place / "update.safetensors", "--shape", "1,28,28", "--out", place / "captured"
    )


def commands(seed: int, place: Path) -> None:
    """Audits by the command line: made, scored again, put side by side, refused."""
    quick = ("audit", "--model", "cnn:width=4", "--victims", 2, "--steps", 5, "--seed", seed)
    call(*quick, "--out", place / "one")
    call(*quick, "--defense", "prune:ratio=0.5", "--dose", "--out", place / "two")
    call("score", place / "one", "--threshold", 0.1, "--out", place / "lax")
    call("report", place / "one", place / "two", "--out", place / "both.html")
    call(*quick, "--out", place / "one", code=2)
    call("audit", "--model", "nothing", code=2)
    call("check", "--model", "cnn:width=4", code=2)
    call("list", "attacks")


def sweeps(seed: int, place: Path) -> None:
    words = ("--model", "cnn:width=4", "--victims", 1, "--steps", 3, "--seed", seed, "--out", place / "kept")
    call("sweep", *words, "--defense", "none", "--defense", "noise:sigma=0.01")
    call("store", "list", place / "kept")


JOBS: tuple[Job, ...] = (
    audits, local_training, panels, doses, lints, trained_here, trainings, captures, commands, sweeps,
)  # fmt: skip
