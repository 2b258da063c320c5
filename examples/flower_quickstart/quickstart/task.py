"""What is learned: the model, who has which images, and one round of local training."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import load


class Net(nn.Module):
    """Two convolutions and two linear layers for digits of 28x28."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, stride=2)
        self.conv2 = nn.Conv2d(8, 16, 5, stride=2)
        self.fc1 = nn.Linear(16 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def make() -> Net:
    """The untrained model, the same for all."""
    torch.manual_seed(0)
    return Net()


@cache
def digits(split: str) -> tuple[Tensor, Tensor]:
    """4,000 digits to train on or 1,000 to test with, in [0, 1], in an order that mixes the classes."""
    dataset = load("mnist-5k")
    order = torch.randperm(dataset.count(split), generator=torch.Generator().manual_seed(0)).numpy()
    return dataset.images(split, order), torch.from_numpy(dataset.labels(split)[order])


def batch(client: int, clients: int, round_: int, size: int) -> tuple[Tensor, Tensor]:
    """The images that a client has collected since its last round."""
    images, labels = digits("train")
    own = torch.arange(client, len(labels), clients)
    places = own[torch.arange(round_ * size, (round_ + 1) * size) % len(own)]
    return images[places], labels[places]


def train(model: Net, rule: torch.optim.Optimizer, images: Tensor, labels: Tensor, epochs: int, size: int) -> float:
    """Local epochs; the loss of the last batch."""
    model.train()
    for _ in range(epochs):
        for x, y in zip(images.split(size), labels.split(size), strict=True):
            rule.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            rule.step()
    return float(loss.detach())


def accuracy(model: Net) -> float:
    """On the digits that no client has."""
    images, labels = digits("test")
    with torch.inference_mode():
        return float((model(images).argmax(1) == labels).float().mean())
