"""Servers that send another program than was agreed (Inverting Gradients, Sec. 4.3).

All but the reversible blocks compute exactly what the agreed model computes until the first step, so that a look at the
accuracy tells nothing.
"""

import copy
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from dosimeter import checks
from dosimeter.rng import scoped
from dosimeter.servers.base import Tamper, find_classifier
from dosimeter.types import Shape


@dataclass(frozen=True, kw_only=True)
class _Rebuild(Tamper):
    @property
    def weights_only(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class FirstLayer(_Rebuild):
    """A fully connected layer in front, whose gradient is the image times a number (Inverting Gradients, Prop. 1).

    It adds to the image: neuron j to every pixel i with i = j modulo `neurons`. It starts at 0, so nothing is added,
    while its gradient is not 0. As many neurons as pixels make it the square layer that the paper has in mind; few do
    as well.
    """

    neurons: int = 16

    def __post_init__(self) -> None:
        checks.count("The first layer", "neurons", self.neurons)

    def __call__(self, model: nn.Module, *, shape: Shape, batch: int) -> nn.Module:
        return Fronted(copy.deepcopy(model), shape, min(self.neurons, prod(shape)))


class Fronted(nn.Module):
    """model(x + A (W x + b)), where A spreads the neurons over the pixels."""

    def __init__(self, model: nn.Module, shape: Shape, neurons: int) -> None:
        super().__init__()
        self.first = _zeros(prod(shape), neurons, like=next(model.parameters()))
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        times = -(-flat.shape[1] // self.first.out_features)
        added = self.first(flat).repeat(1, times)[:, : flat.shape[1]]
        logits: Tensor = self.model((flat + added).reshape(images.shape))
        return logits


@dataclass(frozen=True, kw_only=True)
class ConcatenatedInput(_Rebuild):
    """The image beside the features that the classifier sees, with weights of 0.

    The classifier's gradient then holds the image, by Prop. 1. It gets a bias where it has none.
    """

    def __call__(self, model: nn.Module, *, shape: Shape, batch: int) -> nn.Module:
        return Concatenated(copy.deepcopy(model), nn.Identity(), find_classifier(model, shape), prod(shape))


@dataclass(frozen=True, kw_only=True)
class ReversibleBlocks(_Rebuild):
    """Reversible blocks before the agreed model, whose output the classifier sees beside the features.

    From the classifier's input, which its gradient gives away, the blocks are computed backwards to the image.

    Args:
        blocks: how many, one after another.
        width: channels inside of each.
        seed: names the stream of their random weights.

    Deviations: the paper does not say where the blocks are. A network that is reversible up to its classifier, such as
    i-RevNet, would replace the agreed one; here it stays, behind the blocks.
    """

    blocks: int = 2
    width: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("blocks", "width"):
            checks.count("A reversible network", key, getattr(self, key))

    def __call__(self, model: nn.Module, *, shape: Shape, batch: int) -> nn.Module:
        with scoped(self.seed, "server"):
            front = nn.Sequential(*(Reversible(shape[0], self.width) for _ in range(self.blocks)))
        front = front.to(next(model.parameters()))
        return Concatenated(copy.deepcopy(model), front, find_classifier(model, shape), prod(shape))


class Concatenated(nn.Module):
    """classifier(body(z), z) with z = front(x)."""

    def __init__(self, model: nn.Module, front: nn.Module, classifier: str, pixels: int) -> None:
        super().__init__()
        old = model.get_submodule(classifier)
        assert isinstance(old, nn.Linear)
        self.front = front
        self.body: nn.Module = nn.Identity()
        if classifier:  # "" where the model is the classifier
            model.set_submodule(classifier, nn.Identity())
            self.body = model
        self.classifier = _zeros(old.in_features + pixels, old.out_features, like=old.weight)
        with torch.no_grad():
            self.classifier.weight[:, : old.in_features] = old.weight
            if old.bias is not None:
                self.classifier.bias.copy_(old.bias)

    def forward(self, images: Tensor) -> Tensor:
        seen = self.front(images)
        logits: Tensor = self.classifier(torch.cat([self.body(seen.clone()), seen.flatten(1)], 1))
        return logits


class Reversible(nn.Module):
    """y = x + odd F(even x), z = y + even G(odd y), on the squares of a checkerboard (additive coupling)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, channels, 3, padding=1))
            for _ in range(2)
        )

    def forward(self, images: Tensor) -> Tensor:
        even, odd = _checkerboard(images)
        images = images + odd * self.first(even * images)
        result: Tensor = images + even * self.second(odd * images)
        return result

    def inverse(self, images: Tensor) -> Tensor:
        """The images that `forward` takes to these."""
        even, odd = _checkerboard(images)
        images = images - even * self.second(odd * images)
        result: Tensor = images - odd * self.first(even * images)
        return result


@dataclass(frozen=True, kw_only=True)
class SeparateWeights(_Rebuild):
    """A copy of all weights for every image of a batch, so that their gradients are not summed.

    The update is then as long as all images' own gradients together, and each can be attacked alone.
    """

    def __call__(self, model: nn.Module, *, shape: Shape, batch: int) -> nn.Module:
        return Separate([copy.deepcopy(model) for _ in range(batch)])


class Separate(nn.Module):
    """Image i goes through copy i; a longer batch begins again at the first copy."""

    def __init__(self, copies: list[nn.Module]) -> None:
        super().__init__()
        self.copies = nn.ModuleList(copies)

    def forward(self, images: Tensor) -> Tensor:
        many = min(len(self.copies), len(images))
        parts = [one(images[place::many]) for place, one in enumerate(list(self.copies)[:many])]
        order = torch.cat([torch.arange(len(images))[place::many] for place in range(many)])
        return torch.cat(parts)[order.argsort().to(images.device)]


def _zeros(inputs: int, outputs: int, *, like: Tensor) -> nn.Linear:
    # Made without numbers, so that torch's own random stream stays where it was.
    layer = nn.Linear(inputs, outputs, device="meta", dtype=like.dtype).to_empty(device=like.device)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return layer


def _checkerboard(images: Tensor) -> tuple[Tensor, Tensor]:
    """(H, W) twice: 1 on the even squares, 1 on the odd ones."""
    rows, columns = (torch.arange(side, device=images.device) for side in images.shape[-2:])
    odd = ((rows[:, None] + columns) % 2).to(images.dtype)
    return 1 - odd, odd
