"""What was found of one victim, and whether it explains the observed update to rounding."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from dosimeter.attacks.base import Found
from dosimeter.attacks.solve.first_layer import in_double
from dosimeter.attacks.solve.ops import Block
from dosimeter.types import Ended, Gradient, Observation, Outcome, Target

IMAGE = "image"

ROUNDING = 1000
"""A certificate allows so many units of rounding of the update's precision: 1.2e-4 in float32, 2.2e-13 in float64.

That is for the update of an image that was solved for, which is off by up to 350 of them where it is right."""

ENTRY_ROUNDING = 100
"""So many units an entry of an update may be off that one pass gave, of size 1 or less; up to 6 were seen."""


class Update:
    """One victim's observed update, and how far an image's is from it.

    Args:
        target: the model, in float64.
        first: the name of the weight that sees the image first.
        observed: {name: gradient} in float64.
        labels: (1,)
        rounding: the precision in which the update was made.
    """

    def __init__(
        self, target: Target, first: str, observed: Gradient, labels: Tensor, *, rounding: torch.dtype
    ) -> None:
        self._target, self._first, self._observed = target, first, observed
        self._labels = labels
        self._parameters = target.parameters
        self.bound = ROUNDING * torch.finfo(rounding).eps

    def mismatch(self, image: Tensor) -> float:
        """The relative error of the simulated update, or of its first layer's weight if that is larger."""
        simulated = self._simulate(image)
        apart = {name: (simulated[name] - g).square().sum() for name, g in self._observed.items()}
        sizes = {name: g.square().sum() for name, g in self._observed.items()}
        whole = sum(apart.values(), torch.zeros(())) / sum(sizes.values(), torch.zeros(()))
        error = float(torch.maximum(whole, apart[self._first] / sizes[self._first]).sqrt())
        return error if error == error else torch.inf

    def refine(self, image_of: Callable[[float], Tensor], scale: float, width: float) -> float:
        """Gauss-Newton in one number, the scale; a step that does not come nearer is halved until it does."""
        return refine(lambda s: self._rest(image_of(s)), scale, nudge=1e-6 * width)

    def _rest(self, image: Tensor) -> Tensor:
        """Simulated minus observed, as one vector."""
        simulated = self._simulate(image)
        return torch.cat([(simulated[name] - g).flatten() for name, g in self._observed.items()])

    def _simulate(self, image: Tensor) -> Gradient:
        if self._target.step is not None:
            return self._target.step(self._target, self._parameters, image[None], self._labels)
        simulated: Gradient = grad(self._target.objective)(self._parameters, image[None], self._labels)
        return simulated


class Solver:
    """The victims of one observation, one after another, in float64."""

    def __init__(self, target: Target, seen: Observation, labels: Tensor) -> None:
        self.target, self.seen, self.labels = target, seen, labels
        self.exact, self.precision = in_double(target), target.mean.dtype

    def update(self, v: int) -> tuple[dict[str, Tensor], Tensor]:
        """The observed update and the labels of a victim, in float64."""
        labels = self.labels[v]
        observed = {name: self.seen.gradient[name][v].double() for name in self.exact.parameters}
        return observed, labels.double() if labels.is_floating_point() else labels


class Walk(NamedTuple):
    """The image at the end of the way down, and {layer: (rank, unknowns)} of its input while all above was exact."""

    image: Tensor  # (C, H, W) the smallest that solves the first layer's equations
    ranks: dict[str, tuple[int, int]]
    fill: Callable[[bool], Tensor] | None = None  # (whether to meet bounds) -> (C, H, W) the smoothest


def judged(
    walk: Walk,
    grey: Tensor,
    mismatch: Callable[[Tensor], float],
    bound: float,
    last: Block,
    observed: Gradient,
) -> Found:
    """The image with the least mismatch, and what the walk that led to it says of it.

    An image is filled where one may explain the update. Where none can, it is filled without bounds, and only if it
    explains more than a blank one and than an update of zeros do.

    Args:
        walk: of one victim.
        grey: (C, H, W) what is shown where nothing is known.
        mismatch: how far an image's update is from the observed one.
        bound: the mismatch up to which an image explains the update.
        last: the block before the loss.
        observed: the update.
    """
    candidates = [(image, mismatch(image)) for image in (walk.image, grey)]
    dense = last.learned.places.numel() == 1
    possible = not dense or may_hold(observed[last.learned.weight].flatten(1), observed, bound)
    if walk.fill is not None and (possible or candidates[0][1] < min(1.0, candidates[1][1])):
        filled = walk.fill(possible)
        candidates[0] = filled, mismatch(filled)
    image, match = min(candidates, key=lambda pair: pair[1])
    rank, unknowns = walk.ranks.get(IMAGE, (0, 0))
    ended = Ended(Outcome.RECOVERED)
    if match > bound or not rank:
        ended = Ended(Outcome.NOT_DETERMINED)
    elif rank < unknowns:
        ended = Ended(Outcome.PARTLY, f"layer by layer: {rank:,} of {unknowns:,} numbers determined")
    return Found(image, match, ended, {name: rank / unknowns for name, (rank, unknowns) in walk.ranks.items()})


def may_hold(weight: Tensor, update: Gradient, bound: float) -> bool:
    """Whether a fully connected layer's gradient (m, n) is near enough to rank one for an image to explain the update.

    The gradient of any one image is of rank one there, so what is beyond it is error, of the whole update's size.
    """
    if not weight.any():
        return True
    unit = direction(weight)
    beyond = torch.linalg.norm(weight - (weight @ unit)[:, None] * unit)
    return bool(beyond <= bound * sum(float(g.square().sum()) for g in update.values()) ** 0.5)


def direction(weight: Tensor) -> Tensor:
    """(n,): the right singular vector of the largest singular value of (m, n), by power iteration from its largest row.

    On a matrix of rank one the first iteration ends it; the others average noise.
    """
    row = weight[weight.square().sum(1).argmax()]
    unit: Tensor = row / torch.linalg.vector_norm(row)
    for _ in range(20):
        before, unit = unit, weight.T @ (weight @ unit)
        unit /= torch.linalg.vector_norm(unit)
        if torch.allclose(unit, before, rtol=0, atol=1e-15):
            break
    return unit


def refine(rest_of: Callable[[float], Tensor], scale: float, *, nudge: float) -> float:
    """The number near `scale` at which the vector `rest_of(scale)` is shortest, by Gauss-Newton."""
    rest = rest_of(scale)
    for _ in range(20):
        slope = (rest_of(scale + nudge) - rest) / nudge
        move = -float(slope @ rest / slope.square().sum())
        before = float(rest.square().sum())
        for _ in range(5):
            trial = rest_of(scale + move)
            after = float(trial.square().sum())
            if after < before:
                break
            move /= 2
        else:
            break
        scale, rest = scale + move, trial
        if after > 0.9 * before:  # what is left is rounding or noise
            break
    return scale
