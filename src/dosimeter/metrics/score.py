"""All scores of a matched batch, and their summary."""

import torch
from torch import Tensor

from dosimeter.errors import DataError
from dosimeter.metrics.images import check_pair, clip, min_max, mse, psnr, ssim, ssim_shifted
from dosimeter.metrics.lpips import Lpips

Scores = dict[str, Tensor]
"""{name of the score: (n,)}, the names those of `HIGHER_IS_BETTER`."""

HIGHER_IS_BETTER: dict[str, bool] = {
    "mse": False,
    "psnr": True,
    "ssim": True,
    "ssim_shifted": True,
    "lpips": False,
    "mse_minmax": False,
    "psnr_minmax": True,
    "ssim_minmax": True,
}
"""Every score; better means a more faithful reconstruction, which is worse for the victim."""

PSNR_CAP = 150.0
"""dB; a PSNR from here on is reported as this. It means exact to rounding: one float32 rounding error is 145 dB."""

CHUNK = 2**19
"""Pixel values scored at once; SSIM holds about ten copies of them, and more than this is slower on a CPU."""


@torch.no_grad()
def score_images(reconstructed: Tensor, originals: Tensor, *, lpips: Lpips | None) -> Scores:
    """Every score of reconstructions against the originals they are matched with. (n, C, H, W) twice -> {name: (n,)}.

    Pixels of a reconstruction that are not finite count as 0. Then all scores are taken with images clipped to [0, 1],
    except those that end in `_minmax`: there the reconstruction, unclipped, and the original are each scaled to fill
    [0, 1], as in the released program of CVB. PSNR is capped at `PSNR_CAP`, so that every score is finite. `lpips` is
    absent without its weights. The originals are expected in [0, 1] and take the reconstruction's dtype and device.
    """
    originals = originals.to(reconstructed)
    check_pair(reconstructed, originals)
    if not len(originals):
        raise DataError("There is no image to score; expected at least one reconstruction and its original.")
    images = torch.where(reconstructed.isfinite(), reconstructed, 0)
    size = max(1, CHUNK // images[0].numel())
    parts = [_score(a, b, lpips) for a, b in zip(torch.split(images, size), torch.split(originals, size), strict=True)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def summarise(values: Tensor) -> dict[str, float]:
    """Mean, sample standard deviation (0 for a single value), min, median and max of (n,) scores, n >= 1.

    The median of an even number is the mean of the middle two. +inf, which only an uncapped `psnr` gives, counts as
    `PSNR_CAP`; other values that are not finite are refused, since a summary without them would be of other images.
    """
    values = values.detach().double().cpu()
    values = torch.where(values == torch.inf, PSNR_CAP, values)
    if values.ndim != 1 or not len(values) or not values.isfinite().all():
        raise DataError(
            f"Expected at least one score, (n,), all of them finite, got shape {tuple(values.shape)} with "
            f"{int((~values.isfinite()).sum())} that are not finite."
        )
    return {
        "mean": values.mean().item(),
        "std": values.std().item() if len(values) > 1 else 0.0,
        "min": values.min().item(),
        "median": values.quantile(0.5).item(),
        "max": values.max().item(),
    }


def _score(reconstructed: Tensor, originals: Tensor, lpips: Lpips | None) -> Scores:
    a, b = clip(reconstructed), clip(originals)
    scores = {"mse": mse(a, b), "psnr": psnr(a, b), "ssim": ssim(a, b), "ssim_shifted": ssim_shifted(a, b)}
    if lpips is not None:
        scores["lpips"] = lpips(a, b)
    a, b = min_max(reconstructed), min_max(originals)
    scores |= {"mse_minmax": mse(a, b), "psnr_minmax": psnr(a, b), "ssim_minmax": ssim(a, b)}
    return {name: value.clamp(max=PSNR_CAP) if name.startswith("psnr") else value for name, value in scores.items()}
