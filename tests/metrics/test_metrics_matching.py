"""Matching recovers an order that was lost, whatever the reconstructions are."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from dosimeter.errors import DataError
from dosimeter.metrics import match_batch, match_batches


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32), st.sampled_from([torch.float32, torch.float64]))
def test_a_random_permutation_is_recovered(batch: int, seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    original = torch.rand(batch, 3, 8, 8, generator=generator, dtype=dtype)
    order = torch.randperm(batch, generator=generator)
    noise = 0.1 * torch.randn(original.shape, generator=generator, dtype=dtype)
    reconstructed = (original + noise)[order]
    perm = match_batch(reconstructed, original)
    assert perm.dtype == torch.long
    assert order[perm].tolist() == list(range(batch))


def test_the_total_is_the_least_of_all_orders() -> None:
    """Unrelated images, where taking the nearest for each in turn would fail."""
    for seed in range(10):
        a, b = torch.rand(2, 5, 1, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        totals = [(a[list(order)] - b).square().sum() for order in itertools.permutations(range(5))]
        torch.testing.assert_close((a[match_batch(a, b)] - b).square().sum(), min(totals))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_a_reconstruction_that_is_not_finite_takes_the_place_left(bad: float) -> None:
    original = torch.rand(4, 1, 6, 6)
    reconstructed = original.flip(0)
    reconstructed[2, 0, 3, 3] = bad
    assert match_batch(reconstructed, original).tolist() == [3, 2, 1, 0]
    nothing = match_batch(torch.full_like(original, bad), original)
    assert sorted(nothing.tolist()) == [0, 1, 2, 3]


def test_updates_are_matched_each_alone() -> None:
    original = torch.rand(3, 4, 1, 5, 5)
    orders = torch.stack([torch.randperm(4) for _ in range(3)])
    reconstructed = torch.take_along_dim(original, orders[:, :, None, None, None], dim=1)
    perm = match_batches(reconstructed, original)
    assert perm.shape == (3, 4)
    restored = torch.take_along_dim(reconstructed, perm[:, :, None, None, None], dim=1)
    torch.testing.assert_close(restored, original)


def test_empty_and_ill_shaped_batches() -> None:
    assert match_batch(torch.zeros(0, 1, 2, 2), torch.zeros(0, 1, 2, 2)).shape == (0,)
    assert match_batches(torch.zeros(0, 3, 1, 2, 2), torch.zeros(0, 3, 1, 2, 2)).shape == (0, 3)
    with pytest.raises(DataError, match="same shape"):
        match_batch(torch.zeros(2, 1, 2, 2), torch.zeros(3, 1, 2, 2))
    with pytest.raises(DataError, match=r"\(V, B, C, H, W\)"):
        match_batches(torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2))


def test_memory_does_not_grow_with_every_pair() -> None:
    """A temporary for each reconstruction left the heap in pieces: 16 GB for 2,048 small images."""
    images = torch.rand(1, 64, 3, 16, 16)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        assert match_batches(images.flip(1), images)[0].tolist() == list(reversed(range(64)))
    asked = sum(max(event.self_cpu_memory_usage, 0) for event in seen.events() or [])
    assert images.nbytes < asked < 20 * images.nbytes  # in all, whether it was given back in between or not
