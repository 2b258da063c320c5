"""ATS (Gao et al. 2021): train on images that were changed so that their gradients say little of the originals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from dosimeter.channel import Path
from dosimeter.defenses.base import Defense
from dosimeter.defenses.operations import AUTOAUGMENT, VARIANTS, Operation
from dosimeter.errors import SettingError, unknown
from dosimeter.progress import Advance
from dosimeter.types import Shape

Policy = tuple[int, ...]
Named = Literal["released", "autoaugment"]


@dataclass(frozen=True, kw_only=True)
class Ats(Defense):
    """Automatic transformation search: every image goes through the operations of a policy before the client trains.

    `policy` is one of the paper's, as places in the list of 50 joined by "-"; several joined by "+" are drawn from at
    random for every image (its hybrid): "7-4-15" and "21-13-3" are best for a ConvNet on CIFAR-100 (Bayes, App. A.2).
    `search_policies` finds others, `dosimeter search-policies` on the command line.

    Deviations: the paper takes its list from AutoAugment and prints no magnitudes. `variant="released"` has those of
    its program (github.com/gaow0007/ATSPrivacy: policy.py, autoaugment.py, benchmark/comm.py), for which its policies
    were found: half as wide enhancements, black moved in, rotations in one direction, and a random crop (4 black pixels
    around) and mirror before them, as it does for CIFAR-100 and Fashion-MNIST but not for ImageNet.
    `variant="autoaugment"` has AutoAugment's magnitudes and neither. In both every operation is applied, with a random
    direction where it has one.
    """

    policy: str = "7-4-15"
    variant: Named = "released"

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise SettingError(unknown("variant of ATS", self.variant, VARIANTS))
        self.policies()

    def policies(self) -> tuple[Policy, ...]:
        """The policies that are drawn from."""
        try:
            found = tuple(tuple(int(place) for place in one.split("-")) for one in self.policy.split("+"))
        except ValueError:
            found = ()
        if not found or any(place >= len(AUTOAUGMENT) for one in found for place in one):
            raise SettingError(
                f"A policy of ATS is places of 0 to {len(AUTOAUGMENT) - 1} joined by -, as 7-4-15, or several of them "
                f"joined by +, got {self.policy!r}."
            )
        return found

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        choices = self.policies()
        drawn = torch.randint(len(choices), (len(images),), generator=rng).tolist()
        changed = [transform(image, choices[at], rng, self.variant) for image, at in zip(images, drawn, strict=True)]
        return torch.stack(changed), labels

    def changes(self, shape: Shape) -> tuple[Path, ...]:
        return tuple(_stages(policy, shape, self.variant) for policy in self.policies())


def _stages(policy: Policy, shape: Shape, variant: Named) -> tuple[tuple[Operation, ...], ...]:
    """What an image goes through, with all that may be drawn for it."""
    kind = VARIANTS[variant]
    return (*kind.before(), *(kind.options(place, shape) for place in policy))


def transform(image: Tensor, policy: Policy, rng: torch.Generator, variant: Named = "released") -> Tensor:
    """One image (C, H, W) in [0, 1] after all operations of a policy, in steps of 1/255 as files have them."""
    pixels = (image.clamp(0, 1) * 255).round().byte().cpu().numpy()
    grey = len(pixels) == 1
    picture = Image.fromarray(pixels[0] if grey else np.moveaxis(pixels, 0, -1))
    channels, down, across = image.shape
    for options in _stages(policy, (channels, down, across), variant):
        picture = _drawn(options, rng).picture(picture)
    array = np.asarray(picture)
    changed = torch.from_numpy(array.copy()).to(image) / 255
    return changed[None] if grey else changed.permute(2, 0, 1)


def _drawn(options: Sequence[Operation], rng: torch.Generator) -> Operation:
    if len(options) > 2:
        return options[int(torch.randint(len(options), (), generator=rng))]
    return options[0 if torch.rand((), generator=rng) < 0.5 else -1]  # drawn even where there is no choice


class Scored(NamedTuple):
    """A policy with the paper's two scores: the first should be small, the second large."""

    policy: Policy
    leakage: float  # S_pri: mean similarity of gradients on the way from the changed image to noise
    accuracy: float  # S_acc: how apart a network without training keeps the images

    @property
    def words(self) -> str:
        """As `Ats` takes it."""
        return "-".join(map(str, self.policy))


def search_policies(
    half_trained: nn.Module,
    untrained: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    candidates: int = 100,
    length: int = 3,
    keep: float = 0.5,
    variant: Named = "released",
    rng: torch.Generator,
    advance: Advance | None = None,
) -> list[Scored]:
    """Random policies with a high S_acc, by how little their gradients leak, S_pri, best first (Gao et al. 2021).

    Args:
        half_trained: what leakage is scored on, in the paper trained on a tenth of the data; in evaluation mode.
        untrained: what accuracy is scored on, in evaluation mode too.
        images, labels: (n, C, H, W) in [0, 1] of the defender's own, at least 2.
        candidates: how many policies are tried.
        length: operations in each.
        keep: the share of the candidates, those with the highest S_acc, whose leakage is scored.
        variant: what their places stand for; see `Ats`.
        rng: what policies and starts are drawn from.
        advance: told how many of these are scored.

    Deviations: the released program keeps S_acc of at least -85, which is for its images of CIFAR-100, and a share of
    the candidates is kept here. Its S_pri is a mean of every tensor's cosine, here it is one of the whole gradient.
    """
    if len(images) < 2 or min(candidates, length) < 1 or not 0 < keep <= 1:
        raise SettingError(
            "A search for policies needs 2 images, 1 candidate and 1 operation or more, and a share to keep above 0 "
            f"and at most 1, got {len(images)}, {candidates}, {length} and {keep}."
        )
    drawn = []
    for _ in range(candidates):
        policy = tuple(torch.randint(len(AUTOAUGMENT), (length,), generator=rng).tolist())
        changed = torch.stack([transform(image, policy, rng, variant) for image in images])
        drawn.append((_keeps_apart(untrained, changed), policy, changed))
    drawn.sort(key=lambda one: -one[0])
    kept = drawn[: math.ceil(keep * candidates)]
    found = []
    for at, (accuracy, policy, changed) in enumerate(kept, 1):
        found.append(Scored(policy, _leakage(half_trained, changed, labels, rng), accuracy))
        if advance is not None:
            advance(at, total=len(kept))
    return sorted(found, key=lambda scored: scored.leakage)


def _leakage(model: nn.Module, changed: Tensor, labels: Tensor, rng: torch.Generator, points: int = 10) -> float:
    """Mean over images and points of the cosine of the gradients at the image and on its way to noise."""
    total = 0.0
    for image, label in zip(changed, labels, strict=True):
        noise = torch.rand(image.shape, generator=rng).to(image)
        there = _gradient(model, image, label)
        for at in range(points):
            share = at / points
            here = _gradient(model, (1 - share) * noise + share * image, label)
            total += float(F.cosine_similarity(here, there, dim=0))
    return total / points / len(changed)


def _gradient(model: nn.Module, image: Tensor, label: Tensor) -> Tensor:
    loss = F.cross_entropy(model(image[None].clone()), label[None])
    weights = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights, materialize_grads=True)])


def _keeps_apart(model: nn.Module, images: Tensor) -> float:
    """-sum log(v) + 1 / v over eigenvalues v of the correlations of images' Jacobians (Mellor et al. 2021)."""
    x = images.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(model(x.clone()).sum(), x)
    correlations = torch.corrcoef(slopes.flatten(1).double()).nan_to_num()  # a slope of 0 everywhere has none
    values = torch.linalg.eigvalsh(correlations).clamp_min(0) + 1e-5
    return -float((values.log() + 1 / values).sum())
