"""What a client's batch norms see of its batch, for clients that send it along with the update."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter.errors import ModelError
from dosimeter.networks import hooked
from dosimeter.types import Target


def statistics(target: Target, images: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """{layer: (mean (C,), variance (C,))} of what goes into every batch norm, in one pass of the batch.

    The variance is the one that batch norm divides by, sum (x - mean)^2 / n, not the one with n - 1 that it adds to its
    running variance (Ioffe and Szegedy, arXiv:1502.03167, Alg. 1 and 2).

    Args:
        target: the client's model, at the weights it was sent.
        images: (B, C, H, W) in [0, 1].
    """
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str, _layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if name in seen:
            raise ModelError(f"The batch norm {name!r} is used twice in one pass, so it has no one mean to send.")
        (x,) = inputs
        axes = [axis for axis in range(x.ndim) if axis != 1]
        seen[name] = (x.mean(axes), x.var(axes, correction=0))

    with torch.no_grad(), hooked(target.model, note, lambda _, layer: isinstance(layer, _BatchNorm), before=True):
        target.model(images)
    return seen
