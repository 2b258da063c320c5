"""What knowing the right densities is worth on points of a Gaussian (Bayes, Sec. 6, Fig. 4)."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter import clients, models, rng, trees
from dosimeter.attacks import Search, Stop
from dosimeter.attacks.search import likelihoods, optimisers, priors, schedules
from dosimeter.data import GaussianTask
from dosimeter.types import Observation, Target

SCALE = 0.1
"""Of the Laplace noise on the update."""

PRIORS: Mapping[str, priors.Prior] = {"Gaussian": priors.Gaussian(), "Laplace": priors.Laplace(scale=0.5**0.5)}
DENSITIES: Mapping[str, likelihoods.Likelihood | likelihoods.Entrywise] = {
    "Laplace": likelihoods.Laplace(scale=SCALE),
    "Gaussian": likelihoods.Gaussian(sigma=SCALE * 2**0.5),
}
"""The first of each is right; the wrong ones have its variance."""


class Away(NamedTuple):
    """How far points are from the truth after so many steps, over all victims."""

    step: int
    mean: float
    error: float  # standard error of the mean


def distances(prior: str, density: str, *, points: int, steps: Sequence[int], restarts: int = 1) -> list[Away]:
    """Of one attack on Laplace noise and points of a Gaussian, at several numbers of steps.

    A 2-layer perceptron on 20 numbers, noise of scale 0.1, untrained. The rate of the search depends on the step alone,
    so that a search of fewer steps is the beginning of one of more.
    """
    found = []
    for many in steps:
        away = away_of(prior, density, points=points, steps=many, restarts=restarts)
        found.append(Away(many, float(away.mean()), float(away.std(correction=len(away) > 1) / len(away) ** 0.5)))
    return found


def away_of(prior: str, density: str, *, points: int, steps: int, restarts: int) -> Tensor:
    """(points,) distances to the truth at the end of a search."""
    target, seen, truth = _observe(points)
    search = Search(
        name="bayes",
        likelihood=DENSITIES[density],
        prior=PRIORS[prior],
        optimiser=optimisers.Adam(lr=0.1),
        schedule=schedules.Exponential(factor=0.99),
        moves=(),
        restarts=restarts,
        stop=Stop(steps=steps),
    )
    found = search(target, [seen], seed=0)
    if found.interrupted:  # a search hears Ctrl-C and gives what it has by then, which is not what was asked for
        raise KeyboardInterrupt
    away: Tensor = (found.images - truth).flatten(1).norm(dim=1)
    return away


@cache
def _observe(points: int) -> tuple[Target, Observation, Tensor]:
    """The task, what the server sees of it, and the truth (V, 1, 1, 1, 20)."""
    task = GaussianTask()
    victims = task.draw(points, seed=1)
    model = models.build("mlp-2", shape=task.shape, classes=task.classes, mean=(0.0,), std=(1.0,), seed=0)
    target = Target(model.eval(), F.cross_entropy, task.shape, torch.zeros(1, 1, 1), torch.ones(1, 1, 1))

    def update(images: Tensor, labels: Tensor, name: str) -> dict[str, Tensor]:
        stream = rng.stream(0, "defense", name)
        sent = clients.gradient(target, images, labels)
        shares = {k: torch.rand(g.shape, generator=stream, dtype=torch.float64) - 0.5 for k, g in sent.items()}
        noise = {k: -u.sign() * torch.log1p(-2 * u.abs().clamp_max(0.5 - 1e-12)) for k, u in shares.items()}
        return {k: g + SCALE * noise[k].to(g) for k, g in sent.items()}

    batches = zip(victims.images, victims.labels, victims.ids, strict=True)
    seen = trees.stack((update(*batch) for batch in batches), points)
    return target, Observation(seen, 1, victims.ids, victims.labels), victims.images
