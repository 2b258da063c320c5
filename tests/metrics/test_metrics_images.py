"""MSE, PSNR and SSIM against scikit-image, on random and on real images."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage import metrics as outside
from torch import Tensor

from dosimeter.errors import DataError, SettingError
from dosimeter.metrics import clip, min_max, mse, psnr, ssim, ssim_shifted

DATA = Path(os.environ.get("DOSIMETER_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real(name: str, count: int) -> Tensor:
    """The first test images of a data set, (count, C, H, W) in [0, 1]."""
    if not (DATA / name).is_file():
        pytest.skip(f"{name} is not in the data folder; set DOSIMETER_DATA to one that holds it")
    with np.load(DATA / name) as arrays:
        images = torch.from_numpy(arrays["test_images"][:count])
    images = images.unsqueeze(-1) if images.ndim == 3 else images
    return images.permute(0, 3, 1, 2).double() / 255


def outside_ssim(a: Tensor, b: Tensor, **options: object) -> Tensor:
    pairs = zip(a.double().numpy(), b.double().numpy(), strict=True)
    scores = [outside.structural_similarity(*pair, data_range=1, channel_axis=0, **options) for pair in pairs]
    return torch.tensor(scores, dtype=torch.float64)


def outside_gaussian(a: Tensor, b: Tensor) -> Tensor:
    return outside_ssim(a, b, gaussian_weights=True, sigma=1.5, use_sample_covariance=False)


@st.composite
def pairs(draw: st.DrawFn, least: int = 11) -> tuple[Tensor, Tensor]:
    """Two batches in [0, 1], the second somewhere between a copy of the first and unrelated to it."""
    shape = [draw(st.integers(1, 3)) for _ in range(2)] + [draw(st.integers(least, least + 15)) for _ in range(2)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    a, other = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return a, torch.lerp(a, other, draw(st.floats(0, 1)))


@settings(max_examples=30, deadline=None)
@given(pairs())
def test_random_images_score_as_with_scikit_image(pair: tuple[Tensor, Tensor]) -> None:
    a, b = pair
    torch.testing.assert_close(ssim(a, b), outside_gaussian(a, b), atol=1e-9, rtol=0)
    torch.testing.assert_close(ssim(a, b, window="uniform"), outside_ssim(a, b), atol=1e-9, rtol=0)
    torch.testing.assert_close(ssim(a.float(), b.float()).double(), outside_gaussian(a, b), atol=1e-4, rtol=0)
    expected = [outside.mean_squared_error(x.numpy(), y.numpy()) for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(mse(a, b), torch.tensor(expected, dtype=torch.float64))
    if min(expected) > 1e-20:
        both = zip(a.numpy(), b.numpy(), strict=True)
        decibel = [outside.peak_signal_noise_ratio(*each, data_range=1) for each in both]
        torch.testing.assert_close(psnr(a, b), torch.tensor(np.array(decibel)))


@pytest.mark.parametrize("name", ["mnist.npz", "cifar10.npz", "imagenet_samples_224.npz"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_images_score_as_with_scikit_image(name: str, dtype: torch.dtype) -> None:
    images = real(name, 4)
    a, b = images, (0.7 * images + 0.3 * images.roll(1, dims=0)).clamp(0, 1)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-9
    mine, uniform = ssim(a.to(dtype), b.to(dtype)), ssim(a.to(dtype), b.to(dtype), window="uniform")
    assert mine.dtype == dtype
    torch.testing.assert_close(mine.double(), outside_gaussian(a, b), atol=tolerance, rtol=0)
    torch.testing.assert_close(uniform.double(), outside_ssim(a, b), atol=tolerance, rtol=0)


@pytest.mark.parametrize(("side", "size"), [(10, 9), (8, 7), (5, 5)])
def test_a_small_image_is_read_with_the_largest_odd_window_that_fits(side: int, size: int) -> None:
    a, b = torch.rand(2, 3, 2, side, side + 4, dtype=torch.float64)
    torch.testing.assert_close(ssim(a, b), ssim(a, b, size=size))
    expected = outside_ssim(a, b, win_size=min(size, 7))
    torch.testing.assert_close(ssim(a, b, window="uniform"), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [(2, 1, 1, 1), (2, 3, 2, 5), (0, 3, 16, 16)])
def test_tiny_and_empty_batches_give_one_finite_score_an_image(shape: tuple[int, ...]) -> None:
    a, b = torch.rand(2, *shape)
    for score in (mse(a, b), ssim(a, b), ssim(a, b, window="uniform"), ssim_shifted(a, b)):
        assert score.shape == shape[:1]
        assert score.isfinite().all()


def test_the_data_range_scales_the_constants() -> None:
    a, b = torch.rand(2, 3, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(ssim(255 * a, 255 * b, data_range=255), ssim(a, b))
    torch.testing.assert_close(psnr(255 * a, 255 * b, data_range=255), psnr(a, b))
    assert not torch.allclose(ssim(255 * a, 255 * b), ssim(a, b))


def test_equal_images_have_infinite_psnr_and_the_dtype_stays() -> None:
    a = torch.rand(2, 3, 16, 16)
    assert psnr(a, a).tolist() == [torch.inf, torch.inf]
    torch.testing.assert_close(psnr(a, a + 0.1), torch.full((2,), 20.0))
    assert all(metric(a, a).dtype == torch.float32 for metric in (mse, psnr, ssim, ssim_shifted))


@settings(max_examples=8, deadline=None)
@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(0, 2**32))
def test_shifted_ssim_finds_a_shift(dy: int, dx: int, seed: int) -> None:
    scene = torch.rand(2, 1, 30, 30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a, b = scene[..., 3:27, 3:27], scene[..., 3 + dy : 27 + dy, 3 + dx : 27 + dx]
    torch.testing.assert_close(ssim_shifted(a, b), torch.ones(2, dtype=torch.float64))
    furthest = max(abs(dy), abs(dx))
    if furthest:
        assert (ssim_shifted(a, b, most=furthest - 1) < 0.5).all()
    torch.testing.assert_close(ssim_shifted(a, b, most=0), ssim(a, b))


@settings(max_examples=10, deadline=None)
@given(pairs(least=4))
def test_shifted_ssim_is_never_below_ssim(pair: tuple[Tensor, Tensor]) -> None:
    assert (ssim_shifted(*pair) >= ssim(*pair)).all()


def test_min_max_fills_the_range_of_each_image_alone() -> None:
    images = torch.randn(3, 3, 5, 5, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.01]).view(3, 1, 1, 1) + 7
    scaled = min_max(images)
    assert scaled.amin(dim=(1, 2, 3)).tolist() == [0, 0, 0]
    assert scaled.amax(dim=(1, 2, 3)).tolist() == [1, 1, 1]
    torch.testing.assert_close(scaled, min_max(3 * images - 2))
    assert (min_max(torch.full((1, 1, 2, 2), 0.3)) == 0).all()
    extremes = torch.tensor([-3e38, 0.0, 3e38]).view(1, 1, 1, 3)
    torch.testing.assert_close(min_max(extremes).flatten(), torch.tensor([0, 0.5, 1]))


def test_clip_only_touches_what_is_outside() -> None:
    assert clip(torch.tensor([-1.0, 0.25, 2.0])).tolist() == [0, 0.25, 1]


@pytest.mark.parametrize("metric", [mse, psnr, ssim, ssim_shifted])
def test_what_is_not_a_pair_of_image_batches_is_refused(metric) -> None:  # type: ignore[no-untyped-def]
    image = torch.rand(2, 3, 16, 16)
    others = (image[:1], image[:, :1], image.double(), (image * 255).byte(), image[0])
    for other in others:
        with pytest.raises(DataError, match="same shape and dtype"):
            metric(image, other)
    with pytest.raises(DataError, match="floating-point"):
        metric((image * 255).byte(), (image * 255).byte())


def test_settings_that_cannot_work_are_refused() -> None:
    a = torch.rand(1, 1, 16, 16)
    with pytest.raises(SettingError, match="'gaussian'"):
        ssim(a, a, window="gausian")  # type: ignore[arg-type]
    for options in ({"size": 8}, {"size": -1}, {"sigma": 0.0}):
        with pytest.raises(SettingError, match="odd window"):
            ssim(a, a, **options)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="-1 pixels"):
        ssim_shifted(a, a, most=-1)
