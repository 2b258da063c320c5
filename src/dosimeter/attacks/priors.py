"""What images look like before any update is seen: -log p(x) up to constants.

Priors add and scale: `0.01 * TotalVariation() + Other()`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.errors import SettingError
from dosimeter.types import Statistics, Target


class View(NamedTuple):
    """What a prior may look at."""

    images: Tensor  # (N, B, C, H, W) in the range of pixels, [0, 1]
    normalised: Tensor  # (N, B, C, H, W) as the first layer after normalisation sees them
    labels: Tensor | None = None  # (N, B) classes or (N, B, classes) probabilities that the attack takes for right
    target: Target | None = None  # the model, for priors that ask it
    owner: Tensor | None = None  # (N,) the victim that each candidate wants to be
    statistics: Statistics | None = None  # {layer: (V, C) twice} of batch norms, where clients sent them


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Every image is as likely as any other; the start of all priors."""

    @property
    def needs_statistics(self) -> bool:
        """Whether clients must send the statistics of their batch norms."""
        return False

    def check(self, target: Target) -> None:
        """Refuse a task that this prior has nothing to say about."""

    def loss(self, view: View) -> Tensor:
        """(N,)"""
        return torch.zeros_like(view.images[:, 0, 0, 0, 0])

    def __rmul__(self, weight: float) -> "Prior":
        return Scaled(weight=weight, prior=self)

    def __add__(self, other: "Prior") -> "Prior":
        return Sum(parts=(*_parts(self), *_parts(other)))


@dataclass(frozen=True, kw_only=True)
class TotalVariation(Prior):
    """mean |x[i+1, j] - x[i, j]| + mean |x[i, j+1] - x[i, j]|, on the normalised images of a batch.

    Inverting Gradients, Eq. 4; anisotropic and on the normalised image in the released program.
    """

    def check(self, target: Target) -> None:
        if min(target.shape[1:]) < 2:
            raise SettingError(
                f"Total variation is a prior for images, but the inputs are vectors of shape {target.shape}; "
                "use another prior (tv=0)."
            )

    def loss(self, view: View) -> Tensor:
        x = view.normalised
        down = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).mean(1)
        right = (x[..., :, 1:] - x[..., :, :-1]).abs().flatten(1).mean(1)
        return down + right


@dataclass(frozen=True, kw_only=True)
class Prediction(Prior):
    """|softmax F(x) - y|^2, summed over classes and images: the model should recognise the image (CPL, Alg. 1)."""

    def loss(self, view: View) -> Tensor:
        assert view.target is not None
        assert view.labels is not None
        predicted = view.target.model(view.images.flatten(0, 1)).softmax(-1)  # (N * B, classes)
        labels = view.labels.flatten(0, 1)
        true = F.one_hot(labels, predicted.shape[1]) if labels.ndim == 1 else labels
        apart: Tensor = (predicted - true).square().sum(1)
        return apart.reshape(view.images.shape[:2]).sum(1)


@dataclass(frozen=True, kw_only=True)
class Scaled(Prior):
    """weight * prior."""

    weight: float
    prior: Prior

    @property
    def needs_statistics(self) -> bool:
        return self.prior.needs_statistics

    def check(self, target: Target) -> None:
        if self.weight:
            self.prior.check(target)

    def loss(self, view: View) -> Tensor:
        return self.weight * self.prior.loss(view) if self.weight else Prior().loss(view)


@dataclass(frozen=True, kw_only=True)
class Sum(Prior):
    """The sum of several priors' losses: the product of their densities."""

    parts: tuple[Prior, ...]

    @property
    def needs_statistics(self) -> bool:
        return any(part.needs_statistics for part in self.parts)

    def check(self, target: Target) -> None:
        for part in self.parts:
            part.check(target)

    def loss(self, view: View) -> Tensor:
        return torch.stack([part.loss(view) for part in self.parts]).sum(0)


def _parts(prior: Prior) -> tuple[Prior, ...]:
    return prior.parts if isinstance(prior, Sum) else (prior,)
