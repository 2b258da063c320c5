"""What knowing the right densities is worth (Bayes, Sec. 6, Fig. 4 and App. A.6, Fig. 7)."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from dosimeter import files
from dosimeter.papers.densities import DENSITIES, PRIORS, away_of
from dosimeter.studies.study import Row, Study

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
    found: list[Distance] = []
    right: Tensor | None = None
    for prior in PRIORS:
        for density in DENSITIES:
            away = away_of(prior, density, points=points, steps=steps, restarts=2)
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


def _mean(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / len(values) ** 0.5)
