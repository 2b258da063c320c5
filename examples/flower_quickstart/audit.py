"""Audit the updates that the server kept beside the truth, which the owner of an app has.

python audit.py kept --clients 3
"""

import argparse

import torch
from quickstart.task import batch, make

import dosimeter as dm
from dosimeter import flower

options = argparse.ArgumentParser()
options.add_argument("kept", help="the folder that was given to Keep")
options.add_argument("--clients", type=int, default=3)
options.add_argument("--steps", type=int, default=400)
given = options.parse_args()

truth = {}
for kept in flower.read_kept(given.kept):
    images, labels = batch(int(kept.metrics["partition-id"]), given.clients, kept.round, kept.examples)
    truth[kept.round, kept.node] = dm.Victims(images[None], labels[None], torch.arange(len(labels))[None], ("own",))

beside = flower.Beside(truth=truth)  # for scores alone
found = flower.audit(given.kept, make(), shape=(1, 28, 28), attack=f"ig:tv=0.001,steps={given.steps}", beside=beside)
for each in found.entries:
    print(f"round {each.round}, {each.client}: SSIM {each.ssim:.2f}")  # noqa: T201
print(found.verdict.sentence)  # noqa: T201
