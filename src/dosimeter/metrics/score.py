"""All scores of a matched batch, and their summary. A score is a value: it names itself, its direction and its unit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dosimeter.errors import DataError, SettingError
from dosimeter.metrics.images import check_pair, clip, min_max, mse, psnr, ssim, ssim_shifted
from dosimeter.metrics.lpips import Lpips

Scores = dict[str, Tensor]
"""{name of the score: (n,)}"""

Function = Callable[[Tensor, Tensor], Tensor]

PSNR_CAP = 150.0
"""dB; a PSNR from here on is reported as this. It means exact to rounding: one float32 rounding error is 145 dB."""

CHUNK = 2**19
"""Pixel values scored at once; SSIM holds about ten copies of them, and more than this is slower on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A score of reconstructions beside their originals, which stands in records, tables and pages once it is given.

    dm.Scoring(metrics=[dm.Metric(name="l1", function=lambda a, b: (a - b).abs().flatten(1).mean(1), higher=False)])
    """

    name: str
    """In records; a word of letters, digits and underscores."""
    function: Function
    """(reconstructions, originals), (n, C, H, W) twice -> (n,)."""
    higher: bool
    """Whether more means a more faithful reconstruction, which is worse for the victim."""
    label: str = ""
    """In tables; the name by default."""
    about: str = ""
    """What it measures, in a few words, with its unit."""
    clipped: bool = True
    """Whether it sees images clipped to [0, 1], or the reconstruction as the attack left it."""
    cap: float | None = None
    """The most that is reported, in either direction."""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise SettingError(f"A metric's name is a word of letters, digits and underscores, got {self.name!r}.")

    def __call__(self, reconstructed: Tensor, originals: Tensor) -> Tensor:
        """(n,) finite scores, or a clear refusal."""
        pair = (clip(t) if self.clipped else t.clone() for t in (reconstructed, originals))  # which it may overwrite
        values = self.function(*pair)
        if not isinstance(values, Tensor) or values.shape != (len(originals),):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise SettingError(
                f"The metric {self.name!r} must give one number an image, ({len(originals)},), got {got}."
            )
        return values if self.cap is None else values.clamp(-self.cap, self.cap)

    def described(self) -> dict[str, str | bool]:
        """What reports need to know of it."""
        return {"label": self.label or self.name, "about": self.about, "higher": self.higher}


def _filled(function: Function, a: Tensor, b: Tensor) -> Tensor:
    """A score of images each of which is scaled to fill [0, 1], as in CVB's program."""
    return function(min_max(a), min_max(b))


def _scaled(a: Tensor, b: Tensor) -> Tensor:
    return 255 * mse(a, b).sqrt()


def _decibels(a: Tensor, b: Tensor) -> Tensor:
    return 10 * torch.log10(255**2 / _scaled(a, b))


def _metric(name: str, function: Function, label: str, about: str, *, raw: bool = False) -> Metric:
    better = name.startswith(("psnr", "ssim"))
    cap = PSNR_CAP if name.startswith("psnr") else None
    return Metric(name=name, function=function, higher=better, label=label, about=about, clipped=not raw, cap=cap)


STANDARD: tuple[Metric, ...] = (
    _metric("ssim", ssim, "SSIM", "structure, 1 is equal"),
    _metric("psnr", psnr, "PSNR", "dB, more is nearer"),
    _metric("mse", mse, "MSE", "squared error a pixel, 0 is equal"),
    _metric("ssim_shifted", ssim_shifted, "SSIM, shifted", "best over small shifts"),
    _metric("ssim_minmax", partial(_filled, ssim), "SSIM, min-max", "contrast forgiven, CVB's", raw=True),
    _metric("psnr_minmax", partial(_filled, psnr), "PSNR, min-max", "dB, the same", raw=True),
    _metric("mse_minmax", partial(_filled, mse), "MSE, min-max", "the same", raw=True),
    _metric("psnr_unclipped", psnr, "PSNR, unclipped", "dB, as the attack left it, the Bayes paper's", raw=True),
    _metric("rmse_bytes", _scaled, "FedKL's MSE", "a root mean square on 0-255"),
    _metric("psnr_bytes", _decibels, "FedKL's PSNR", "10 log10(255^2 / its MSE); true PSNR = 2 x - 48.1"),
)
"""Scores of every audit, in the order of tables."""


def in_units_of(std: Tensor) -> tuple[Metric, ...]:
    """Scores on images as the model sees them, divided by the deviations (C, 1, 1) that it normalises with."""

    def standardised(a: Tensor, b: Tensor) -> Tensor:
        scale = std.to(a)
        return mse(a / scale, b / scale)

    def normalised(a: Tensor, b: Tensor) -> Tensor:
        return -10 * torch.log10(standardised(a, b))

    return (
        _metric("mse_standardised", standardised, "MSE, standardised", "on normalised images, PPP's"),
        _metric("psnr_normalised", normalised, "PSNR, normalised", "dB with peak 1, Inverting Gradients'"),
    )


def of_lpips(lpips: Lpips) -> Metric:
    """The distance by one network; those of two do not compare and have names of their own."""
    alex = lpips.name == "AlexNet"
    return Metric(
        name="lpips" if alex else "lpips_vgg",
        function=lpips,
        higher=False,
        label="LPIPS" if alex else f"LPIPS, {lpips.name}",
        about=f"distance in the features of {lpips.name}, 0 is equal",
    )


@torch.no_grad()
def score_images(reconstructed: Tensor, originals: Tensor, metrics: Sequence[Metric] = STANDARD) -> Scores:
    """Every score of reconstructions against the originals they are matched with. (n, C, H, W) twice -> {name: (n,)}.

    Pixels of a reconstruction that are not finite count as 0. PSNR is capped at `PSNR_CAP`, so that every score of ours
    is finite. The originals are expected in [0, 1] and take the reconstruction's dtype and device.
    """
    originals = originals.to(reconstructed)
    check_pair(reconstructed, originals)
    if not len(originals):
        raise DataError("There is no image to score; expected at least one reconstruction and its original.")
    images = torch.where(reconstructed.isfinite(), reconstructed, 0)
    size = max(1, CHUNK // images[0].numel())
    pairs = list(zip(torch.split(images, size), torch.split(originals, size), strict=True))
    return {metric.name: torch.cat([metric(a, b) for a, b in pairs]) for metric in metrics}


@dataclass(frozen=True)
class Score:
    """A score over all images."""

    mean: float
    std: float
    min: float
    median: float
    max: float


def summarise(values: Tensor) -> Score:
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
    std = values.std() if len(values) > 1 else torch.zeros(())
    return Score(*(float(x) for x in (values.mean(), std, values.min(), values.quantile(0.5), values.max())))
