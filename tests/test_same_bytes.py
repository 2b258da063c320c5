"""The same seed gives the same bytes, for every command that prints JSON: run twice, each time in its own folder."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from dosimeter.cli import COMMANDS, app
from faults.writers import prepare

TIMES = {"seconds", "fitting"}
"""Fields that say how long something took, wherever they are; nothing else may differ."""

TASK = ("--model", "mine.py:make", "--data", "rows.npz")
ROUNDS = ("--protocol", "ppp:rounds=2,clients=2,lr=0.05")
SHORT = ("--victims", "2", "--steps", "3")
OUT = ("--out", "out", "--json")
AUDIT = ("audit", *TASK, *SHORT, "--decoys", "3", *OUT)
TRAIN = ("train", *TASK, *ROUNDS, *OUT)
SWEEP = ("sweep", *TASK, *SHORT, "--attack", "ig", "--seeds", "2", *OUT)
FILES = ("--weights", "weights.safetensors", "--update", "update.safetensors", "--shape", "1,8,8")

CALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "audit": (AUDIT,),
    "audit, a defense that draws": ((*AUDIT, "--attack", "ig:restarts=2", "--defense", "noise:sigma=0.1"),),
    "audit, all attacks": ((*AUDIT, "--attack", "auto"),),
    "audit, local training": ((*AUDIT, "--batch", "2", "--step", "local:steps=2,lr=0.1"),),
    "score": (AUDIT, ("score", "out", "--out", "scored", "--json")),
    "dose": (("dose", *TASK, "--victims", "2", "--public", "20", *OUT),),
    "captured": (("captured", *TASK[:2], *FILES, "--steps", "3", *OUT),),
    "lint": (("lint", *TASK[:2], "--shape", "1,8,8", "--json"),),
    "train": (TRAIN,),
    "follow": (("follow", *TASK, *ROUNDS, "--at", "0+2", *SHORT, *OUT),),
    "compare": (("compare", *TASK, *ROUNDS, "--defense", "none", "--defense", "noise:sigma=0.1", *SHORT, *OUT),),
    "calibrate": (("calibrate", *TASK, *ROUNDS, "--defense", "noise", "--allow", "1", *SHORT, *OUT),),
    "sweep": (SWEEP,),
    "tune": (("tune", *TASK, "--attack", "ig", *SHORT, "--shadows", "1", "--trials", "3", "--set", "lr=0.05..1:log",
              "--name", "mine", *OUT),),
}  # fmt: skip


@contextmanager
def folder(place: Path) -> Iterator[None]:
    """A folder with a model, data, weights and an update, which commands run in."""
    before = Path.cwd()
    os.chdir(prepare(place))
    try:
        torch.manual_seed(0)
        made: dict[str, Any] = {}
        exec(Path("mine.py").read_text(), made)
        model: nn.Module = made["make"]()
        save_file(model.state_dict(), "weights.safetensors")
        F.cross_entropy(model(torch.rand(1, 1, 8, 8)), torch.tensor([1])).backward()
        save_file({name: p.grad for name, p in model.named_parameters() if p.grad is not None}, "update.safetensors")
        yield
    finally:
        os.chdir(before)


def said(place: Path, *calls: tuple[str, ...]) -> str:
    """What the last of these calls prints, without the times."""
    with folder(place):
        for words in calls:
            result = CliRunner().invoke(app, list(words))
            assert result.exit_code == 0, (words, result.stderr, result.exception)
    return json.dumps(timeless(json.loads(result.stdout)), indent=1)


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if key not in TIMES}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def test_every_command_that_prints_json_is_tried() -> None:
    printing = {name for name, (asked, _) in COMMANDS.items() if any(each.name == "json" for each in fields(asked))}
    assert printing == {calls[-1][0] for calls in CALLS.values()}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_seed_prints_the_same_bytes(name: str, tmp_path: Path) -> None:
    assert said(tmp_path / "one", *CALLS[name]) == said(tmp_path / "two", *CALLS[name])


@pytest.mark.parametrize(
    ("words", "one", "two"),
    [
        (TRAIN, ("--workers", "1"), ("--workers", "2")),
        (SWEEP, ("--on", "here"), ("--on", "local:2")),
    ],
    ids=["clients on two threads", "trials in two processes"],
)
def test_two_workers_print_the_bytes_of_one(
    words: tuple[str, ...], one: tuple[str, ...], two: tuple[str, ...], tmp_path: Path
) -> None:
    assert said(tmp_path / "one", (*words, *one)) == said(tmp_path / "two", (*words, *two))


def test_another_seed_prints_others(tmp_path: Path) -> None:
    assert said(tmp_path / "one", AUDIT) != said(tmp_path / "two", (*AUDIT, "--seed", "1"))
