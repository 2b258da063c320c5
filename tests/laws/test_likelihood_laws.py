"""What every likelihood obeys, over random gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dosimeter.attacks import likelihoods
from dosimeter.engine import Products

ALL = [likelihoods.Cosine(), likelihoods.SquaredL2()]


def products(simulated: torch.Tensor, observed: torch.Tensor) -> Products:
    """(N, P, entries) twice -> products."""
    return Products(
        (simulated * observed).sum(-1),
        simulated.square().sum(-1),
        observed.square().sum(-1),
        (simulated - observed).square().sum(-1),
    )


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
@given(seed=st.integers(0, 10_000), apart=st.floats(1e-3, 10))
def test_smallest_where_simulated_equals_observed(likelihood: likelihoods.Likelihood, seed: int, apart: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    observed, other = torch.randn(2, 4, 3, 5, generator=generator, dtype=torch.float64)
    best = likelihood.loss(products(observed, observed))
    assert best.shape == (4,)
    assert torch.allclose(best, torch.zeros(4, dtype=torch.float64), atol=1e-12)
    assert (likelihood.loss(products(observed + apart * other, observed)) > best).all()


@pytest.mark.parametrize("likelihood", ALL, ids=repr)
def test_a_gradient_of_zero_gives_a_finite_loss_and_slope(likelihood: likelihoods.Likelihood) -> None:
    simulated = torch.zeros(2, 1, 3, requires_grad=True)
    loss = likelihood.loss(products(simulated, torch.ones(2, 1, 3)))
    (slope,) = torch.autograd.grad(loss.sum(), simulated)
    assert loss.isfinite().all()
    assert slope.isfinite().all()


def test_cosine_forgets_length_and_l2_does_not() -> None:
    torch.manual_seed(0)
    observed = torch.randn(3, 2, 4)
    assert torch.allclose(likelihoods.Cosine().loss(products(7 * observed, observed)), torch.zeros(3), atol=1e-6)
    assert (likelihoods.SquaredL2().loss(products(7 * observed, observed)) > 1).all()
