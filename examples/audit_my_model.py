"""Audit a model of your own: does one update of it give a private image away?"""

from torch import nn

import dosimeter as dm

model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
victims = dm.pick(dm.load("mnist-5k"), 4, seed=0)
result = dm.audit(model, victims, attack=dm.presets.inverting_gradients(steps=300), seed=0)
print(result.summary())  # noqa: T201
