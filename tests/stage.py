"""A folder in which all that pages have a reader type finds its files: models, data, weights, updates, runs."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import dosimeter as dm
from dosimeter import models, spec
from dosimeter.attacks.generators.files import save_generator
from dosimeter.attacks.generators.network import Network

OWN = """
from torch import nn
from torch.nn import functional as F

import dosimeter as dm


class Grey(nn.Module):
    def forward(self, x):
        return F.adaptive_avg_pool2d(x.mean(1, keepdim=True), 8)


def make():
    return nn.Sequential(Grey(), nn.Flatten(), nn.Linear(64, 10))


make_model = make


def function(output, labels):
    return F.cross_entropy(output, labels)


NAME = dm.Metric(name="mine", function=lambda a, b: (a - b).abs().flatten(1).mean(1), higher=False)
"""

WEIGHTS = (
    ("sent.safetensors", "cnn", (3, 32, 32)),
    ("last.safetensors", "cnn", (3, 32, 32)),
    ("trained.safetensors", "convnet:pooling=average,width=32", (3, 32, 32)),
    ("trained/seed-0/model.safetensors", "resnet20-4", (3, 32, 32)),
    ("runs/vit/seed-0/model.safetensors", "vit", (3, 32, 32)),
)
"""Files of weights, and whose they are."""

IMAGES = 1100
"""In every data set, enough for victims, decoys, shadows and pools."""


def build(folder: Path) -> None:
    """All of it, in a second or two."""
    rng = np.random.default_rng(0)
    for name in ("file.py", "task.py", "mine.py", "path/to/file.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(OWN)
    data = folder / "data"
    data.mkdir()
    for name, side, channels in (("cifar10", 32, 3), ("mnist", 28, 1), ("imagenet_samples_224", 224, 3)):
        _images(data / f"{name}.npz", rng, side, channels, IMAGES if side < 100 else 8)
    _images(folder / "mine.npz", rng, 28, 1, IMAGES)
    for at in range(8):
        place = folder / "photos" / ("cat", "dog")[at % 2] / f"{at}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (70, 80, 3), np.uint8)).save(place)
    _updates(folder, rng)
    network = Network(latent=128, shape=(1, 28, 28), width=2, trained=True)
    save_generator(network, folder / "generator.safetensors", shape=(1, 28, 28), latent=128, width=2, about="of a test")
    (folder / "tuned").mkdir()
    (folder / "tuned" / "noise.toml").write_text(
        'format = 1\nname = "noise"\nattack = "bayes:density=gaussian,scale=0.01"\nuntuned = "bayes"\n'
    )
    _run(folder)


def _images(path: Path, rng: np.random.Generator, side: int, channels: int, count: int) -> None:
    arrays = {}
    for split in ("train", "test"):
        shape = (count, side, side, channels) if channels > 1 else (count, side, side)
        arrays[f"{split}_images"] = rng.integers(0, 255, shape, np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 10
    np.savez(path, **arrays)


def _updates(folder: Path, rng: np.random.Generator) -> None:
    """Weights and updates of the model of `OWN`, of the catalogue's `cnn`, and what a Flower server kept."""
    torch.manual_seed(0)
    before = {"2.weight": torch.randn(10, 64) / 8, "2.bias": torch.zeros(10)}
    moved = {name: 0.01 * torch.randn_like(each) for name, each in before.items()}
    after = {name: each - moved[name] for name, each in before.items()}
    for name, tensors in (("before", before), ("update", moved), ("after", after)):
        save_file(tensors, folder / f"{name}.safetensors")
        np.savez(folder / f"{name}.npz", **{key: each.numpy() for key, each in tensors.items()})
        torch.save(tensors, folder / f"{name}.pt")
    np.savez(
        folder / "batch.npz", images=rng.integers(0, 255, (1, 28, 28, 1), np.uint8), labels=np.zeros(1, dtype=np.int64)
    )
    kept = folder / "kept" / "round-1"
    kept.mkdir(parents=True)
    save_file(before, kept / "before.safetensors")
    save_file(after, kept / "node-1.safetensors")
    node = {
        "node": 1,
        "files": ["node-1.safetensors"],
        "examples": 1,
        "metrics": {},
        "config": {"lr": 0.1, "local-steps": 1},
    }
    (kept / "round.json").write_text(json.dumps({"round": 1, "replies": [node], "run_config": {}}))
    save_file(before, folder / "mine.safetensors")
    for path, model, shape in WEIGHTS:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        name, settings = spec.parse("model", model, {key: each.make for key, each in models.BY_NAME.items()})
        three = {"mean": (0.5,) * shape[0], "std": (0.25,) * shape[0]}
        made = models.build(name, shape=shape, classes=10, **three, seed=0, settings=settings)
        save_file(dict(made.state_dict()), folder / path)


def _run(folder: Path) -> None:
    """An audit that was run, with its options."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
    dm.report(dm.audit(model, victims, attack="ig:steps=2"), folder / "runs" / "mine")
    (folder / "runs" / "mine" / "run.toml").write_text('model = "mlp"\nvictims = 1\nsteps = 2\n')
