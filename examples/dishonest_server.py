"""A server permutes the rows of a trained classifier: what it gains by that, and how a client notices.

    python examples/dishonest_server.py [data set] [epochs] [steps of the attack]

The victims are those images whose gradient the trained model made smallest. The weights of both models are kept as
agreed.safetensors and sent.safetensors.
"""

import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import dosimeter as dm

name, epochs, steps = [*sys.argv[1:], *("mnist-5k", "1", "50")[len(sys.argv) - 1 :]]
dataset = dm.load(name, size=32)
images, labels = dataset.images("train", range(dataset.count("train"))), torch.from_numpy(dataset.labels("train"))
mean, std = dataset.statistics()
model = dm.models.build("cnn", shape=dataset.shape, classes=10, mean=mean, std=std, seed=0)

optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
torch.manual_seed(0)
for _ in range(int(epochs)):
    for rows in torch.randperm(len(images)).split(64):
        optimiser.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()

with torch.no_grad():
    output = torch.cat([model(part) for part in images.split(1000)])
right = (output.argmax(1) == labels).float().mean()
easiest = F.cross_entropy(output, labels, reduction="none").argsort()[:8]  # the smallest loss, the smallest gradient
victims = dm.pick(dataset, indices=easiest)
print(f"{right:.1%} of the training images are classified right")  # noqa: T201

server = dm.servers.PermutedRows()
sent = server(model, shape=dataset.shape, batch=1)
for file, weights in (("agreed", model), ("sent", sent)):
    save_file(weights.state_dict(), f"{file}.safetensors")

attack = dm.presets.inverting_gradients(steps=int(steps))
for tamper in (dm.servers.Honest(), server):
    print(dm.audit(model, victims, attack=attack, server=tamper).summary())  # noqa: T201

for finding in dm.servers.check(sent, shape=dataset.shape, agreed=model, history=[model.state_dict()]):
    print(*finding, sep=": ")  # noqa: T201
