"""One small audit of each kind, really run."""

from dataclasses import replace

import pytest
import torch

from dosimeter import auditing, models
from dosimeter.attacks import presets
from dosimeter.types import Victims


def small_audit(channels: int, victims: int, batch: int) -> auditing.Result:
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(victims, batch, channels, 32, 32, generator=rng)
    labels = torch.arange(victims * batch).reshape(victims, batch) % 10
    indices = 1000 + torch.arange(victims * batch).reshape(victims, batch)
    ids = tuple(f"train:{'+'.join(map(str, row))}" for row in indices.tolist())
    scale = {"mean": (0.5,) * channels, "std": (0.25,) * channels}
    model = models.build("cnn", shape=(channels, 32, 32), classes=10, seed=0, **scale)
    whole = auditing.Audit(
        model=model,
        victims=Victims(images, labels, indices, ids),
        attack=presets.inverting_gradients(steps=3, labels="idlg" if batch == 1 else "known"),
        names={"model": "cnn", "data": "noise"},
        resources=auditing.Resources(progress=False),
        scoring=auditing.Scoring(decoys=torch.rand(9, channels, 32, 32, generator=rng)),
    )
    return auditing.perform(whole)


@pytest.fixture(scope="session")
def colour() -> auditing.Result:
    """Five updates of one image, labels recovered."""
    return small_audit(3, 5, 1)


@pytest.fixture(scope="session")
def grey() -> auditing.Result:
    """Two updates of three grey images, labels granted, the command known."""
    return replace(small_audit(1, 2, 3), command="dosimeter audit --data 'noise & more'")
