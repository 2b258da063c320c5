"""The images in memory: forms that are accepted, forms that are refused, resizing."""

import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from skimage.transform import resize

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


@pytest.mark.parametrize("size", [32, 20, 7])
def test_resizing_agrees_with_skimage(size):
    images = np.random.default_rng(1).integers(0, 256, (3, 28, 24, 3), dtype=np.uint8)
    resized, _ = made(images).prepared(size=size).split("train")
    assert (resized.shape, resized.dtype) == ((3, size, size, 3), np.uint8)
    for ours, image in zip(resized, images, strict=True):
        exact = resize(image.astype(float), (size, size), order=1, mode="edge", anti_aliasing=False)
        assert np.abs(ours - exact).max() <= 0.5 + 1e-3  # rounding and nothing else


def test_float_images_are_resized_without_rounding_and_stay_in_range():
    images = np.ones((1, 28, 28), np.float32)
    images[0, :14] = 0.3
    resized, _ = made(images).prepared(size=37).split("train")
    exact = resize(images[0], (37, 37), order=1, mode="edge", anti_aliasing=False)
    np.testing.assert_allclose(resized[0, :, :, 0], exact, atol=1e-5)
    white, _ = made(np.ones((1, 3, 3), np.float32)).prepared(size=7).split("train")
    assert white.max() <= 1  # torch itself gives 1 + 1e-7 here


def test_taking_some_images_equals_taking_all(tiny):
    data = tiny.prepared(size=9)
    images, labels = data.split("test")
    some = data.images("test", [5, 1])
    assert torch.equal(some, torch.from_numpy(images[[5, 1]]).permute(0, 3, 1, 2) / 255)
    assert labels is tiny.test_labels
    assert some.shape[1:] == data.shape == (3, 9, 9)


def test_grey_is_repeated_and_colour_is_not_reduced(tiny):
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 5), dtype=np.uint8)
    data = made(images).prepared(channels=3)
    assert data.shape == (3, 5, 5)
    taken = data.images("train", [2])[0]
    assert torch.equal(taken[0], torch.from_numpy(images[2]) / 255)
    assert torch.equal(taken[0], taken[1])
    assert torch.equal(taken[0], taken[2])
    with pytest.raises(DataError, match=re.escape("tiny has 3 channel(s) and cannot be given with 1")):
        tiny.prepared(channels=1)
    with pytest.raises(DataError, match="cannot be given with 2"):
        made(images).prepared(channels=2)
    with pytest.raises(SettingError, match="at least 1, got 0"):
        tiny.prepared(size=0)


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


def test_chunks_of_a_resize_join_without_a_seam(monkeypatch, tiny):
    whole, _ = tiny.prepared(size=8).split("train")
    monkeypatch.setattr("dosimeter.data.dataset._FLOATS_AT_ONCE", 7 * 8 * 8 * 3)
    pieces, _ = tiny.prepared(size=8).split("train")
    assert np.array_equal(whole, pieces)


def test_a_data_set_prints_in_one_line(tiny):
    assert repr(tiny) == "Dataset(name='tiny', source='arrays', size=None, channels=None)"
