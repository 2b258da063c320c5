"""A defense of your own is one frozen dataclass with one method; it meets every attack at once."""

from dataclasses import dataclass

import torch
from torch import nn

import dosimeter as dm


@dataclass(frozen=True, kw_only=True)
class TopK(dm.Defense):
    """Send only the largest entries of every tensor."""

    keep: float

    def on_gradient(self, gradient, moment, rng):
        def prune(g):
            floor = g.abs().flatten().quantile(1 - self.keep)
            return torch.where(g.abs() >= floor, g, 0)

        return {name: prune(g) for name, g in gradient.items()}


model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
victims = dm.pick(dm.load("mnist-5k"), 4, seed=0)
attack = dm.presets.inverting_gradients(steps=300)
for defense in (TopK(keep=0.5), TopK(keep=0.01), TopK(keep=0.5) | dm.defenses.GaussianNoise(sigma=0.01)):
    print(dm.audit(model, victims, attack=attack, defense=defense).summary())  # noqa: T201
