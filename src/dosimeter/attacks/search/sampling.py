"""Points around a candidate."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dosimeter import checks


@dataclass(frozen=True, kw_only=True)
class Ball:
    """Uniform in the ball of radius `delta` around the images, in pixels of [0, 1] (Bayes, Eq. 3 and Alg. 1).

    The integral of the adversary's log-density over the ball becomes the mean over `samples` points (k in the paper).
    """

    delta: float
    samples: int = 1

    def __post_init__(self) -> None:
        checks.at_least("A ball", "a radius delta", self.delta, 0)
        checks.count("A ball", "samples", self.samples, most=10_000)

    def draw(self, samples: int, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """(samples, *shape): how far each point is from the centre."""
        flat = torch.randn(samples, *shape, generator=rng, dtype=torch.float64).flatten(1)
        share = torch.rand(samples, 1, generator=rng, dtype=torch.float64) ** (1 / flat.shape[1])
        away: Tensor = self.delta * share * flat / flat.norm(dim=1, keepdim=True)
        return away.reshape(samples, *shape)
