"""A store of very many trials, made cheaply: rows alone, of which one has its pictures."""

import json
import sqlite3
from pathlib import Path

from PIL import Image

from dosimeter.sweeps import Store

MODELS, DATA = ("cnn", "lenet", "mlp", "convnet", "resnet18"), ("mnist-5k", "cifar10")
ATTACKS, DEFENSES = (
    ("auto", "ig", "bayes", "analytic"),
    ("none", "cvb", *(f"noise:sigma={10**-k:g}" for k in range(1, 6))),
)


def words_of(at: int) -> dict[str, object]:
    found: dict[str, object] = {
        "model": MODELS[at % 5],
        "data": DATA[at // 5 % 2],
        "defense": DEFENSES[at // 10 % 7],
        "attack": ATTACKS[at // 70 % 4],
        "seed": at // 280,
        "victims": 10,
    }
    usual = {"model": "cnn", "data": "mnist-5k", "defense": "none", "attack": "auto", "seed": 0}
    return {key: value for key, value in found.items() if usual.get(key) != value}


def digest_of(at: int) -> str:
    return f"{at * 2654435761 % 2**32:08x}{at:08x}"


def record_of(at: int, image: int) -> dict[str, object]:
    ssim = (at * 31 + image * 7) % 100 / 100
    blind = {"ssim": 0.1, "psnr": 9.0}
    scores = {"ssim": ssim, "psnr": 10 + 20 * ssim, "mse": 0.05}
    told = {"read": ssim >= 0.5, "baseline": blind, "match": 0.01, "steps": 100, "restart": 0, "stopped": "steps"}
    return {"victim": image, "image": 0, "index": image, "label": image, **scores, **told, "explained": "hidden"}


def make(folder: Path, trials: int, images: int) -> None:
    """Fill a store with trials of so many images each; a tenth of them has a training."""
    with Store(folder):
        pass
    rows, records = [], []
    for at in range(trials):
        each = [record_of(at, image) for image in range(images)]
        read = sum(bool(one["read"]) for one in each)
        found = {
            "ssim": sum(float(str(one["ssim"])) for one in each) / images,
            "psnr": 20.0,
            "read": read,
            "of": images,
        }
        found |= {"verdict": "leaks" if read else "not shown", "evidence": {"read": read, "hidden": images - read}}
        found |= {"norms": [1.0] * images, "blind_ssim": 0.1, "attack_name": "inverting gradients"}
        uses = digest_of(trials + at % 50) if at % 10 == 0 else None
        told = (json.dumps(words_of(at), sort_keys=True), "done", None, 1.7e9 + at, 12.5, json.dumps(found), None, uses)
        rows.append((digest_of(at), "audit", *told))
        records += [(digest_of(at), place, json.dumps(one)) for place, one in enumerate(each)]
    for at in range(trials, trials + 50):
        found = {"accuracy": 0.5 + at % 50 / 100}
        rows.append(
            (digest_of(at), "training", '{"protocol": "ppp"}', "done", None, 1.7e9, 60.0, json.dumps(found), None, None)
        )
    base = sqlite3.connect(folder / "trials.sqlite")
    with base:
        base.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        base.executemany("INSERT INTO records VALUES (?, ?, ?)", records)
    base.close()


def draw(folder: Path, at: int, images: int) -> None:
    """Give one of the trials its pictures."""
    place = folder / "trials" / digest_of(at) / "images"
    place.mkdir(parents=True)
    for image in range(images):
        for kind in ("original", "reconstruction"):
            shade = (image * 17 + 40 * (kind == "original")) % 256
            Image.new("L", (28, 28), shade).save(place / f"victim-{image:03d}-0-{kind}.png")
