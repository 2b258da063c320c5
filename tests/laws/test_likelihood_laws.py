"""What every likelihood obeys, over random gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dosimeter.attacks.search import likelihoods
from dosimeter.defenses.entries import prune, quantise
from dosimeter.engine import Products

ALL = [likelihoods.Cosine(), likelihoods.MeanCosine(), likelihoods.MeanChord(), likelihoods.SquaredL2()]


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
    rounded = 1e-3 if isinstance(likelihood, likelihoods.MeanChord) else 0  # the floor under its root
    assert torch.allclose(best, torch.full((4,), rounded, dtype=torch.float64), atol=1e-7)
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


def test_a_chord_is_the_distance_of_unit_vectors() -> None:
    torch.manual_seed(0)
    one, other = torch.randn(2, 3, 2, 4, dtype=torch.float64)
    apart = (one / one.norm(dim=-1, keepdim=True) - other / other.norm(dim=-1, keepdim=True)).norm(dim=-1).mean(1)
    assert torch.allclose(likelihoods.MeanChord().loss(products(one, other)), apart, atol=1e-5)


@given(seed=st.integers(0, 10_000), ratio=st.floats(0.1, 0.9))
def test_pruned_and_rounded_updates_are_explained_by_what_they_were(seed: int, ratio: float) -> None:
    truth = torch.randn(2, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pruned = torch.stack([prune(row, ratio) for row in truth])
    rounded = torch.stack([quantise(row, 5) for row in truth])
    cases = ((likelihoods.Survived(), pruned), (likelihoods.Interval(step=1 / 15), rounded))
    for likelihood, observed in cases:
        assert torch.allclose(likelihood.entry_loss(truth, observed), torch.zeros(2, dtype=torch.float64), atol=1e-20)
        assert (likelihood.entry_loss(2 * truth, observed) > 0.01).all()
    # An entry that was pruned may be anything up to the smallest that was not.
    gone = pruned == 0
    bound = torch.where(gone, torch.inf, pruned.abs()).amin(1, keepdim=True)
    moved = torch.where(gone, 0.99 * bound, truth)
    assert torch.allclose(likelihoods.Survived().entry_loss(moved, pruned), torch.zeros(2, dtype=torch.float64))
