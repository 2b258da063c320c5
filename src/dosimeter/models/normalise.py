"""Normalisation as a layer, so that images stay in [0, 1] everywhere else."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalise(nn.Module):
    """(x - mean) / std per channel, for images (B, C, H, W) in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def normalisation(model: nn.Module, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and deviation (C, 1, 1) that the model's `Normalise` layer applies; 0 and 1 where it has none."""
    for layer in model.modules():
        if isinstance(layer, Normalise):
            return layer.mean.expand(channels, 1, 1), layer.std.expand(channels, 1, 1)
    return torch.zeros(channels, 1, 1), torch.ones(channels, 1, 1)
