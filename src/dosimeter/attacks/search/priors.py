"""What images look like before any update is seen: -log p(x) up to constants.

Priors add and scale: `0.01 * TotalVariation() + Other()`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter import checks
from dosimeter.errors import SettingError, unknown
from dosimeter.networks import hooked
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

    varies: ClassVar[tuple[str, ...]] = ()
    """Numbers that candidates of one batch may have of their own; see `together`."""
    title: ClassVar[str] = "prior"
    """What people call it."""

    @property
    def needs_statistics(self) -> bool:
        """Whether clients must send the statistics of their batch norms."""
        return False

    @property
    def siblings(self) -> bool:
        """Whether it compares restarts of the same victim, so that they must run side by side."""
        return False

    def check(self, target: Target) -> None:
        """Refuse a task that this prior has nothing to say about."""

    def settled(self, weigh: Callable[["Prior", Any], "Prior"]) -> "Prior":
        """The same with weights that are open as `weigh(prior, rule)` has them; see `weights`."""
        return self

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

    Inverting Gradients, Eq. 4; anisotropic and on the normalised image in the released program. Differences may be
    squared (`power` 2), `periodic`, so that the last row borders on the first, and summed instead of averaged
    (`total`), as in the Bayes paper's program.
    """

    power: Literal[1, 2] = 1
    periodic: bool = False
    total: bool = False
    title: ClassVar[str] = "total variation"

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise SettingError(f"Total variation takes differences to the power of 1 or 2, got {self.power}.")

    def check(self, target: Target) -> None:
        if min(target.shape[1:]) < 2:
            raise SettingError(
                f"Total variation is a prior for images, but the inputs are vectors of shape {target.shape}; "
                "use another prior (tv=0)."
            )

    def loss(self, view: View) -> Tensor:
        x = view.normalised
        if self.periodic:
            steps = (x.roll(-1, -2) - x, x.roll(-1, -1) - x)
        else:
            steps = (x[..., 1:, :] - x[..., :-1, :], x[..., :, 1:] - x[..., :, :-1])
        down, right = ((s.abs() if self.power == 1 else s.square()).flatten(1) for s in steps)
        return down.sum(1) + right.sum(1) if self.total else down.mean(1) + right.mean(1)


@dataclass(frozen=True, kw_only=True)
class PixelRange(Prior):
    """sum (x - clip(x, 0, 1))^2: pixels are in [0, 1] (Bayes, App. A.4)."""

    def loss(self, view: View) -> Tensor:
        return (view.images - view.images.clamp(0, 1)).square().flatten(1).sum(1)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Prior):
    """sum (x - mean)^2 / (2 std^2): independent numbers of one mean and deviation, in pixels (Bayes, Fig. 4)."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        checks.finite("A prior", "a mean", self.mean)
        checks.positive("A prior", "a std", self.std)

    def loss(self, view: View) -> Tensor:
        return ((view.images - self.mean) / self.std).square().flatten(1).sum(1) / 2


@dataclass(frozen=True, kw_only=True)
class Laplace(Prior):
    """sum |x - mean| / scale: heavier tails than a Gaussian (Bayes, Fig. 4)."""

    mean: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.finite("A prior", "a mean", self.mean)
        checks.positive("A prior", "a scale", self.scale)

    def loss(self, view: View) -> Tensor:
        return ((view.images - self.mean) / self.scale).abs().flatten(1).sum(1)


@dataclass(frozen=True, kw_only=True)
class L2Norm(Prior):
    """|x| of the normalised images (GradInversion, Yin et al. 2021, Eq. 9)."""

    def loss(self, view: View) -> Tensor:
        return view.normalised.flatten(1).square().sum(1).clamp_min(1e-24).sqrt()


@dataclass(frozen=True, kw_only=True)
class BatchNormStatistics(Prior):
    """sum over batch norms of |mean(x) - mean| + |variance(x) - variance| (GradInversion, Yin et al. 2021, Eq. 10).

    Images whose batch has the statistics that the model was trained to see (`of` "running", part of the model) or
    those that the client "sent" of its batch, which the threat model must grant.
    """

    of: Literal["running", "sent"] = "running"

    def __post_init__(self) -> None:
        if self.of not in ("running", "sent"):
            raise SettingError(unknown("batch-norm statistics", self.of, ("running", "sent")))

    @property
    def needs_statistics(self) -> bool:
        return self.of == "sent"

    def check(self, target: Target) -> None:
        norms = [layer for layer in target.model.modules() if isinstance(layer, _BatchNorm)]
        if not norms:
            raise SettingError("A prior on batch-norm statistics needs a model with batch norm; leave it out (bn=0).")
        if self.of == "running" and any(layer.running_mean is None for layer in norms):
            raise SettingError(
                "The model's batch norms keep no running statistics for a prior to compare with; "
                "have clients send theirs (--batch-norm sent) or leave the prior out (bn=0)."
            )

    def loss(self, view: View) -> Tensor:
        assert view.target is not None
        n, batch = view.images.shape[:2]
        apart: list[Tensor] = []

        def note(name: str, layer: _BatchNorm, inputs: tuple[Tensor], _output: Tensor) -> Tensor:
            """Compare what goes in; what comes out is normalised by what it is compared with."""
            (x,) = inputs
            places = x.reshape(n, batch, x.shape[1], -1)  # (N, B, C, places)
            wanted = self._wanted(view, name, layer)
            for found, want in zip((places.mean((1, 3)), places.var((1, 3), correction=0)), wanted, strict=True):
                apart.append((found - want).square().sum(1).clamp_min(1e-24).sqrt())
            mean, variance = (want.reshape(-1, 1, x.shape[1], 1) for want in wanted)
            normal = ((places - mean) * (variance + layer.eps).rsqrt()).reshape(x.shape)
            if not layer.affine:
                return normal
            shape = (1, -1, *[1] * (x.ndim - 2))
            return normal * layer.weight.view(shape) + layer.bias.view(shape)

        with hooked(view.target.model, note, lambda _, layer: isinstance(layer, _BatchNorm)):
            view.target.model(view.images.flatten(0, 1))
        return torch.stack(apart).sum(0)

    def _wanted(self, view: View, name: str, layer: _BatchNorm) -> tuple[Tensor, Tensor]:
        if self.of == "running":
            assert layer.running_mean is not None
            assert layer.running_var is not None
            return layer.running_mean, layer.running_var
        assert view.statistics is not None
        mean, variance = view.statistics[name]
        return mean[view.owner], variance[view.owner]


@dataclass(frozen=True, kw_only=True)
class Group(Prior):
    """|x - mean over the restarts of the same victim| (GradInversion, Yin et al. 2021, Eq. 11): seeds should agree.

    Deviations: the mean is taken pixel by pixel, without first aligning the seeds' images. A restart that left the
    search no longer counts.
    """

    siblings = True

    def loss(self, view: View) -> Tensor:
        assert view.owner is not None
        x = view.normalised.flatten(1)
        among = (view.owner[:, None] == view.owner[None, :]).to(x)  # (N, N)
        mean = (among @ x) / among.sum(1, keepdim=True)
        return (x - mean.detach()).square().sum(1).clamp_min(1e-24).sqrt()


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
    varies = ("weight",)

    def __post_init__(self) -> None:
        checks.at_least("A prior", "a weight", self.weight, 0)

    @property
    def needs_statistics(self) -> bool:
        return self.prior.needs_statistics

    @property
    def siblings(self) -> bool:
        return self.prior.siblings and bool(self.weight)

    def check(self, target: Target) -> None:
        if self.weight:
            self.prior.check(target)

    def settled(self, weigh: Callable[[Prior, Any], Prior]) -> Prior:
        return replace(self, prior=self.prior.settled(weigh))

    def loss(self, view: View) -> Tensor:
        several = isinstance(self.weight, Tensor)  # of which some may be 0
        return self.weight * self.prior.loss(view) if several or self.weight else Prior().loss(view)


@dataclass(frozen=True, kw_only=True)
class Sum(Prior):
    """The sum of several priors' losses: the product of their densities."""

    parts: tuple[Prior, ...]

    @property
    def needs_statistics(self) -> bool:
        return any(part.needs_statistics for part in self.parts)

    @property
    def siblings(self) -> bool:
        return any(part.siblings for part in self.parts)

    def check(self, target: Target) -> None:
        for part in self.parts:
            part.check(target)

    def settled(self, weigh: Callable[[Prior, Any], Prior]) -> Prior:
        return Sum(parts=tuple(part.settled(weigh) for part in self.parts))

    def loss(self, view: View) -> Tensor:
        return torch.stack([part.loss(view) for part in self.parts]).sum(0)


def _parts(prior: Prior) -> tuple[Prior, ...]:
    return prior.parts if isinstance(prior, Sum) else (prior,)
