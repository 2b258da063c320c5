"""The files that hostile calls name: good data, weights, updates, runs and stores, and programs of all kinds."""

import shutil
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from fuzz.calling import Call, attempt
from fuzz.hostile import models

SHAPE = (1, 8, 8)


def build(folder: Path) -> None:
    """Write all of it into an empty folder, runs and stores by the program itself."""
    shutil.copytree(Path(models.__file__).parent, folder, dirs_exist_ok=True)
    _write_data(folder)
    torch.manual_seed(0)
    good = models.good()
    save_file(good.state_dict(), folder / "weights.safetensors")
    x, y = torch.rand(1, *SHAPE), torch.tensor([3])
    F.cross_entropy(good(x), y).backward()
    update = {name: p.grad for name, p in good.named_parameters() if p.grad is not None}
    for name, made in updates(update).items():
        if name.endswith(".pt"):
            torch.save(made, folder / name)
        else:
            save_file(made, folder / name)  # type: ignore[arg-type]
    (folder / "text.txt").write_text("no array at all\n")
    (folder / "broken.py").write_text("def make(:\n")
    (folder / "raising.py").write_text("raise RuntimeError('two\\nlines')\n")
    (folder / "leaving.py").write_text("raise SystemExit(0)\n")
    (folder / "empty.py").write_text("")
    task = ("--model", f"{folder}/models.py:good", "--data", f"{folder}/data.npz", "--steps", "2", "--victims", "1")
    _make("audit", *task, "--decoys", "3", "--out", f"{folder}/run")
    _make("sweep", *task, "--attack", "ig", "--out", f"{folder}/store")


def _make(*words: str) -> None:
    seen = attempt(Call("stage", words, sane=True), seconds=120)
    if seen.ending.bad:
        raise RuntimeError(f"{' '.join(words)} ended with {seen.code}: {seen.said}")


def _write_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    held = {}
    for split, many in (("train", 40), ("test", 20)):
        held[f"{split}_images"] = rng.integers(0, 256, (many, 8, 8, 1), dtype=np.uint8)
        held[f"{split}_labels"] = np.arange(many) % 10
    np.savez(folder / "data.npz", **held)
    held["train_labels"] = held["train_labels"].copy()
    held["train_labels"][0] = 1_000_000
    np.savez(folder / "many-classes.npz", **held)
    for name, label in (("one-class", 0), ("negative", -3)):
        np.savez(folder / f"{name}.npz", **held | {f"{split}_labels": np.full(len(held[f"{split}_images"]), label)
                                                  for split in ("train", "test")})  # fmt: skip
    flat = {f"{split}_images": np.full_like(held[f"{split}_images"], 128) for split in ("train", "test")}
    labels = {f"{split}_labels": np.arange(len(held[f"{split}_images"])) % 10 for split in ("train", "test")}
    np.savez(folder / "flat.npz", **flat | labels)
    dots = {f"{split}_images": held[f"{split}_images"][:, :1, :1] for split in ("train", "test")}
    np.savez(folder / "dots.npz", **dots | labels)
    np.savez(folder / "truth.npz", images=held["train_images"][:1], labels=np.array([3]))


def updates(good: dict[str, Tensor]) -> dict[str, object]:
    """{file: what it holds}: the update itself, and what nobody could make of it."""

    def each(change: object) -> dict[str, Tensor]:
        return {name: change(g).contiguous() for name, g in good.items()}  # type: ignore[operator]

    held: dict[str, object] = {
        "update.safetensors": good,
        "halves.safetensors": each(lambda g: g.half()),
        "doubles.safetensors": each(lambda g: g.double()),
        "zeros.safetensors": each(lambda g: 0 * g),
        "huge.safetensors": each(lambda g: 1e30 * g),
        "float8.safetensors": each(lambda g: g.to(torch.float8_e4m3fn)),
        "whole.safetensors": each(lambda g: g.long()),
        "booleans.safetensors": each(lambda g: g > 0),
        "nan.safetensors": each(lambda g: g * torch.nan),
        "infinite.safetensors": each(lambda g: g + torch.inf),
        "flat.safetensors": each(lambda g: g.flatten()),
        "none.safetensors": {},
        "fewer.safetensors": dict(list(good.items())[1:]),
        "more.safetensors": {**good, "more": torch.zeros(3)},
        "empty.safetensors": each(lambda g: g[:0]),
        "complex.pt": each(lambda g: g.to(torch.complex64)),
        "float8.pt": each(lambda g: g.to(torch.float8_e5m2)),
        "sparse.pt": {name: g.to_sparse() for name, g in good.items()},
        "meta.pt": each(lambda g: g.to("meta")),
        "list.pt": list(good.values()),
        "tensor.pt": torch.zeros(3),
        "number.pt": 3,
        "words.pt": dict.fromkeys(good, "word"),
        "nested.pt": {"state_dict": {"inner": good}},
        "numbered.pt": dict(enumerate(good.values())),
    }
    return held


SANE_UPDATES = ("update.safetensors", "halves.safetensors", "doubles.safetensors", "huge.safetensors")
