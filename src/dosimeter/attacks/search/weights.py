"""How much a prior counts, where that is left to the task: picked before any search, from what the attacker has.

    Balanced    as far as the network's own match bears it, on images that the attacker draws for itself
    ByTokens    one of two numbers, as in CVB's program

No victim's update is looked at, let alone its image: a weight is the same for all of them and for every seed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter import rng
from dosimeter.attacks.search.priors import Prior, View
from dosimeter.networks import has_tokens
from dosimeter.types import Observation, Shape, Target, Untold

if TYPE_CHECKING:
    from dosimeter.attacks.search.search import Search

UPDATES, IMAGES = 4, 4
"""That are made to weigh a prior, twice each, of blurred images too; and images of each, at most."""


class Picked(NamedTuple):
    """A weight, and why it is that."""

    weight: float
    why: str


class Rule:
    """The start of all rules by which a weight is picked."""

    def pick(self, search: "Search", prior: Prior, target: Target, batch: int) -> Picked:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Open(Prior):
    """A prior whose weight is picked once the task is known; `Search.fitted` puts the weighed prior in its place."""

    prior: Prior
    rule: Rule

    def check(self, target: Target) -> None:
        self.prior.check(target)

    def settled(self, weigh: Callable[[Prior, Any], Prior]) -> Prior:
        return weigh(self.prior, self.rule)

    def loss(self, view: View) -> Tensor:
        raise AssertionError("A prior whose weight is open says nothing of images.")


@dataclass(frozen=True, kw_only=True)
class ByTokens(Rule):
    """One weight for networks of tokens, such as ViTs, and another for all others."""

    tokens: float
    others: float

    def pick(self, search: "Search", prior: Prior, target: Target, batch: int) -> Picked:
        found = has_tokens(target.model, target.shape)
        return Picked(self.tokens, "a network of tokens") if found else Picked(self.others, "a network without tokens")


@dataclass(frozen=True, kw_only=True)
class Balanced(Rule):
    """A share of the weight at which the objective would as soon have a blurred image as the true one, and `most`,

        w = min(most, share * median over updates of  D(g(blurred x), g(x)) / (R(x) - R(blurred x))),

    with the search's own match D on the tensors that it matches, and the prior R. Beyond that weight the objective
    prefers blurred images; networks differ in it by orders of magnitude, since their gradients tell fine detail more or
    less loudly. The images are drawn (`leaves`), and so are their labels. It is the order of magnitude that counts, so
    the weight is rounded to 1 or 3 times a power of 10, and no rounding of gradients changes a search.

    `most` is also the weight where there is nothing to weigh: no update is matched, or labels of a user's own loss
    cannot be drawn.
    """

    share: float = 0.1
    most: float = 1e-2

    def pick(self, search: "Search", prior: Prior, target: Target, batch: int) -> Picked:
        if not target.classification:
            return Picked(self.most, "the usual one, since labels of the task's own loss cannot be drawn")
        try:
            found = self.share * sorted(ratios(search, prior, target, batch))[(UPDATES - 1) // 2]
        except (RuntimeError, ValueError, IndexError) as reason:  # labels of another form, say; a search may still do
            return Picked(self.most, f"the usual one, since an update cannot be made: {str(reason).splitlines()[0]}")
        if not 0 < found < math.inf:
            return Picked(self.most, "the usual one, since the match does not tell blurred images from true ones")
        found = _rounded(found)
        if found >= self.most:
            return Picked(self.most, "the usual one, at which the match still tells blurred images from true ones")
        return Picked(found, "since the usual one would blur images of the attacker's own")


def ratios(search: "Search", prior: Prior, target: Target, batch: int) -> list[float]:
    """For every update of images drawn, the weight at which the objective would as soon have these blurred."""
    target = replace(target, step=None) if isinstance(target.step, Untold) else target
    batch, found = min(batch, IMAGES), []
    for number in range(UPDATES):
        draws = rng.stream(0, "weights", number)
        images = torch.stack([leaves(target.shape, draws) for _ in range(batch)]).to(target.mean)
        labels = _labels(target, images, draws)
        known = replace(target, drawn=_drawn(target, batch, draws))
        true, blurred = (_seen(known, each, labels) for each in (images, blur(images)))
        gap = search.apart(target, [blurred], [true])
        rough, smooth = (_loss(prior, each, target) for each in (images, blur(images)))
        found.append(float(gap.detach() / (rough - smooth)))
    return found


def _rounded(weight: float) -> float:
    """The nearest 1 or 3 times a power of 10, by its logarithm."""
    power, half = divmod(round(2 * math.log10(weight)), 2)
    return float(f"{3 if half else 1}e{power}")


def leaves(shape: Shape, draws: torch.Generator, many: int = 60) -> Tensor:
    """An image (C, H, W) of discs that fall on one another, of one colour each and of all sizes: density 1 / r^3.

    "Dead leaves" (Lee, Mumford and Huang 2001) have the edges and the spectrum of photographs.
    """
    channels, height, width = shape
    down, right = torch.arange(height)[:, None], torch.arange(width)[None]
    least, largest = 0.05 * min(height, width), 0.5 * min(height, width)
    image = torch.rand(channels, 1, 1, generator=draws).expand(shape)
    for _ in range(many):
        size, y, x = torch.rand(3, generator=draws).tolist()
        squared = 1 / ((1 - size) / least**2 + size / largest**2)
        inside = (down - y * height).square() + (right - x * width).square() < squared
        image = torch.where(inside, torch.rand(channels, 1, 1, generator=draws), image)
    return image


def blur(images: Tensor) -> Tensor:
    """The mean over 3x3 pixels, (B, C, H, W)."""
    soft: Tensor = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return soft


def _labels(target: Target, images: Tensor, draws: torch.Generator) -> Tensor:
    with torch.no_grad():
        classes = target.model(images).shape[1]
    return torch.randint(classes, (len(images),), generator=draws).to(images.device)


def _drawn(target: Target, batch: int, draws: torch.Generator) -> dict[str, Tensor]:
    wanted = {name: secret.full_shape(batch) for name, secret in target.secrets.items()}
    return {name: torch.randn(shape, generator=draws).to(target.mean) for name, shape in wanted.items()}


def _seen(target: Target, images: Tensor, labels: Tensor) -> Observation:
    """The update of one client of the attacker's own, who draws no order and adds no noise."""
    if target.step is None:
        update = target.gradient(images, labels)
    else:
        update = dict(target.step(target, target.parameters, images, labels))
    return Observation({name: g.detach()[None] for name, g in update.items()}, len(images), ("own",))


def _loss(prior: Prior, images: Tensor, target: Target) -> Tensor:
    return prior.loss(View(images=images[None], normalised=((images - target.mean) / target.std)[None], target=target))
