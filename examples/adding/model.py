"""A model of your own is any nn.Module that takes images in [0, 1]; a function makes it.

dosimeter audit --model examples/adding/model.py:small:width=16 --data mnist-5k
"""

from torch import nn

import dosimeter as dm


def small(*, width: int = 8, classes: int = 10) -> nn.Module:
    """Two convolutions and a linear layer, with the normalisation that its training used in front."""
    return nn.Sequential(
        dm.models.Normalise((0.13,), (0.31,)),
        nn.Conv2d(1, width, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 16, classes),
    )


if __name__ == "__main__":
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    attack = dm.presets.inverting_gradients(steps=100)
    print(dm.audit(small(), victims, attack=attack).summary())  # noqa: T201
