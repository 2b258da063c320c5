"""CMA-ES for many candidates: one strategy each, all their populations evaluated as one batch."""

import hashlib
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dosimeter import checks
from dosimeter.attacks.search.stepping import Evaluate, Optimiser, per_row
from dosimeter.errors import SettingError
from dosimeter.rng import numpy_stream

WORST = 1e30
"""What a point counts whose loss is not finite."""


class Strategies(NamedTuple):
    """A strategy for every candidate that began; `of` are those whose candidates are still there."""

    of: Tensor  # (N,) places in `all`
    all: list[Any]  # cma.CMAEvolutionStrategy, which change with every step


@dataclass(frozen=True, kw_only=True)
class CMAES(Optimiser[Strategies]):
    """Covariance matrix adaptation (Hansen 2016), by the package `cma`: a search that needs no slopes.

    A step draws a population around every candidate's mean, evaluates them all at once and adapts. A candidate stands
    at the best point that its strategy has seen, at first at the mean it starts from. Its random numbers are named by
    where it starts, so batch mates do not change them. Schedules have no effect: strategies adapt their own step size.

    Args:
        population: points that a step draws for each candidate.
        sigma: their deviation in every direction at first.
    """

    population: int = 50
    sigma: float = 1.0

    def __post_init__(self) -> None:
        checks.count("CMA-ES", "a population", self.population, least=4, most=100_000)
        checks.positive("CMA-ES", "a sigma", self.sigma)

    def init(self, x: Tensor) -> Strategies:
        rows = x.detach().cpu().double().flatten(1).numpy()
        if rows.shape[1] < 2:
            raise SettingError("CMA-ES needs at least 2 unknowns, got 1; use another optimiser.")
        return Strategies(torch.arange(len(x), device=x.device), [self._begin(row) for row in rows])

    def step(
        self, x: Tensor, slope: Tensor, scale: Tensor, state: Strategies, *, loss: Tensor, evaluate: Evaluate
    ) -> tuple[Tensor, Strategies]:
        mine = [state.all[place] for place in state.of.tolist()]
        asked = [np.stack(strategy.ask()) for strategy in mine]  # (population, D) each
        points = torch.from_numpy(np.concatenate(asked)).to(x).reshape(-1, *x.shape[1:])
        who = torch.arange(len(x), device=x.device).repeat_interleave(self.population)
        found, _ = evaluate(points, who, slopes=False)
        losses = torch.nan_to_num(found.double(), nan=WORST, posinf=WORST).reshape(len(x), -1)
        for strategy, drawn, told in zip(mine, asked, losses.cpu().numpy(), strict=True):
            strategy.tell(list(drawn), told.tolist())
        best = losses.argmin(1)
        better = losses.gather(1, best[:, None])[:, 0] < loss
        chosen = points.reshape(len(x), self.population, *x.shape[1:])[torch.arange(len(x), device=x.device), best]
        return torch.where(per_row(better, x), chosen, x), state

    def _begin(self, mean: NDArray[np.float64]) -> Any:
        stream = numpy_stream(0, "cma-es", hashlib.sha256(mean.tobytes()).hexdigest())
        settings = {
            "popsize": self.population,
            "randn": lambda rows, columns: stream.standard_normal((rows, columns)),
            "seed": np.nan,  # the package would seed numpy's global generator
            "verbose": -10,  # and write files and read one
            "verb_log": 0,
            "CMA_eigenmethod": _eigh,
        }
        return _package().CMAEvolutionStrategy(mean, self.sigma, settings)


@cache
def _package() -> Any:
    """The package, loaded when it is needed, which takes a second; it warns where its plots lack matplotlib."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Could not import matplotlib")
        return import_module("cma")


def _eigh(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eigenvalues and vectors by torch, on this thread alone; numpy's wants all cores and waits long for busy ones."""
    values, vectors = torch.linalg.eigh(torch.from_numpy(matrix))
    return values.numpy(), vectors.numpy()
