"""No reader comes nearer than the dose says, compared like with like: along what the update determines, in its measure.

Of readers that know noise and prior the posterior mean has the least expected e^T M e, tr M (P + M)^-1. Directions that
stay hidden do not count, so that it does not matter by what an attack fills them.
"""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from dosimeter.doses import White, algebra
from dosimeter.doses.case import case_of
from dosimeter.doses.compare import compared, excess_of, forced
from dosimeter.doses.updates import measured_update
from dosimeter.types import Victims

SHAPE, STD, MANY = (1, 6, 6), 0.12, 10


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Sigmoid(), nn.Linear(20, 5))


def folded() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 5))


def convolved() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(24, 5))


MODELS: dict[str, Callable[[], nn.Module]] = {"wide": wide, "folded": folded, "convolved": convolved}
SIGMAS = (1e-4, 1e-3, 1e-2)


def made(model: str) -> tuple[nn.Module, Victims]:
    torch.manual_seed(0)
    network = MODELS[model]().double()
    images = (0.5 + STD * torch.randn(MANY, 1, *SHAPE)).clamp(0, 1)
    places = torch.arange(MANY)[:, None]
    return network, Victims(images, places % 5, places, tuple(f"test:{i}" for i in range(MANY)))


def likeliest(model: nn.Module, image: Tensor, label: Tensor, sigma: float, noise: torch.Generator) -> Tensor:
    """The likeliest image by noise and prior, by Gauss-Newton from the truth, beyond which no attack goes."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def update(flat: Tensor) -> Tensor:
        def loss(values: dict[str, Tensor]) -> Tensor:
            out = torch.func.functional_call(model, values, (flat.reshape(1, *SHAPE),))
            return nn.functional.cross_entropy(out, label)

        return torch.cat([g.flatten() for g in torch.func.grad(loss)(parameters).values()])

    at = image.flatten().double()
    clean = update(at)
    seen = clean + sigma * torch.randn(len(clean), generator=noise, dtype=torch.float64)
    for _ in range(8):
        slope = torch.func.jacrev(update)(at)
        assert isinstance(slope, Tensor)
        left = slope.T @ (seen - update(at)) / sigma**2 - (at - 0.5) / STD**2
        at = at + torch.linalg.solve(slope.T @ slope / sigma**2 + torch.eye(36, dtype=torch.float64) / STD**2, left)
    return at


@cache
def ratios(model: str, sigma: float, louder: float = 1.0) -> tuple[float, float]:
    """Mean over images of the likeliest image's e^T M e over the least expected, and the deviation of that mean.

    `louder` is how many times the noise the dose is told of.
    """
    network, victims = made(model)
    prior, noise = White(std=STD), torch.Generator().manual_seed(1)
    case = case_of(network, victims, defense=f"noise:sigma={sigma * louder}", prior=prior)
    found = []
    for v in range(MANY):
        matrix = measured_update(case, victims, v).matrix
        behind = algebra.posterior(matrix, case.known.precision, case.known.log_precision)
        least = forced(matrix, case.known.precision, behind.covariance)
        error = likeliest(network, victims.images[v, 0], victims.labels[v], sigma, noise) - victims.images[v].flatten()
        found.append(10 ** (excess_of(error, matrix, least) / 10))
    values = torch.tensor(found)
    return float(values.mean()), float(values.std()) / math.sqrt(MANY)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("model", MODELS)
def test_the_best_reader_is_as_far_off_as_the_dose_says_and_no_nearer(model: str, sigma: float) -> None:
    ratio, spread = ratios(model, sigma)
    assert ratio > 1 - 3 * spread
    assert ratio < 1.5 + 3 * spread


@pytest.mark.parametrize("model", MODELS)
def test_a_dose_that_is_wrong_by_a_factor_of_two_breaks_the_law(model: str) -> None:
    ratio, spread = ratios(model, 1e-3, 2.0)
    assert ratio < 1 - 3 * spread


@pytest.mark.parametrize("model", MODELS)
def test_no_attack_of_ours_beats_it(model: str) -> None:
    network, victims = made(model)
    attacks = ("analytic", "bayes:density=gaussian,scale=SIGMA,steps=STEPS")
    how = {"name": model, "defense": "none", "sigmas": SIGMAS, "attacks": attacks, "prior": White(std=STD)}
    rows = list(compared(network.float(), victims, **how, steps=60))  # type: ignore[arg-type]
    assert len(rows) == MANY * len(SIGMAS)
    for sigma in SIGMAS:
        reached = torch.tensor([10 ** ((row.excess or 0) / 10) for row in rows if row.sigma == sigma])
        assert all(row.attack for row in rows)
        assert float(reached.mean()) > 1 - 3 * float(reached.std()) / math.sqrt(MANY)
        assert float(reached.min()) > 0.2  # nor on any image by what chance does not give
