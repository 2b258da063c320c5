"""Small targets to attack and what a server sees of them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import clients, models, trees
from dosimeter.types import Observation, Target


def target_of(model: nn.Module, shape: tuple[int, int, int], dtype: torch.dtype = torch.float64) -> Target:
    model = model.to(dtype).eval()
    mean, std = models.normalisation(model, shape[0])
    return Target(model, F.cross_entropy, shape, mean.to(dtype), std.to(dtype))


def tiny_target(seed: int = 0, shape: tuple[int, int, int] = (1, 6, 6)) -> Target:
    """A smooth network small enough for hundreds of steps, in float64."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(36 * shape[0], 24), nn.Sigmoid(), nn.Linear(24, 5))
    return target_of(nn.Sequential(models.Normalise((0.4,), (0.3,)), layers), shape)


def network() -> nn.Module:
    """Two convolutions and two linear layers for images of 1x16x16."""
    torch.manual_seed(0)
    return nn.Sequential(
        models.Normalise((0.4,), (0.3,)),
        nn.Conv2d(1, 4, 5, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(24, 12),
        nn.Sigmoid(),
        nn.Linear(12, 5),
    )


class Scale(nn.Module):
    """A single number that is learnt, which no layer known to the engine has."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Halved(nn.Module):
    """A network on images that it halves first, in the tensor that it is given or in one of its own."""

    def __init__(self, network: nn.Module, *, in_place: bool) -> None:
        super().__init__()
        self.network, self.in_place = network, in_place

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x.mul_(0.5) if self.in_place else x * 0.5)
        return out


def observe(target: Target, images: Tensor, labels: Tensor, *, granted: bool = True) -> Observation:
    """What a server sees of steps on images (V, B, C, H, W)."""
    seen = trees.stack([clients.gradient(target, x.to(target.mean), y) for x, y in zip(images, labels, strict=True)])
    ids = tuple(f"train:{i}" for i in range(len(images)))
    return Observation(seen, images.shape[1], ids, labels if granted else None)


def _nowhere(x: Tensor, who: Tensor, *, slopes: bool = True) -> tuple[Tensor, Tensor]:
    raise AssertionError("this optimiser looks nowhere else")


ALONG: Any = {"loss": torch.zeros(0), "evaluate": _nowhere}
"""What a step of an optimiser is given that makes no use of it."""


NARROW: dict[str, dict[str, object]] = {
    "cnn": {"width": 4},
    "cnn-bayes": {"width": 4, "hidden": (8,)},
    "convbig": {"width": 4, "hidden": (12, 8)},
    "convnet": {"width": 4},
    "biglinear": {"width": 2},
    "vit": {"width": 16, "heads": 4},
    "vit-released": {"width": 16, "heads": 4, "hidden": 16},
    "vit-ti": {"width": 12, "depth": 3},
    "vit-s": {"width": 12, "depth": 3},
    **{name: {"width": 16} for name in models.BY_NAME if name.startswith("mlp")},
    **{name: {"width": 1 / 16} for name in models.BY_NAME if name.startswith(("resnet", "vgg"))},
    **{name: {"width": 1 / 4} for name in models.BY_NAME if name.startswith(("resnet20", "resnet32"))},
}
"""Settings that make every model of the list small, with its structure as it is."""
