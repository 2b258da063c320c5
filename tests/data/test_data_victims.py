"""Draws of victims and decoys."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dosimeter.data import load, pick, pick_decoys, pick_shadows
from dosimeter.errors import DataError, SettingError


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 12), batch=st.integers(1, 12), seed=st.integers(0, 5), split=st.sampled_from(["train", "test"]))
def test_a_draw_is_distinct_right_and_stable(tiny, n, batch, seed, split):
    if n * batch > tiny.count(split):
        with pytest.raises(DataError, match=re.escape(f"{n * batch} images ({n} batches of {batch})")):
            pick(tiny, n, batch=batch, seed=seed, split=split)
        return
    victims = pick(tiny, n, batch=batch, seed=seed, split=split)
    assert victims.images.shape == (n, batch, 3, 6, 6)
    assert victims.labels.shape == victims.indices.shape == (n, batch)
    assert len(set(victims.indices.flatten().tolist())) == n * batch
    for i, row in enumerate(victims.indices.tolist()):
        assert victims.ids[i] == f"{split}:" + "+".join(map(str, row))
        assert torch.equal(victims.images[i], tiny.images(split, row))
        assert victims.labels[i].tolist() == tiny.labels(split)[row].tolist()
    half = max(1, n // 2)
    fewer = pick(tiny, half, batch=batch, seed=seed, split=split)
    assert fewer.ids == victims.ids[:half]
    assert torch.equal(fewer.images, victims.images[:half])


def test_seeds_and_splits_draw_differently():
    data = load("mnist-5k")
    draws = {pick(data, 8, seed=seed, split=split).ids for seed in (0, 1) for split in ("train", "test")}
    assert len(draws) == 4


def test_splits_of_one_size_are_drawn_from_apart(tiny):
    twin = replace(tiny, test_images=tiny.train_images, test_labels=tiny.train_labels)
    assert not torch.equal(pick(twin, 8, split="train").indices, pick(twin, 8, split="test").indices)


def test_given_indices_are_taken_exactly(tiny):
    one = pick(tiny, indices=[17, 3])
    assert one.ids == ("train:17", "train:3")
    assert one.images.shape == (2, 1, 3, 6, 6)
    rows = pick(tiny, 2, batch=3, split="test", indices=torch.tensor([[1, 2, 3], [11, 0, 5]]))
    assert rows.ids == ("test:1+2+3", "test:11+0+5")
    assert torch.equal(rows.images[1, 0], tiny.images("test", [11])[0])


def test_targets_keep_their_form(tiny):
    data = replace(tiny, train_labels=np.random.default_rng(0).random((30, 2)), test_labels=np.zeros((12, 2)))
    victims = pick(data, 2, batch=3)
    assert (victims.labels.shape, victims.labels.dtype) == ((2, 3, 2), torch.float32)


def test_prepared_images_are_picked_prepared(tiny):
    assert pick(tiny.prepared(size=8), 2).shape == (3, 8, 8)
    assert pick(tiny.prepared(size=8), 2).ids == pick(tiny, 2).ids


def test_too_many_are_refused_with_the_sum(tiny):
    words = "asks for 40 images (10 batches of 4) but the split 'train' of tiny has 30; use fewer"
    with pytest.raises(DataError, match=re.escape(words)):
        pick(tiny, 10, batch=4)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"n": 0}, "at least 1 batch"),
        ({"n": 1, "batch": 0}, "at least 1 image, got 1 of 0"),
        ({}, "Give their number n or their indices"),
        ({"indices": [1, 2], "n": 3}, "2 batches of 1, not 3 of 1"),
        ({"indices": [[1, 2]], "batch": 3}, "1 batches of 2, not None of 3"),
        ({"indices": []}, "got float64 of shape (0,)"),
        ({"indices": [0.5]}, "(n, B) integers, got float64"),
        ({"indices": [[1, 2], [3]]}, "rows of different lengths"),
        ({"indices": [[[1]]]}, "got int64 of shape (1, 1, 1)"),
        ({"indices": [4, 5, 4]}, "the victim train:4 more than once"),
        ({"n": 1, "split": "val"}, "Unknown split 'val'"),
    ],
)
def test_bad_settings_are_refused(tiny, settings_, words):
    with pytest.raises(SettingError, match=re.escape(words)):
        pick(tiny, **settings_)


@pytest.mark.parametrize("index", [-1, 30])
def test_an_index_outside_is_refused(tiny, index):
    with pytest.raises(DataError, match=f"no image {index} in the split 'train' of tiny"):
        pick(tiny, indices=[0, index])


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 5), batch=st.integers(1, 4), wanted=st.integers(0, 40), seed=st.integers(0, 5))
def test_decoys_are_others(tiny, n, batch, wanted, seed):
    victims = pick(tiny, n, batch=batch, seed=seed)
    decoys = pick_decoys(tiny, victims, wanted, seed=seed, split="train")
    assert decoys.shape == (min(wanted, 30 - n * batch), 3, 6, 6)
    both = {image.numpy().tobytes() for image in (*decoys, *victims.images.flatten(0, 1))}
    assert len(both) == len(decoys) + n * batch  # the images of this data set are all different


def test_victims_of_the_other_split_take_no_decoy_away(tiny):
    victims = pick(tiny, 10, split="train")
    assert len(pick_decoys(tiny, victims, 12, seed=0, split="test")) == 12
    own = victims._replace(ids=tuple(f"mine {i}" for i in range(10)))
    assert len(pick_decoys(tiny, own, 30, seed=0, split="train")) == 20
    with pytest.raises(SettingError, match="at least 0, got -1"):
        pick_decoys(tiny, victims, -1, seed=0, split="test")


@pytest.mark.parametrize("batch", [1, 4, 10])
def test_distinct_batches_hold_different_classes_and_no_image_twice(batch: int) -> None:
    dataset = load("mnist-5k")
    found = pick(dataset, 12, batch=batch, seed=5, distinct=True)
    assert found.labels.shape == (12, batch)
    assert all(len(set(row)) == batch for row in found.labels.tolist())
    assert len(set(found.indices.flatten().tolist())) == 12 * batch
    fewer = pick(dataset, 3, batch=batch, seed=5, distinct=True)
    assert fewer.ids == found.ids[:3]


def test_distinct_batches_that_cannot_be_are_refused() -> None:
    with pytest.raises(DataError, match="of different classes"):
        pick(load("mnist-5k"), 1, batch=11, distinct=True)


def test_shadows_are_no_images_that_an_audit_of_the_seed_picks() -> None:
    dataset = load("mnist-5k")
    count = dataset.count("train")
    shadows = pick_shadows(dataset, 4, batch=2, seed=3)
    private = pick(dataset, count - 8, seed=3)
    assert not set(shadows.indices.flatten().tolist()) & set(private.indices.flatten().tolist())
    assert shadows.images.shape[:2] == (4, 2)
    assert shadows.ids == pick(dataset, indices=shadows.indices).ids
    beside = pick_shadows(dataset, 4, seed=3, victims=private.take(slice(4000)))
    assert not set(beside.indices.flatten().tolist()) & set(private.indices[:4000].flatten().tolist())
    with pytest.raises(DataError, match="beside the victims"):
        pick_shadows(dataset, count + 1, seed=3)


def test_shadows_beside_victims_are_the_next_seeds_victims_without_them() -> None:
    dataset = load("mnist-5k")
    victims, next_seeds = pick(dataset, 2000, seed=0), pick(dataset, 2008, seed=1)
    private = set(victims.ids)
    free = tuple(name for name in next_seeds.ids if name not in private)[:8]
    assert private & set(next_seeds.ids[:8])  # or nothing would be left out
    assert pick_shadows(dataset, 8, seed=0, victims=victims).ids == free
