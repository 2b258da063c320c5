"""What knowing the right densities is worth (Bayes, Sec. 6, Fig. 4 and App. A.6, Fig. 7)."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter import clients, files, models, rng, trees
from dosimeter.attacks import Search, Stop
from dosimeter.attacks.search import likelihoods, optimisers, priors, schedules
from dosimeter.data import GaussianTask
from dosimeter.studies.study import Row, Study
from dosimeter.types import Observation, Target

SCALE = 0.1
"""Of the Laplace noise on the update."""

BALLS = Study(
    name="balls",
    question="Do more points in the ball of radius 9 make the search converge faster (Fig. 7)?",
    rows=tuple(
        Row(
            model="cnn-bayes",
            data="mnist",
            attack=f"bayes:density=gaussian,scale=0.1,delta=9,k={k}",
            defense="noise:sigma=0.1",
            victims=32,
            steps=steps,
        )
        for steps in (25, 50, 100, 200)
        for k in (1, 4, 16)
    ),
    columns=("model", "attack", "defense", "data", "steps", "PSNR", "without the update", "SSIM", "images read"),
)


class Distance(NamedTuple):
    """How far an attack's points end from the truth, over all victims."""

    prior: str
    density: str
    mean: float
    error: float  # standard error of the mean
    more: float  # than the attack that has both right, victim by victim
    more_error: float


def compare_densities(points: int = 1000, steps: int = 400, *, folder: str | Path | None = None) -> Iterator[Distance]:
    """Four attacks on Laplace noise and points of a Gaussian: each of the two right or taken for the other (Fig. 4).

    A 2-layer perceptron on 20 numbers, noise of scale 0.1, untrained. The wrong density and the wrong prior have the
    right one's variance. The first of the four has both right.

    Args:
        points: victims.
        steps: of every search, from two starts.
        folder: where `densities.json` is written once all are done.
    """
    target, seen, truth = _observe(points)
    found: list[Distance] = []
    right: Tensor | None = None
    for prior, law in (("Gaussian", priors.Gaussian()), ("Laplace", priors.Laplace(scale=0.5**0.5))):
        densities: dict[str, likelihoods.Likelihood | likelihoods.Entrywise] = {
            "Laplace": likelihoods.Laplace(scale=SCALE),
            "Gaussian": likelihoods.Gaussian(sigma=SCALE * 2**0.5),
        }
        for density, likelihood in densities.items():
            search = Search(
                name="bayes",
                likelihood=likelihood,
                prior=law,
                optimiser=optimisers.Adam(lr=0.1),
                schedule=schedules.Exponential(factor=0.99),
                moves=(),
                restarts=2,
                stop=Stop(steps=steps),
            )
            away = (search(target, [seen], seed=0).images - truth).flatten(1).norm(dim=1)
            right = away if right is None else right
            found.append(Distance(prior, density, *_mean(away), *_mean(away - right)))
            yield found[-1]
    if folder is not None:
        rows = [row._asdict() for row in found]
        files.replace_json(Path(folder) / "densities.json", {"points": points, "steps": steps, "rows": rows})


def distances_as_markdown(found: list[Distance]) -> str:
    """The table that stands in the documents."""
    lines = [
        "| prior | density of the update | distance to the truth | more than the right pair |",
        "|---|---|---|---|",
    ]
    for row in found:
        away, more = f"{row.mean:.4f} ± {row.error:.4f}", f"{row.more:+.4f} ± {row.more_error:.4f}"
        lines.append(f"| {row.prior} | {row.density} | {away} | {more} |")
    return "\n".join(lines)


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


def _mean(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / len(values) ** 0.5)
