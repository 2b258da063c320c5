"""Steps other than one gradient: local training (FedAvg) and per-example clipping (DP-SGD).

Both are pure and differentiable in the batch, so that an attack can simulate them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter.errors import SettingError
from dosimeter.types import Gradient, Target


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Several steps of SGD on the client, (theta_0 - theta_T) / lr (Inverting Gradients, Eq. 8).

    With one step this is the gradient. The batch is cut into `batches` parts, which the steps go through in turn.
    """

    steps: int
    lr: float
    batches: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batches < 1 or not (self.lr > 0 and math.isfinite(self.lr)):
            raise SettingError(
                f"Local training needs at least 1 step, 1 batch and a learning rate above 0, got {self}."
            )

    def __call__(self, target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
        if len(images) % self.batches:
            raise SettingError(f"{len(images)} images cannot be cut into {self.batches} local batches of equal size.")
        parts = list(zip(images.chunk(self.batches), labels.chunk(self.batches), strict=True))
        # The sum of the slopes rather than the difference of the weights, which would lose digits at small rates.
        total = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for step in range(self.steps):
            now = {name: value - self.lr * total[name] for name, value in parameters.items()}
            slope = grad(target.objective)(now, *parts[step % self.batches])
            total = {name: value + slope[name] for name, value in total.items()}
        return total


@dataclass(frozen=True, kw_only=True)
class ClippedGradient:
    """The mean of per-example gradients, each scaled down to norm `bound` at most (DP-SGD, without its noise)."""

    bound: float

    def __post_init__(self) -> None:
        if not (self.bound > 0 and math.isfinite(self.bound)):
            raise SettingError(f"Clipping needs a bound above 0, got {self.bound}.")

    def __call__(self, target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
        if any(isinstance(m, _BatchNorm) and m.running_mean is None for m in target.model.modules()):
            raise SettingError(
                "Clipping needs every image's own gradient, but batch norm by the batch mixes the images; "
                "use running statistics."
            )
        each = vmap(grad(target.objective), in_dims=(None, 0, 0))(parameters, images.unsqueeze(1), labels.unsqueeze(1))
        norms = (
            torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).clamp_min(1e-24).sqrt()
        )  # (B,)
        scale = (self.bound / norms).clamp_max(1.0)
        return {name: torch.einsum("b,b...->...", scale, g) / len(images) for name, g in each.items()}
