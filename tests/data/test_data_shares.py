"""Splits over clients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dosimeter.data import partition
from dosimeter.errors import SettingError


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    share=st.floats(0, 1),
    alpha=st.none() | st.floats(0, 1e9, exclude_min=True),
    seed=st.integers(0, 10),
)
def test_parts_are_disjoint_cover_all_and_none_is_empty(labels, share, alpha, seed):
    clients = 1 + int(share * (len(labels) - 1))
    parts = partition(np.array(labels), clients, alpha=alpha, seed=seed)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 1
    if alpha is None:
        assert max(sizes) - min(sizes) <= 1
    again = partition(np.array(labels), clients, alpha=alpha, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_another_seed_gives_another_split():
    labels = np.arange(100) % 10
    for alpha in (None, 0.5):
        a, b = (np.concatenate(partition(labels, 4, alpha=alpha, seed=seed)) for seed in (0, 1))
        assert not np.array_equal(a, b)


def test_an_iid_split_mixes_sorted_labels():
    labels = np.repeat(np.arange(10), 100)
    for part in partition(labels, 10, seed=0):
        assert len(part) == 100
        assert len(np.unique(labels[part])) == 10


def test_alpha_sets_how_alike_clients_are():
    """With p ~ Dirichlet(alpha) over K clients, Var p_i = (K - 1) / (K^2 (K alpha + 1))."""
    labels = np.repeat(np.arange(200), 1000)
    for alpha in (0.1, 1.0, 100.0):
        parts = partition(labels, 5, alpha=alpha, seed=0)
        shares = np.array([np.bincount(labels[part], minlength=200) / 1000 for part in parts])
        expected = 4 / (25 * (5 * alpha + 1))
        assert shares.var() == pytest.approx(expected, rel=0.15)


def test_a_client_s_images_are_not_sorted_by_class():
    labels = np.repeat(np.arange(4), 50)
    part = partition(labels, 1, alpha=1.0, seed=0)[0]
    assert len(np.unique(labels[part[:40]])) == 4


@pytest.mark.parametrize(
    ("labels", "clients", "alpha", "words"),
    [
        (np.arange(3), 0, None, "at least 1 client, got 0"),
        (np.arange(3), 4, None, "3 images cannot give 4 clients one each"),
        (np.arange(3), 2, 0.0, "alpha must be above 0 and at most 1e[+]09, got 0.0"),
        (np.arange(3), 2, -1.0, "alpha must be above 0"),
        (np.arange(3), 2, float("nan"), "alpha must be above 0"),
        (np.arange(3), 2, 1.7e308, "alpha must be above 0"),
        (np.linspace(0, 1, 3), 2, 1.0, "needs one class an image, got float64"),
    ],
)
def test_bad_settings_are_refused(labels, clients, alpha, words):
    with pytest.raises(SettingError, match=words):
        partition(labels, clients, alpha=alpha, seed=0)


def test_targets_that_are_no_classes_can_be_split_iid():
    assert [len(part) for part in partition(np.zeros((7, 2)), 2, seed=0)] == [4, 3]
