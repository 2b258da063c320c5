"""Other sizes and channels, against Pillow, scikit-image, scipy and what the papers' programs do."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from scipy.ndimage import zoom
from skimage.transform import resize as skimage_resize

from dosimeter.data import load, pixels

BILINEAR = Image.Resampling.BILINEAR


def photographs(*shape, dtype=np.uint8):
    """Random images, smooth enough that no two ways of rounding meet a tie everywhere."""
    values = np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)
    return values if dtype == np.uint8 else (values / 255).astype(dtype)


def by_pillow(image, size):
    """One channel (H, W) cropped and resized by Pillow in floats."""
    height, width = image.shape
    side = min(height, width)
    left, top = (width - side) // 2, (height - side) // 2
    square = Image.fromarray(image.astype(np.float32)).crop((left, top, left + side, top + side))
    return np.asarray(square.resize((size, size), BILINEAR))


@pytest.mark.parametrize("shape", [(28, 28), (28, 24), (31, 50), (1, 9), (224, 224)])
@pytest.mark.parametrize("size", [32, 28, 20, 7, 1])
def test_sizes_agree_with_pillow(shape, size):
    images = photographs(2, *shape, 3)
    resized = pixels.resize(images, size)
    assert (resized.shape, resized.dtype) == ((2, size, size, 3), np.uint8)
    for ours, image in zip(resized, images, strict=True):
        exact = np.stack([by_pillow(image[..., c], size) for c in range(3)], axis=2)
        assert np.abs(ours - exact).max() <= 0.5 + 1e-3  # rounding and nothing else


@pytest.mark.parametrize("size", [32, 37, 256])
def test_enlarging_agrees_with_scikit_image_and_scipy(size):
    """FedKL enlarges to 256x256 by "linear interpolation" (Sec. IV-C)."""
    images = photographs(2, 28, 28, 3, dtype=np.float32)
    for ours, image in zip(pixels.resize(images, size), images, strict=True):
        exact = skimage_resize(image, (size, size), order=1, mode="edge", anti_aliasing=False)
        np.testing.assert_allclose(ours, exact, atol=2e-5)
        again = zoom(image, (size / 28, size / 28, 1), order=1, mode="nearest", grid_mode=True)
        np.testing.assert_allclose(ours, again, atol=2e-5)


def test_digits_become_what_the_program_of_cvb_makes_of_them():
    """It normalises, resizes without rounding and repeats; normalised again, ours differ by the rounding alone."""
    stored = load("mnist-5k")
    digits = stored.images("train", range(0, 4000, 50))  # (80, 1, 28, 28)
    mean, std = 0.13066373765468597, 0.30810782313346863
    normalised = (digits - mean) / std
    theirs = torch.nn.functional.interpolate(normalised, size=(32, 32), mode="bilinear").expand(-1, 3, -1, -1)
    ours = (stored.prepared(32, 3).images("train", range(0, 4000, 50)) - mean) / std
    assert ours.shape == (80, 3, 32, 32)
    assert (ours - theirs).abs().max() <= (0.5 / 255 + 1e-5) / std


def test_digits_become_what_the_program_of_fedkl_makes_of_them():
    """Pillow resizes bytes, rounding rows and then columns; grey is repeated."""
    stored = load("mnist-5k")
    for size in (32, 256):
        ours, _ = stored.prepared(size, 3).split("test")
        for i in range(0, 1000, 100):
            digit = Image.fromarray(stored.test_images[i, :, :, 0]).resize((size, size), BILINEAR)
            theirs = np.repeat(np.asarray(digit)[..., None], 3, axis=2)
            assert np.abs(ours[i].astype(int) - theirs.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [("mnist", 0.13066373765468597, 0.30810782313346863), ("pneumoniamnist", 0.5719215, 0.1683513)],
)
def test_real_sets_at_32x32_in_three_channels(real, name, mean, std):
    """Normalised by the constants in the program of CVB, which are those of the images before the resize."""
    data = load(name, folder=real, size=32, channels=3)
    assert data.shape == (3, 32, 32)
    assert data.statistics() == ((round(mean, 4),) * 3, (round(std, 4),) * 3)
    images = data.images("train", [0, 1])
    assert torch.equal(images[:, 0], images[:, 2])
    assert 0 <= images.min() < images.max() <= 1


@pytest.mark.parametrize(("name", "size"), [("retinamnist", 32), ("cifar10", 256), ("imagenet_samples_224", 256)])
def test_real_photographs_agree_with_pillow(real, name, size):
    stored = load(name, folder=real)
    ours = stored.prepared(size).images("test", [0, 1]).permute(0, 2, 3, 1).numpy() * 255
    for image, resized in zip(stored.test_images[:2], ours, strict=True):
        exact = np.stack([by_pillow(image[..., c], size) for c in range(3)], axis=2)
        assert np.abs(resized - exact).max() <= 0.5 + 1e-3


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9).map(lambda s: (*s, 3))))
def test_grey_bytes_are_pillow_s(image):
    ours = pixels.grey(image[None])
    assert np.array_equal(ours[0, :, :, 0], np.asarray(Image.fromarray(image).convert("L")))


def test_grey_floats_are_weighted_and_white_stays_white():
    image = photographs(1, 4, 4, 3, dtype=np.float32)
    exact = image.astype(float) @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(pixels.grey(image)[..., 0], exact, atol=1e-5)
    assert pixels.grey(np.ones((1, 9, 9, 3), np.float32)).max() <= 1
    assert np.array_equal(pixels.grey(image[..., :1]), image[..., :1])


@settings(max_examples=100, deadline=None)
@given(
    dtype=st.sampled_from([np.uint8, np.float32]),
    shape=st.tuples(st.integers(0, 4), st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 3])),
    size=st.none() | st.integers(1, 20),
    channels=st.sampled_from([None, 1, 3]),
)
def test_prepared_images_keep_their_type_and_range_and_do_not_mix(dtype, shape, size, channels):
    images = photographs(*shape, dtype=dtype)
    done = pixels.prepare(images, size, channels)
    n, height, width, stored = shape
    assert done.dtype == dtype
    assert done.shape == (n, size or height, size or width, channels or stored)
    for i in range(n):
        assert np.array_equal(done[i : i + 1], pixels.prepare(images[i : i + 1], size, channels))
        assert images[i].min() - 1e-6 <= done[i].min()
        assert done[i].max() <= images[i].max() + 1e-6
    if channels == 3 and stored == 1:
        assert (done[..., :1] == done).all()


@settings(max_examples=50, deadline=None)
@given(level=st.integers(0, 255), size=st.integers(1, 64), shape=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_an_even_image_stays_even(level, size, shape):
    done = pixels.prepare(np.full((1, *shape, 3), level, np.uint8), size, 1)
    assert (done == level).all()
    exact = pixels.prepare(np.full((1, *shape, 1), level / 255, np.float32), size, 3)
    np.testing.assert_allclose(exact, level / 255, atol=1e-6)
    assert exact.max() <= 1


@settings(max_examples=50, deadline=None)
@given(side=st.integers(1, 40), size=st.integers(1, 64))
def test_mirrored_images_give_mirrored_results(side, size):
    images = photographs(1, side, side, 1, dtype=np.float32)
    for axis in (1, 2):
        mirrored = np.flip(pixels.resize(np.flip(images, axis).copy(), size), axis)
        np.testing.assert_allclose(mirrored, pixels.resize(images, size), atol=1e-5)


def test_chunks_join_without_a_seam(monkeypatch):
    images = photographs(30, 6, 6, 3)
    for form in ((8, None), (4, 1), (None, 1)):
        whole = pixels.prepare(images, *form)
        with monkeypatch.context() as patch:
            patch.setattr(pixels, "VALUES_AT_ONCE", 7 * 8 * 8 * 3)
            assert np.array_equal(pixels.prepare(images, *form), whole)
