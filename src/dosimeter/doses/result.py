"""What a dose is: figures of every private image, which survive their file, and pictures beside them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, NamedTuple

from torch import Tensor

from dosimeter.doses.bounds import Bound


class TensorDose(NamedTuple):
    """One tensor of the update: image dimensions that it determines alone, and those left determined without it."""

    alone: int
    without: int


class SecretDose(NamedTuple):
    """What was drawn inside the model: how many numbers, and how many of them the update determines."""

    numbers: int
    determined: int


class ImageDose(NamedTuple):
    """Of one private image of n numbers."""

    id: str  # of the update
    place: int  # of the image in it
    number: int  # in the data set
    dimensions: int
    determined: int  # directions whose posterior variance is below half the prior's, or below 0.25^2 without one
    bits: float | None  # carried about the image; None without a prior
    psnr: float | None  # of the posterior mean, in dB; None without a prior
    here: float | None  # of the same reader on this very image, over the noise; None where it was estimated
    unbiased: float | None  # PSNR of a locally unbiased reader on the directions of `white`; None if there are none
    fisher: float | None  # PSNR of an unbiased reader of the whole image by n / tr M (Guo et al. 2022, Thm. 2)
    white: int  # directions known to better than a deviation of 0.25, whatever the prior
    secrets: Mapping[str, SecretDose]
    tensors: Mapping[str, TensorDose]  # where they were asked for
    error: Mapping[str, float]  # {figure: deviation over probes} where it was estimated
    seconds: float

    @property
    def share(self) -> float:
        return self.determined / self.dimensions

    def document(self) -> dict[str, Any]:
        plain = self._asdict() | {"share": self.share}
        plain["secrets"] = {name: each._asdict() for name, each in self.secrets.items()}
        plain["tensors"] = {name: each._asdict() for name, each in self.tensors.items()}
        return plain | {"error": dict(self.error)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Doses:
    """Of all private images."""

    images: tuple[ImageDose, ...]
    prior: str
    channel: str
    noise: float  # the smallest deviation of noise on an entry that was counted with
    rounded: float | None  # how many times the rounding of float32 that is, where a tensor has no other noise
    notes: tuple[str, ...]
    exact: bool
    settings: Mapping[str, Any]
    bounds: tuple[Bound, ...] = ()
    pictures: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, repr=False)
    """{image: {what it shows: (C, H, W) in [0, 1]}}"""
    plan: Mapping[str, Any] | None = None

    @property
    def share(self) -> float:
        """Of dimensions that are determined, on average."""
        return mean(each.share for each in self.images)

    @property
    def worst(self) -> ImageDose:
        """The most exposed image."""
        return max(self.images, key=lambda each: (each.determined, each.bits or 0.0))

    def mean(self, key: str) -> float | None:
        """Of a figure over all images that have it."""
        found = [value for each in self.images if (value := getattr(each, key)) is not None]
        return mean(found) if found else None

    def sentence(self) -> str:
        """All of it in one sentence."""
        many = f"{len(self.images)} image{'s' if len(self.images) > 1 else ''}"
        size, bits, psnr = self.images[0].dimensions, self.mean("bits"), self.mean("psnr")
        said = f"On average over {many} the update determines {self.mean('determined'):,.0f} of {size:,} dimensions"
        said += f" ({self.share:.0%})"
        if bits is not None:
            said += f", carries {bits:,.0f} bits"
        if psnr is not None:
            said += f" and lets a linear reader with the {self.prior} prior come to {psnr:.1f} dB"
        worst = self.worst
        said += f"; the most exposed image, number {worst.number} of the data, has {worst.share:.0%} determined."
        return said

    def document(self) -> dict[str, Any]:
        """As plain values."""
        means = {
            key: self.mean(key)
            for key in ("determined", "share", "white", "bits", "psnr", "here", "unbiased", "fisher")
        }
        return {
            "sentence": self.sentence(),
            "channel": self.channel,
            "prior": self.prior,
            "exact": self.exact,
            "noise": self.noise,
            "rounded": self.rounded,
            "notes": list(self.notes),
            "mean": means,
            "bounds": [each._asdict() for each in self.bounds],
            "images": [each.document() for each in self.images],
            "plan": None if self.plan is None else dict(self.plan),
            "settings": dict(self.settings),
        }
