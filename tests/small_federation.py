"""A federation that trains in a moment: 8 x 8 images of which the bright row says the class."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from dosimeter import defenses
from dosimeter.data import Dataset
from dosimeter.defenses import Defense
from dosimeter.federated import Federation, Protocol, State

CLASSES = 3


def dataset(train: int = 48, test: int = 30) -> Dataset:
    """Bright images of which the row says the class, so that training gets somewhere."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", train), ("test", test)):
        labels = rng.integers(0, CLASSES, n)
        images = rng.integers(0, 60, (n, 8, 8), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 2] += 150
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    return Dataset.of(arrays, name="rows", source="test")


def model() -> nn.Module:
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
    head = (nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *head)


NET = """
from torch import nn

def make():
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
    head = (nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *head)
"""


def words(folder: Path) -> dict[str, str]:
    """A model of the same form and the same images in files, as trials take them."""
    rows, splits = dataset(), [(split, part) for split in ("train", "test") for part in ("images", "labels")]
    np.savez(folder / "rows.npz", **{f"{split}_{part}": getattr(rows, f"{split}_{part}") for split, part in splits})
    (folder / "mine.py").write_text(NET)
    return {"model": f"{folder}/mine.py:make", "data": f"{folder}/rows.npz"}


def federation(defense: Defense | None = None, net: nn.Module | None = None, **protocol: object) -> Federation:
    words: dict[str, object] = {"clients": 3, "rounds": 3, "batch_size": 8}
    return Federation(
        model=net or model(),
        dataset=dataset(),
        protocol=Protocol(**{**words, **protocol}),  # type: ignore[arg-type]
        defense=defense or defenses.NoDefense(),
    )


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
