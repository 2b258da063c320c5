"""Normalisation as a layer, so that images stay in [0, 1] everywhere else; batch norm by what it sees or is told."""

import types
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


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


def use_batch_statistics(model: nn.Module) -> None:
    """Turn every batch norm of the model, in place, to the mean and variance of the batch before it.

    It then does in evaluation what it does in training, without running statistics: the model's output is a pure
    function of parameters and batch, as `torch.func` needs it. In these networks an image's output depends on its
    batch, and a layer that sees one value per channel (a batch of one before `BatchNorm1d`) refuses it.

    This is the client of the threat model's `statistics="batch"`; the running statistics and their names in
    `state_dict` are gone afterwards.
    """
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.track_running_stats = False
            layer.running_mean = None
            layer.running_var = None
            layer.num_batches_tracked = None


def use_given_statistics(model: nn.Module) -> None:
    """Turn every batch norm of the model, in place, to a mean and variance that come with every call.

    They take the place of the running statistics (`torch.func.functional_call` exchanges these for a call), which are
    NaN until then, so that nothing can be computed with others by mistake. This is the attacker of the threat model's
    `statistics="sent"`.
    """
    like = next(model.parameters())
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()
            layer.track_running_stats = True
            layer.running_mean = like.new_full((layer.num_features,), torch.nan)
            layer.running_var = layer.running_mean.clone()
            setattr(layer, "forward", types.MethodType(_as_told, layer))  # noqa: B010


def _as_told(layer: _BatchNorm, x: Tensor) -> Tensor:
    """Normalise by the given mean and variance, with the slopes of those of the batch at hand."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = (1, -1, *[1] * (x.ndim - 2))
    mean = anchored(x.mean(axes), layer.running_mean)
    variance = anchored(x.var(axes, correction=0), layer.running_var)
    normal = (x - mean.view(shape)) * (variance.view(shape) + layer.eps).rsqrt()
    return normal * layer.weight.view(shape) + layer.bias.view(shape) if layer.affine else normal


def anchored(own: Tensor, told: Tensor) -> Tensor:
    """The value that was told with the slope of one's own.

    A client differentiates through the statistics of its batch. Whoever simulates it with the values that it sent but
    without their slopes gets another update even from the true images.
    """
    return own + (told - own).detach()
