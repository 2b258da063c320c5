"""The images in memory: forms that are accepted, forms that are refused, preparing."""

import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from dosimeter.data import Dataset
from dosimeter.errors import DataError, SettingError


def made(images=None, labels=None, **fields):
    """A data set with these training arrays."""
    images = np.zeros((4, 5, 5), np.uint8) if images is None else images
    labels = np.arange(len(images)) if labels is None else labels
    rest = {"test_images": images[:0], "test_labels": labels[:0]} | fields
    return Dataset(name="made", train_images=images, train_labels=labels, **rest)


def test_grey_images_get_a_channel_and_labels_become_int64():
    data = made(labels=np.array([[3], [0], [1], [2]], np.uint8))
    assert data.train_images.shape == (4, 5, 5, 1)
    assert data.train_labels.dtype == np.int64
    assert data.train_labels.tolist() == [3, 0, 1, 2]
    assert (data.shape, data.classes) == ((1, 5, 5), 4)


def test_images_are_floats_in_the_order_asked_for(tiny):
    images = tiny.images("train", [7, 2])
    assert (images.shape, images.dtype) == ((2, 3, 6, 6), torch.float32)
    expected = torch.from_numpy(tiny.train_images[[7, 2]]).permute(0, 3, 1, 2) / 255
    assert torch.equal(images, expected)
    assert torch.equal(tiny.images("train", torch.tensor([7, 2])), expected)
    assert tiny.images("train", []).shape == (0, 3, 6, 6)


def test_classes_count_both_splits(tiny):
    assert replace(tiny, test_labels=np.full(12, 8)).classes == 9


@pytest.mark.parametrize("labels", [np.linspace(-1, 1, 4), np.zeros((4, 14), int), np.zeros((4, 1))])
def test_targets_of_an_own_loss_are_no_classes(labels):
    data = made(labels=labels)
    assert data.classes is None
    assert data.train_labels.shape == labels.shape
    assert data.train_labels.dtype == (np.int64 if labels.dtype.kind == "i" else np.float32)


def test_float_images_are_taken_as_they_are():
    images = np.random.default_rng(0).random((4, 5, 5, 3))
    taken = made(images).images("train", [3])
    assert torch.equal(taken[0].permute(1, 2, 0), torch.from_numpy(images[3].astype(np.float32)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"images": np.full((4, 5, 5), 1.5)}, "train_images must be in [0, 1] without NaN, got 1.5 to 1.5"),
        ({"images": np.full((4, 5, 5), -0.25)}, "got -0.25 to -0.25"),
        ({"images": np.full((4, 5, 5), np.nan)}, "got nan to nan"),
        ({"images": np.zeros((4, 5, 5), np.int64)}, "train_images must be uint8, or float in [0, 1], got int64"),
        ({"images": np.zeros((4, 5), np.uint8)}, "got (4, 5)"),
        ({"images": np.zeros((4, 3, 32, 32), np.uint8)}, "put channels last"),
        ({"images": np.zeros((4, 0, 5), np.uint8)}, "got (4, 0, 5, 1)"),
        ({"labels": np.arange(3)}, "train_images has 4 rows but train_labels 3"),
        ({"labels": np.array([0, 1, -1, 2])}, "classes from 0 on, got -1"),
        ({"labels": np.array([0, 1, 2**20, 2])}, "numbered from 0 on, got 1048576"),
        ({"labels": np.array([0, 1, 2**63, 2], np.uint64)}, "got 9223372036854775808"),
        ({"labels": np.array(["a", "b", "c", "d"])}, "train_labels must be integers or floats"),
        ({"labels": np.array([0, 1, np.nan, 2])}, "train_labels must be finite"),
        ({"test_images": np.zeros((0, 6, 6), np.uint8)}, "differ after the first axis"),
        ({"images": np.zeros((0, 5, 5), np.uint8)}, "both splits are empty"),
    ],
)
def test_arrays_of_a_wrong_form_are_refused(fields, words):
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        made(**fields)
    assert str(caught.value).startswith("arrays: ")


def test_an_empty_split_and_an_unknown_one_are_refused():
    with pytest.raises(DataError, match="made has no images in the split 'test'; use the split 'train'"):
        made().split("test")
    with pytest.raises(SettingError, match=r"Unknown split 'tran'.*'train'"):
        made().images("tran", [0])


@pytest.mark.parametrize("index", [-1, 30])
def test_indices_outside_are_refused(tiny, index):
    with pytest.raises(DataError, match=f"no image {index} in the split 'train' of tiny, which has 30"):
        tiny.images("train", [0, index])


def test_the_fingerprint_tells_data_and_preparation_apart(tiny):
    other = tiny.train_images.copy()
    other[3, 2, 1, 0] ^= 1
    prints = [
        tiny.fingerprint,
        replace(tiny, train_images=other).fingerprint,
        replace(tiny, test_labels=np.zeros(12, int)).fingerprint,
        tiny.prepared(size=8).fingerprint,
    ]
    assert len(set(prints)) == 4
    assert re.fullmatch("[0-9a-f]{16}", prints[0])
    assert replace(tiny, name="other", source="elsewhere").fingerprint == prints[0]
    assert tiny.prepared(size=6, channels=3).fingerprint == prints[0]


def test_taking_some_images_equals_taking_all(tiny):
    data = tiny.prepared(size=9)
    images, labels = data.split("test")
    some = data.images("test", [5, 1])
    assert torch.equal(some, torch.from_numpy(images[[5, 1]]).permute(0, 3, 1, 2) / 255)
    assert labels is tiny.test_labels
    assert some.shape[1:] == data.shape == (3, 9, 9)


def test_grey_is_repeated_to_three_channels():
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 5), dtype=np.uint8)
    data = made(images).prepared(channels=3)
    assert data.shape == (3, 5, 5)
    taken = data.images("train", [2])[0]
    assert torch.equal(taken[0], torch.from_numpy(images[2]) / 255)
    assert torch.equal(taken[0], taken[1])
    assert torch.equal(taken[0], taken[2])


def test_other_channels_and_sizes_are_refused(tiny):
    with pytest.raises(DataError, match=re.escape("made has 1 channel(s) and cannot be given with 2")):
        made().prepared(channels=2)
    with pytest.raises(DataError, match=re.escape("made has 4 channel(s) and cannot be given with 3")):
        made(np.zeros((4, 5, 5, 4), np.uint8)).prepared(channels=3)
    with pytest.raises(SettingError, match="at least 1 and at most 4,096, got 0"):
        tiny.prepared(size=0)
    with pytest.raises(SettingError, match="got 100000"):
        tiny.prepared(size=100000)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_statistics_are_those_of_the_images_given(tiny, dtype):
    """Numpy over all images at once, against sums over parts; grey ones have their own."""
    images = tiny.train_images.astype(dtype) / (1 if dtype == np.uint8 else 255)
    data = made(images.astype(dtype), tiny.train_labels)
    for channels in (3, 1):
        prepared = data.prepared(channels=channels)
        values = prepared.images("train", range(30)).double().transpose(0, 1).flatten(1)  # (C, n H W)
        mean, std = prepared.statistics()
        assert (len(mean), len(std)) == (channels, channels)
        np.testing.assert_allclose(mean, values.mean(1), atol=6e-5)
        np.testing.assert_allclose(std, values.std(1, correction=0), atol=6e-5)


def test_statistics_of_one_split_and_of_repeated_grey(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (7, 5, 5), dtype=np.uint8)
    data = made(images[:0], test_images=images, test_labels=np.arange(7)).prepared(channels=3)
    mean, std = data.statistics()
    assert mean == (round(images.mean() / 255, 4),) * 3
    assert std == (round(images.std() / 255, 4),) * 3
    monkeypatch.setattr("dosimeter.data.pixels.VALUES_AT_ONCE", 60)  # two images at once
    assert data.statistics() == (mean, std)


def test_preparing_again_starts_from_the_stored_images(tiny):
    assert tiny.prepared(size=3).prepared(size=6).fingerprint == tiny.fingerprint
    assert tiny.prepared(size=9).prepared(channels=3).shape == (3, 9, 9)


def test_preparing_many_images_costs_nothing_until_they_are_taken():
    data = made(np.zeros((60000, 28, 28), np.uint8))
    tracemalloc.start()
    try:
        images = data.prepared(size=224, channels=3).images("train", [59999])
        assert images.shape == (1, 3, 224, 224)
        assert tracemalloc.get_traced_memory()[1] < 20e6  # all of them would take 9 GB
    finally:
        tracemalloc.stop()


def test_a_data_set_prints_in_one_line(tiny):
    assert repr(tiny) == "Dataset(name='tiny', source='arrays', size=None, channels=None)"
