"""All that writes, small enough to run in less than a second, and how to see what it has finished.

What is finished is {name: mark}, where the mark is another one whenever the same is made again.
"""

import logging
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open

from dosimeter import drafts, files, store
from dosimeter.auditing import Result
from dosimeter.data.download import download
from dosimeter.errors import DataError, DosimeterError
from dosimeter.federated.checkpoint import HISTORY, MODEL, ROUND, read_history
from dosimeter.federated.kept import read_kept
from dosimeter.sweeps import Status, Store
from dosimeter.tuning import journal
from faults import children, downloads
from small_federation import dataset

MODEL_FILE = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 3))
"""
TASK = ("--model", "mine.py:make", "--data", "rows.npz")
FETCHED = "fetched.npz"


class Writer(NamedTuple):
    """Something that writes into the folder `out`."""

    name: str
    work: Callable[[], None]
    finished: Callable[[Path], dict[str, Any]]  # or DosimeterError where something is not whole
    same: tuple[str, ...]  # files that are the same in every run, as patterns
    again: Callable[[Path], Callable[[], None]]  # what goes on after a fault
    times: bytes = b""  # what in these files is of the time it took, as a pattern


def prepare(place: Path) -> Path:
    """A model and a data set in a folder, which a writer runs in."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "mine.py").write_text(MODEL_FILE)
    for name, rows in (("rows", dataset()), ("more", dataset(train=120))):
        np.savez(
            place / f"{name}.npz",
            **{
                f"{split}_{part}": getattr(rows, f"{split}_{part}")
                for split in ("train", "test")
                for part in ("images", "labels")
            },
        )
    return place


def _audit(*more: str) -> tuple[str, ...]:
    return ("audit", *TASK, "--workers", "1", "--decoys", "0", "--victims", "1", "--out", "out", "--quiet", *more)


AUDIT = _audit("--attack", "ig", "--steps", "3")


def _drafts(out: Path) -> Iterator[Path]:
    """The run, and what a killed process left of it for the next one."""
    yield from (out, out.with_name(f"{drafts.PREFIX}{out.name}") / "run")


def _whole_run(out: Path) -> dict[str, Any]:
    """A run that is there is read to its end; so is one that only has to be moved."""
    found = {}
    for folder in _drafts(out):
        if (folder / store.RUN).is_file() and store.finished_run(folder):
            store.read(folder)
            found["run"] = store.read_run(folder).info["finished"]
    return found


def _attacks(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for folder in _drafts(out):
        if (folder / store.RUN).is_file():
            store.read_run(folder)
        for made, each in store.finished(folder, Result).items():
            found[made] = each.seconds
    return found


def _rounds(folder: Path) -> dict[str, Any]:
    """Rounds that a training goes on from."""
    if not (folder / ROUND).is_file():
        return {}
    with safe_open(folder / ROUND, "pt") as file:
        done = int(file.metadata()["round"])
    rounds = read_history(folder)["rounds"][:done]
    if len(rounds) < done:
        raise DataError(f"{folder} is of round {done} and has {len(rounds)}")
    return {f"{folder.name} {each['round']}": each["seconds"] for each in rounds}


def _trained(out: Path) -> dict[str, Any]:
    return {key: mark for folder in sorted(out.glob("seed-*")) for key, mark in _rounds(folder).items()}


def _trials(out: Path) -> dict[str, Any]:
    """Done trials, all of whose folders are read, and rounds of trainings."""
    found: dict[str, Any] = {}
    if not (out / "trials.sqlite").is_file():
        return found
    with Store(out, create=False) as kept:
        for each in kept.entries(Status.DONE):
            found[each.digest] = (each.began, each.seconds)
            if each.kind == "audit":
                kept.result(each.digest)
        for folder in (out / "trials").glob("*"):
            if (folder / HISTORY).is_file():
                found |= _rounds(folder)
    return found


def _tuned(out: Path) -> dict[str, Any]:
    """Settings that were tried, and the trials of victims."""
    if not (out / journal.FILE).is_file():
        return {}
    trials = journal.Journal(out).trials(journal.State.COMPLETE)
    return {str(each.params): (each.datetime_start, each.user_attrs["tried"]) for each in trials} | _trials(
        out / "victims"
    )


def _distances(out: Path) -> dict[str, Any]:
    """Files that are read, by when they were made."""
    return {path.name: (path.stat().st_mtime_ns, files.read_json(path)) for path in out.glob("distances/*.json")}


def _fetched(out: Path) -> dict[str, Any]:
    """The file, whole."""
    there = [path for path in out.glob("*") if path.name == FETCHED]
    if any(path.read_bytes() != downloads.CONTENT for path in there):
        raise DataError(f"{out / FETCHED} is not what the server has")
    return {path.name: path.stat().st_mtime_ns for path in there}


def _fetch() -> None:
    """From a server on this machine that takes half a second for it."""
    try:
        download(downloads.address(), Path("out") / FETCHED, downloads.MD5, title="rows")
    except DosimeterError as error:
        sys.stdout.write(f"dosimeter: {error}\n")
        raise SystemExit(2) from None


def _kept(out: Path) -> dict[str, Any]:
    if not list(out.glob("round-*/round.json")):
        return {}
    return {f"{each.round} {each.node}": each.after["weight"].double().sum().item() for each in read_kept(out)}


def _flower() -> None:
    """Three rounds of a Flower app whose server keeps what it sees."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    from dosimeter.flower import Keep, run_here

    for handler in logging.getLogger("flwr").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.stream = sys.stderr  # and not that of when Flower was imported, which may be closed
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        state = message.content.array_records["arrays"].to_torch_state_dict()
        moved = {name: tensor + 0.01 * (place + 1) for name, tensor in state.items()}
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        random.seed(0)  # by which Flower orders the nodes, and so what it adds up
        first = ArrayRecord({"weight": torch.randn(20000), "bias": torch.zeros(3)})
        Keep(FedAvg(), "out").start(grid, first, num_rounds=6)

    run_here(server, client, nodes=3)


def _overwriting(out: Path) -> Callable[[], None]:
    """The same audit; a run that was stopped gives way, and one that is whole need not be made again."""
    stopped = (out / store.RUN).is_file() and not store.finished_run(out)
    return children.command(*AUDIT, *(("--overwrite",) if stopped else ()))


RUN = ("out/records.json", "out/reconstructions.safetensors", "out/images/*.png")
TRIALS = tuple(f"out/trials/*/{name}" for name in (store.RECORDS, store.TENSORS, MODEL, ROUND))
SHORT = ("--victims", "1", "--steps", "2", "--out", "out")


def _of(name: str, words: tuple[str, ...], finished: Callable[[Path], dict[str, Any]], same: tuple[str, ...]) -> Writer:
    work = children.command(*words)
    return Writer(name, work, finished, same, lambda _: work)


def _trained_by(rounds: int) -> tuple[str, ...]:
    return (*TASK, "--protocol", f"ppp:rounds={rounds},clients=2,lr=0.05")


DEFENSES = ("--defense", "none")
ONE = ("--victims", "1", "--out", "out")
SPACE = ("--attack", "ig", "--shadows", "1", "--trials", "3", "--prune", "none", "--set", "lr=0.05..1:log", "--name",
         "mine")  # fmt: skip
TUNED = ("out/mine.toml", "tuned/mine.toml", *(each.replace("out/", "out/victims/", 1) for each in TRIALS))
DISTANCES = ("out/distances/*.json",)
WEIGHTS = (f"out/seed-0/{MODEL}", f"out/seed-0/{ROUND}")
AT = ("--at", "0+2", "--workers", "1", "--attack", "ig")
WRITERS = (
    Writer("audit", children.command(*AUDIT), _whole_run, RUN, _overwriting),
    _of("panel", _audit("--attack", "auto", "--steps", "2"), _attacks, (*RUN, "out/attacks/*/records.json")),
    _of("train", ("train", *_trained_by(8), "--workers", "1", "--out", "out"), _trained, WEIGHTS),
    _of("follow", ("follow", *_trained_by(2), *AT, *SHORT), _trials, TRIALS),
    _of("compare", ("compare", *_trained_by(2), *DEFENSES, *SHORT), _trials, TRIALS),
    _of("sweep", ("sweep", *TASK, "--attack", "ig", "--seeds", "2", *SHORT), _trials, TRIALS),
    _of("study", ("study", "labels", "--data", "more.npz", "--only", "mlp-no-bias", *ONE), _trials, TRIALS),
    _of("tune", ("tune", *TASK, *SPACE, "--steps", "2", *ONE), _tuned, TUNED)._replace(times=rb"seconds = .*"),
    _of("reproduce", ("reproduce", "bayes/fig4", "--scale", "smoke", "--out", "out"), _distances, DISTANCES),
    Writer("download", _fetch, _fetched, (f"out/{FETCHED}",), lambda _: _fetch),
    Writer("keep", _flower, _kept, ("out/round-*/*.safetensors",), lambda _: _flower),
)
