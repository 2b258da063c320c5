"""Everything that reads a file, with a real one to begin from, and as far as commands go on with what it gives."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import torch
import typer
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from torch import nn

import dosimeter as dm
import small_federation
from dosimeter import federated, models, store
from dosimeter.attacks.generators.files import load_generator, save_generator
from dosimeter.attacks.generators.network import Network
from dosimeter.attacks.presets import tuned
from dosimeter.auditing import Result, conclude, shards
from dosimeter.cli import app
from dosimeter.data.files import peek, read_batch, read_npz
from dosimeter.data.folder import read_folder
from dosimeter.errors import DosimeterError, looking
from dosimeter.federated.kept import read_kept
from dosimeter.metrics import Lpips
from dosimeter.reports import dosed, kept, print_result
from dosimeter.reports.page import Beside, render
from dosimeter.sweeps import Store, product_of, sweep


class Reader(NamedTuple):
    """Something that reads `file`, which `make` has put into a folder."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]
    files: tuple[str, ...]  # patterns of those that are changed


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def _images(place: Path) -> None:
    small_federation.words(place)


def _batch(place: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(place / "batch.npz", images=rng.integers(0, 255, (2, 8, 8, 1), np.uint8), labels=np.arange(2))


def _weights(place: Path) -> None:
    state = dict(net().state_dict())
    save_file(state, place / "w.safetensors")
    torch.save(state, place / "w.pt")
    torch.save(state, place / "old.pt", _use_new_zipfile_serialization=False)
    np.savez_compressed(place / "w.npz", **{name: tensor.numpy() for name, tensor in state.items()})


def _load(name: str) -> Callable[[Path], object]:
    return lambda place: models.load_checkpoint(net(), place / name)


def _photos(place: Path) -> None:
    rng = np.random.default_rng(0)
    for at, mode in enumerate(("RGB", "L", "P", "RGBA", "I;16", "1")):
        (place / "photos" / f"{at % 2}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (9, 9, 3), np.uint8)
        image = (
            Image.fromarray(pixels[..., 0].astype(np.uint16))
            if mode == "I;16"
            else Image.fromarray(pixels).convert(mode)
        )
        image.save(place / "photos" / f"{at % 2}" / f"{at}.png")


def _config(place: Path) -> None:
    lines = (
        'command = "audit"',
        'model = "lenet"',
        "victims = 2",
        "steps = 3",
        "threshold = 0.5",
        'metric = ["a.py:b"]',
    )
    (place / "run.toml").write_text("\n".join(lines))


def _parse(place: Path) -> None:
    found = typer.main.get_command(app)
    assert isinstance(found, click.Group)
    audit = found.commands["audit"]
    with suppress(click.UsageError, click.exceptions.Exit):  # which are one line and the code 2
        audit.make_context("audit", ["--config", str(place / "run.toml")])


def _tuned(place: Path) -> None:
    text = 'format = 1\nname = "n"\nattack = "bayes:density=gaussian,scale=0.01"\nuntuned = "bayes"\nshadows = ["a"]\n'
    (place / "n.toml").write_text(text + "[scores.tuned]\npsnr = 3.5\n")


def _load_tuned(place: Path) -> None:
    from dosimeter.attacks import presets

    tuned.load(f"tuned:{place / 'n.toml'}", presets.BY_NAME)


@cache
def _audited() -> Result:
    torch.manual_seed(0)
    victims = dm.pick(small_federation.dataset(), 2, seed=0)
    one = dm.audit(small_federation.model(), victims, attack="ig:steps=2")
    one = replace(one, settings=one.settings | {"channel": "nothing"})
    trials = [dm.auditing.Trial(attack=name, role="published", about="", result=one) for name in ("ig", "other one")]
    return conclude(trials)


def _run(place: Path) -> None:
    store.write_run(_audited(), place / "run")
    (place / "run" / "dose.json").write_text(json.dumps({"images": [{"number": 1, "share": 0.5}], "sentence": "so"}))


def _look(place: Path) -> None:
    found = store.read(place / "run")
    with looking(place), (place / "shown.txt").open("w") as shown:
        render(found, beside=Beside.of(place / "run"))
        print_result(found, Console(file=shown, width=80), where=place)
    store.finished(place / "run", Result)
    store.unfinished(place / "run")


def _dosed(place: Path) -> None:
    if found := dosed.read(place / "run"):
        dosed.beside(found)


@cache
def _swept() -> Path:
    made = tempfile.TemporaryDirectory(prefix="dosimeter-faults-")
    atexit.register(made.cleanup)
    place = Path(made.name)
    words = small_federation.words(place)
    trials = list(
        product_of(
            {**words, "attack": "ig", "steps": 1, "victims": 1, "decoys": 0, "protocol": "ppp:rounds=1,clients=2"}
        )
    )
    sweep(trials, store=place / "store")
    return place / "store"


def _store(place: Path) -> None:
    shutil.copytree(_swept(), place / "store")


def _look_around(place: Path) -> None:
    with Store(place / "store", create=False) as found:
        found.standing()
        for each in found.entries():
            found.records(each.digest)
            _ = each.reason
            if each.kind == "audit" and each.status == "done":
                found.result(each.digest)
        with Store(place / "other") as other:
            other.merge(found)


def _kept(place: Path) -> None:
    here, state = place / "kept" / "round-1", dict(net().state_dict())
    here.mkdir(parents=True)
    save_file(state, here / "before.safetensors")
    save_file({name: tensor + 1 for name, tensor in state.items()}, here / "node-7.safetensors")
    reply = {"node": 7, "files": ["node-7.safetensors"], "examples": 2, "metrics": {"loss": 1.5}, "config": {"lr": 0.1}}
    told = {"program": "dosimeter", "round": 1, "run_config": {"epochs": 1}, "replies": [reply]}
    (here / "round.json").write_text(json.dumps(told))


def _updates(place: Path) -> None:
    for each in read_kept(place / "kept"):
        each.model(net())
        each.update(net(), 0.1)
        each.batches(net())
        each.batch_norm(net())


@cache
def _federation() -> federated.Federation:
    return small_federation.federation(rounds=2)


def _training(place: Path) -> None:
    federated.train(_federation(), folder=place / "seed-0", workers=1)


def _go_on(place: Path) -> None:
    found = federated.train(_federation(), folder=place / "seed-0", workers=1)
    assert len(found.history) == 2
    _ = [entry["accuracy"] + entry["loss"] + entry["train_loss"] + entry["fitting"] for entry in found.history]


def _shard(place: Path) -> None:
    from dosimeter.auditing.setting import Audit, Resources

    victims = dm.pick(small_federation.dataset(), 1, seed=0)
    audit = Audit(model=small_federation.model(), victims=victims, attack=dm.presets.inverting_gradients(steps=1),
                  resources=Resources(progress=False))  # fmt: skip
    shards.write_shard(place, shards.attack_shard(audit, slice(0, 1)))


def _generator(place: Path) -> None:
    network = Network(latent=8, shape=(1, 8, 8), width=2, trained=True)
    save_generator(network, place / "g.safetensors", shape=(1, 8, 8), latent=8, width=2, about="of a test")


def _page(place: Path) -> None:
    entry = {"round": 1, "accuracy": 0.5, "loss": 1.0, "train_loss": 1.0, "seconds": 1.0}
    kept.write(place, "training", about="of a test", command="dosimeter train", histories={"0": [entry]})


def _journal(place: Path) -> None:
    from dosimeter.tuning.journal import Journal

    with Journal(place) as found, found.turn():
        found.wait({"lr": 0.1}, {"stage": "whole"})
        found.take()


def _tried(place: Path) -> None:
    from dosimeter.tuning.journal import Journal

    with Journal(place) as found, found.turn():
        for each in found.left_behind():
            found.put_back(each)
        found.trials()


def _lpips(place: Path) -> None:
    save_file({"features.0.weight": torch.zeros(64, 3, 11, 11)}, place / "alexnet.safetensors")
    torch.save({"features.0.weight": torch.zeros(64, 3, 3, 3)}, place / "vgg16.pt")


def _perceive(place: Path) -> None:
    for name in ("alexnet.safetensors", "vgg16.pt"):
        try:
            Lpips.load(place / name)
        except DosimeterError:
            continue  # as without the rest of its weights


READERS = (
    Reader("data npz", _images, lambda place: (peek(place / "rows.npz"), read_npz(place / "rows.npz")), ("rows.npz",)),
    Reader("batch npz", _batch, lambda place: read_batch(place / "batch.npz"), ("batch.npz",)),
    Reader("weights npz", _weights, _load("w.npz"), ("w.npz",)),
    Reader("weights safetensors", _weights, _load("w.safetensors"), ("w.safetensors",)),
    Reader("weights pt", _weights, _load("w.pt"), ("w.pt",)),
    Reader("weights old pt", _weights, _load("old.pt"), ("old.pt",)),
    Reader("images", _photos, lambda place: read_folder(place / "photos", size=8), ("photos/*/*.png",)),
    Reader("config toml", _config, _parse, ("run.toml",)),
    Reader("tuned toml", _tuned, _load_tuned, ("n.toml",)),
    Reader(
        "run", _run, _look, ("run/*.json", "run/*.safetensors", "run/attacks/*/*.json", "run/attacks/*/*.safetensors")
    ),
    Reader("dose json", _run, _dosed, ("run/dose.json",)),
    Reader(
        "store", _store, _look_around, ("store/trials.sqlite", "store/trials/*/*.json", "store/trials/*/*.safetensors")
    ),
    Reader("kept", _kept, _updates, ("kept/round-1/*",)),
    Reader("training", _training, _go_on, ("seed-0/*",)),
    Reader("shard", _shard, shards.read_shard, (shards.FILE,)),
    Reader("generator", _generator, lambda place: load_generator(place / "g.safetensors"), ("g.safetensors",)),
    Reader("page json", _page, kept.draw, ("page.json",)),
    Reader("journal", _journal, _tried, ("tune.jsonl",)),
    Reader("lpips", _lpips, _perceive, ("alexnet.safetensors", "vgg16.pt")),
)
