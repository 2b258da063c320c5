"""A defense of your own is one frozen dataclass; it meets every attack that follows from what it does to updates.

dosimeter audit --defense examples/adding/defense.py:Sketch:share=0.3 --attack auto
dosimeter calibrate --defense examples/adding/defense.py:Sketch
"""

from dataclasses import dataclass

import torch

import dosimeter as dm


@dataclass(frozen=True, kw_only=True)
class Sketch(dm.Defense):
    """Send every entry with probability `share`, scaled so that the mean over rounds is right."""

    share: float = 0.5

    def on_gradient(self, gradient, moment, rng):
        def kept(g):
            return torch.rand(g.shape, generator=rng) < self.share

        return {name: torch.where(kept(g), g / self.share, 0) for name, g in gradient.items()}

    def strengths(self):
        """What `dosimeter calibrate` turns up, from weak to strong. What it does to updates is measured."""
        return {"share": (0.9, 0.5, 0.2, 0.1, 0.05, 0.01)}


if __name__ == "__main__":
    victims = dm.pick(dm.load("mnist-5k", size=32), 2, seed=0)
    model = dm.models.build("cnn", shape=victims.shape, classes=10, mean=(0.13,), std=(0.31,), seed=0)
    attack = dm.presets.inverting_gradients(steps=100)
    print(dm.audit(model, victims, attack=attack, defense=Sketch(share=0.3)).summary())  # noqa: T201
