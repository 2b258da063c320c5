"""Attack the updates that the server kept, and say how many of the clients' images they give away.

python audit.py kept --clients 3
"""

import argparse

from quickstart.task import batch, make

import dosimeter as dm
from dosimeter import flower

options = argparse.ArgumentParser()
options.add_argument("kept", help="the folder that was given to Keep")
options.add_argument("--clients", type=int, default=3)
options.add_argument("--rate", type=float, default=0.1)
options.add_argument("--steps", type=int, default=400)
given = options.parse_args()

attack = dm.presets.inverting_gradients(steps=given.steps, tv=1e-3, labels="counts")
found = flower.audit_kept(given.kept, make(), attack=attack, shape=(1, 28, 28), lr=given.rate)

# Only here does the truth come in, which the auditor of an own app has.
read = 0
for kept, images in found:
    truth, _ = batch(kept.metrics["partition-id"], given.clients, kept.round, kept.examples)
    guess = images.images[0][dm.metrics.match_batch(images.images[0], truth)]
    scores = dm.metrics.ssim(guess, truth)
    read += int((scores > 0.5).sum())
    print(f"round {kept.round}, node {kept.node}: SSIM {', '.join(f'{s:.2f}' for s in scores.tolist())}")  # noqa: T201
print(f"{read} of {sum(kept.examples for kept, _ in found)} images read (SSIM above 0.5)")  # noqa: T201
