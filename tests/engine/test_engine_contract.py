"""Low-rank factors, the three forms of a tensor's products, and losses over every entry."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import engine
from dosimeter.attacks.search import likelihoods
from dosimeter.engine import contract
from dosimeter.engine.contract import Contraction, Row, factor
from dosimeter.engine.layers import Outer
from engine.test_engine_oracle import (
    CLASSES,
    SEEN,
    Case,
    assert_close,
    each_way,
    make,
    plain_gradients,
    plain_products,
    ways_of,
)

few = settings(max_examples=25, deadline=None)


def low_rank(rank: int, outputs: int, inputs: int, victims: int = 2) -> Tensor:
    left = torch.randn(victims, outputs, rank, dtype=torch.float64)
    return left @ torch.randn(victims, rank, inputs, dtype=torch.float64)


@few
@given(
    true=st.integers(0, 6),
    asked=st.integers(1, 6),
    outputs=st.integers(1, 20),
    inputs=st.integers(1, 20),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_factors_of_a_matrix_of_low_rank_are_exact(
    true: int, asked: int, outputs: int, inputs: int, seed: int, scale: float
) -> None:
    assume(true <= asked)
    torch.manual_seed(seed)
    matrices = scale * low_rank(true, outputs, inputs)
    found = factor(matrices, asked)
    assert found is not None
    left, right = found
    assert left.shape[:2] == (2, outputs)
    assert right.shape[::2] == (2, inputs)
    assert left.shape[2] == right.shape[1] <= max(asked + 4, 1)
    assert_close(left @ right, matrices, 1e-12)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("noise", [1e-10, 1e-3, 1.0])
def test_a_matrix_of_higher_rank_has_no_factors(rank: int, noise: float) -> None:
    torch.manual_seed(0)
    matrices = low_rank(rank, 20, 30)
    assert factor(matrices, rank) is not None
    noisy = matrices.clone()
    noisy[1] += noise * torch.randn(20, 30, dtype=torch.float64)  # one victim is enough
    assert factor(noisy, rank) is None
    assert factor(low_rank(rank + 8, 20, 30), rank) is None


def outer(candidates: int, batch: int, places: int, inputs: int, outputs: int) -> Outer:
    sizes = (candidates, batch * places, inputs), (candidates, batch * places, outputs)
    a, d = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes)
    return Outer("weight", a, d)


def slopes(row: Row, part: Outer) -> list[Tensor]:
    scalar = (row.cross * torch.arange(1, len(row.cross) + 1)).sum() + 0.3 * row.squared.sum()
    return list(torch.autograd.grad(scalar, [part.inputs, part.back], retain_graph=True))


@few
@given(batch=st.integers(1, 3), places=st.integers(1, 2), seed=st.integers(0, 10_000))
def test_the_three_forms_agree_on_the_same_data(batch: int, places: int, seed: int) -> None:
    torch.manual_seed(seed)
    part = outer(4, batch, places, 40, 30)
    observed, owner = low_rank(batch * places, 30, 40, victims=3), torch.tensor([2, 0, 1, 1])
    factored = Contraction(observed, [part], entries=False)
    dense = Contraction(observed, [part], entries=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract, "factor", lambda matrices, rank: None)
        gram = Contraction(observed, [part], entries=False)
    assert (factored.form, dense.form, gram.form) == ("factored", "dense", "Gram")
    written = torch.einsum("npo,npi->noi", part.back, part.inputs)
    wanted = Row(
        (written * observed[owner]).sum((1, 2)),
        written.square().sum((1, 2)),
        (written - observed[owner]).square().sum((1, 2)),
    )
    for form in (factored, dense, gram):
        for rows in ([0, 1, 2, 3], [3, 1]):
            kept = torch.tensor(rows)
            found = form([part._replace(inputs=part.inputs[kept], back=part.back[kept])], owner[kept])
            for one, other in zip(found[:2], wanted[:2], strict=True):
                assert_close(one.detach(), other[kept].detach(), 1e-10)
        whole = form([part], owner)
        for one, other in zip(slopes(whole, part), slopes(wanted, part), strict=True):
            assert_close(one, other, 1e-10)
    apart = dense([part], owner).apart
    assert apart is not None
    assert wanted.apart is not None
    assert_close(apart.detach(), wanted.apart.detach(), 1e-12)


def test_forms_follow_from_shapes_and_noise() -> None:
    torch.manual_seed(0)
    exact, noisy = low_rank(1, 30, 40), torch.randn(2, 30, 40, dtype=torch.float64)

    def form(observed: Tensor, places: int) -> str:
        return Contraction(observed, [outer(2, 1, places, 40, 30)], entries=False).form

    assert form(exact, 1) == "factored"
    assert form(noisy, 1) == "Gram"
    assert form(exact, 200) == "dense"


def network() -> nn.Module:
    """A tensor for every form: windows, native kernels, outer products, vectors, positions."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2, groups=2), nn.GroupNorm(2, 4), nn.Flatten())
    return model.extend([nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, CLASSES)])


def plain_entries(case: Case) -> tuple[Tensor, Tensor]:
    """L1 of every tensor (N, P) and the slope of a weighted sum of them."""
    x = case.images.clone().requires_grad_()
    rows = []
    for image, labels, victim in zip(x, case.labels, case.owner.tolist(), strict=True):
        found = plain_gradients(case.target, image, labels, create_graph=True)
        rows.append(torch.stack([(g - case.observed[name][victim]).abs().sum() for name, g in found.items()]))
    wanted = torch.stack(rows)
    (slope,) = torch.autograd.grad(weighted(wanted), x)
    return wanted.detach(), slope


def weighted(losses: Tensor) -> Tensor:
    return (losses * torch.linspace(0.5, 1.5, losses.numel(), dtype=losses.dtype).reshape(losses.shape)).sum()


@pytest.mark.parametrize("way", [None, "tape", "vmap", "one by one"])
@pytest.mark.parametrize("at_once", [None, 1, 150])
@pytest.mark.parametrize("batch", [1, 3])
def test_l1_over_entries_is_that_of_gradients_written_out(
    way: str | None, at_once: int | None, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once is not None:
        monkeypatch.setattr(contract, "ENTRIES_AT_ONCE", at_once)  # one candidate at a time, or two of small tensors
    case = make(network(), (2, 6, 6), batch=batch, seen="noisy")
    wanted, slope = plain_entries(case)
    matcher = engine.Matcher(case.target, case.observed, way=way)  # type: ignore[arg-type]
    x = case.images.clone().requires_grad_()
    found = matcher.entries(x, case.labels, case.owner, likelihoods.L1().entry_loss)
    assert_close(found.detach(), wanted)
    assert_close(torch.autograd.grad(weighted(found), x)[0], slope)
    kept = torch.tensor([3, 0])
    again = matcher.entries(case.images[kept], case.labels[kept], case.owner[kept], likelihoods.L1().entry_loss)
    assert_close(again.detach(), wanted[kept])


@pytest.mark.parametrize("seen", SEEN)
def test_squares_of_entries_are_the_exact_difference(seen: str) -> None:
    case = make(network(), (2, 6, 6), batch=2, seen=seen)
    matcher = engine.Matcher(case.target, case.observed, exact=True)
    found = matcher.entries(case.images, case.labels, case.owner, lambda s, o: (s - o).square().sum(1))
    assert_close(found.detach(), matcher(case.images, case.labels, case.owner).difference.detach(), 1e-12)


@each_way
@pytest.mark.parametrize("batch", [1, 3])
def test_the_exact_difference_does_not_cancel_near_the_truth(way: str | None, batch: int) -> None:
    near = near_truth(make(network(), (2, 6, 6), batch=batch), 1e-7)
    matcher = ways_of(near, way, exact=True)
    if matcher is None:
        return
    found, wanted = matcher(near.images, near.labels, near.owner), plain_products(near)[0]
    assert float((wanted.difference / wanted.observed).detach().max()) < 1e-10
    assert torch.allclose(found.difference, wanted.difference, rtol=1e-6, atol=0)


def near_truth(case: Case, distance: float) -> Case:
    """Candidates that are their victims but for a little."""
    truth = case.images.clone()
    seen = [plain_gradients(case.target, x, y) for x, y in zip(truth, case.labels, strict=True)]
    observed = {name: torch.stack([g[name] for g in seen]) for name in seen[0]}
    shifted = truth + distance * torch.randn_like(truth)
    return case._replace(observed=observed, images=shifted, owner=torch.arange(len(truth)))


def test_the_exact_difference_in_single_precision_is_near_that_in_double() -> None:
    single = near_truth(make(network(), (2, 6, 6), batch=2, dtype=torch.float32), 1e-3)
    matcher = engine.Matcher(single.target, single.observed, exact=True)
    found = matcher(single.images, single.labels, single.owner).difference.detach().sum(1).double()
    double = make(network(), (2, 6, 6), batch=2)
    images, observed = single.images.double(), {name: g.double() for name, g in single.observed.items()}
    wanted = plain_products(double._replace(labels=single.labels, images=images, observed=observed, owner=single.owner))
    difference = wanted[0].difference.detach().sum(1)
    assert float((difference / wanted[0].observed.detach().sum(1)).max()) < 1e-4
    assert torch.allclose(found, difference, rtol=1e-2, atol=0)


@each_way
def test_nothing_is_left_at_the_truth(way: str | None) -> None:
    there = near_truth(make(network(), (2, 6, 6), batch=3), 0.0)
    matcher = ways_of(there, way, exact=True)
    if matcher is None:
        return
    found = matcher(there.images, there.labels, there.owner)
    assert float((found.difference / found.observed).detach().max()) < 1e-24
