"""How like two images are: MSE, PSNR, SSIM, and SSIM where the reconstruction may be shifted.

All functions take batches (n, C, H, W) of floating-point images and give one value an image, (n,). They are pure, keep
the dtype and can be differentiated. Larger is better for PSNR and SSIM, smaller for MSE.
"""

from typing import Literal

import torch
from torch import Tensor

from dosimeter.errors import DataError, SettingError, unknown

SIZES = {"gaussian": 11, "uniform": 7}
"""The windows of SSIM and their customary sizes."""


def mse(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared error over channels and pixels: mean (a - b)^2. (n, C, H, W) twice -> (n,). Smaller is better."""
    check_pair(a, b)
    return (a - b).square().flatten(1).mean(dim=1)


def psnr(a: Tensor, b: Tensor, *, data_range: float = 1.0) -> Tensor:
    """Peak signal-to-noise ratio in dB: 10 log10(data_range^2 / mse). (n, C, H, W) twice -> (n,). Larger is better.

    Equal images give +inf, as the formula says. JSON has no infinity: who writes a file must cap it, as `score_images`
    and `summarise` do.
    """
    return 10 * torch.log10(data_range**2 / mse(a, b))


def ssim(
    a: Tensor,
    b: Tensor,
    *,
    window: Literal["gaussian", "uniform"] = "gaussian",
    size: int | None = None,
    sigma: float = 1.5,
    data_range: float = 1.0,
) -> Tensor:
    """Structural similarity, mean over window positions and channels. (n, C, H, W) twice -> (n,). Larger is better.

        SSIM = (2 ua ub + C1) (2 vab + C2) / ((ua^2 + ub^2 + C1) (va + vb + C2)),  C1 = (0.01 R)^2,  C2 = (0.03 R)^2

    with means u and (co)variances v under the window and R = data_range. Only windows that lie inside the image count.
    "gaussian": 11 x 11, population variances, as in the paper. "uniform": 7 x 7, sample variances, which is
    scikit-image's default. An image smaller than the window is read with the largest odd window that fits; with a
    side of 1 or 2 that is one pixel, which only compares brightness.

    Wang, Bovik, Sheikh, Simoncelli: Image quality assessment: from error visibility to structural similarity, 2004.
    """
    check_pair(a, b)
    kernel = _kernel(window, size, sigma, min(a.shape[-2:])).to(a)
    # Sample variances divide by N - 1; under a single pixel they are 0 either way.
    pixels = len(kernel) ** 2
    correction = pixels / max(pixels - 1, 1) if window == "uniform" else 1.0

    ua, ub, uaa, ubb, uab = _filter(torch.stack([a, b, a * a, b * b, a * b]), kernel).unbind()  # (n, C, H', W') each
    va, vb, vab = correction * (uaa - ua * ua), correction * (ubb - ub * ub), correction * (uab - ua * ub)
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    similarity = (2 * ua * ub + c1) * (2 * vab + c2) / ((ua * ua + ub * ub + c1) * (va + vb + c2))
    return similarity.flatten(1).mean(dim=1)


def ssim_shifted(a: Tensor, b: Tensor, *, most: int = 3, data_range: float = 1.0) -> Tensor:
    """The best SSIM over whole-pixel shifts of at most `most` in both directions. (n, C, H, W) twice -> (n,).

    Each shift is judged on the part where both images overlap, so nothing is padded. Larger is better, never below
    `ssim`. For reconstructions that are the victim but for a translation, which trained networks hide: Geiping et al.,
    Inverting Gradients, 2020, section 5.2.
    """
    if most < 0:
        raise SettingError(f"A shift of at most {most} pixels was asked for; expected 0 or more.")
    check_pair(a, b)
    height, width = a.shape[-2:]
    down, right = min(most, height - 1), min(most, width - 1)
    scores = [
        ssim(_overlap(a, dy, dx), _overlap(b, -dy, -dx), data_range=data_range)
        for dy in range(-down, down + 1)
        for dx in range(-right, right + 1)
    ]
    return torch.stack(scores).amax(dim=0)


def clip(images: Tensor) -> Tensor:
    """Images as a viewer shows them: every value clamped to [0, 1]. Any shape."""
    return images.clamp(0, 1)


def min_max(images: Tensor) -> Tensor:
    """Each image scaled to fill [0, 1]: (x - min) / (max - min) over its channels and pixels. (n, C, H, W) -> same.

    The released program of CVB scores after this step, which forgives wrong brightness and contrast. An image of one
    value becomes 0.
    """
    half = images / 2  # max - min of a diverged image may overflow, half of it cannot
    low, high = half.amin(dim=(1, 2, 3), keepdim=True), half.amax(dim=(1, 2, 3), keepdim=True)
    spread = high - low
    return (half - low) / torch.where(spread > 0, spread, 1)


def check_pair(a: Tensor, b: Tensor) -> None:
    """Refuse anything but two batches of images of the same shape and floating-point type."""
    if a.ndim != 4 or a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point() or 0 in a.shape[1:]:
        raise DataError(
            "Expected two batches of floating-point images (n, C, H, W) of the same shape and dtype, got "
            f"{tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}; scale bytes to [0, 1] first."
        )


def _kernel(window: str, size: int | None, sigma: float, side: int) -> Tensor:
    """One side of the separable window: (k,) weights that sum to 1, in float64."""
    if window not in SIZES:
        raise SettingError(unknown("SSIM window", window, SIZES))
    size = SIZES[window] if size is None else size
    if size < 1 or size % 2 == 0 or sigma <= 0:
        raise SettingError(f"SSIM needs an odd window size and a positive sigma, got size {size} and sigma {sigma}.")
    size = min(size, side - 1 + side % 2)
    if window == "uniform":
        return torch.full((size,), 1 / size, dtype=torch.float64)
    steps = torch.arange(size, dtype=torch.float64) - size // 2
    return torch.softmax(-steps.square() / (2 * sigma**2), dim=0)


def _filter(images: Tensor, kernel: Tensor) -> Tensor:
    """The mean under the window at each place where it fits: (..., H, W) -> (..., H - k + 1, W - k + 1).

    As two products with banded matrices: for images of up to a few hundred pixels quicker than convolutions.
    """

    def band(length: int) -> Tensor:
        return torch.eye(length, dtype=kernel.dtype, device=kernel.device).unfold(0, len(kernel), 1) @ kernel

    height, width = images.shape[-2:]
    return band(height) @ images @ band(width).mT


def _overlap(images: Tensor, dy: int, dx: int) -> Tensor:
    """The part that stays inside when the image moves up by dy and left by dx."""
    height, width = images.shape[-2:]
    return images[..., max(dy, 0) : height + min(dy, 0), max(dx, 0) : width + min(dx, 0)]
