"""A metric of your own is one value; given once, it stands in records, tables and pages.

dosimeter audit --metric examples/adding/metric.py:EDGES
"""

import torch
from torch import Tensor

import dosimeter as dm


def edges(reconstructed: Tensor, originals: Tensor) -> Tensor:
    """The correlation of horizontal and vertical differences, (n, C, H, W) twice -> (n,)."""

    def drawn(images: Tensor) -> Tensor:
        both = torch.cat([images.diff(dim=-1).flatten(1), images.diff(dim=-2).flatten(1)], 1)
        return both - both.mean(1, keepdim=True)

    a, b = drawn(reconstructed), drawn(originals)
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-12)


EDGES = dm.Metric(name="edges", function=edges, higher=True, label="Edges", about="their correlation, 1 is equal")

if __name__ == "__main__":
    victims = dm.pick(dm.load("mnist-5k", size=32), 2, seed=0)
    model = dm.models.build("cnn", shape=victims.shape, classes=10, mean=(0.13,), std=(0.31,), seed=0)
    attack = dm.presets.inverting_gradients(steps=100)
    print(dm.audit(model, victims, attack=attack, scoring=dm.Scoring(metrics=[EDGES])).summary())  # noqa: T201
