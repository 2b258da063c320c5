"""Numbers that papers print, by the names that scores have in records, in the papers' own units."""

from dataclasses import dataclass
from typing import NamedTuple


class Value(NamedTuple):
    """A number with its spread, over victims or over trainings, where there is one."""

    mean: float
    spread: float | None = None
    low: float | None = None  # of its interval, where it is a share of images
    high: float | None = None

    @property
    def pair(self) -> list[float | None]:
        """The number and its spread, as plain values."""
        return [self.mean, self.spread]


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A column: a number that papers print, in their own unit."""

    label: str
    digits: int = 2
    times: float = 1.0  # from our unit to the paper's
    accuracy: bool = False  # of a trained model, and not of an attack
    unit: str = ""


QUANTITIES: dict[str, Quantity] = {
    "accuracy": Quantity(label="accuracy", times=100, accuracy=True, unit="%"),
    "asr": Quantity(label="images read", times=100, unit="%"),
    "ssim": Quantity(label="SSIM"),
    "psnr": Quantity(label="PSNR", unit="dB"),
    "mse": Quantity(label="MSE", digits=4),
    "lpips": Quantity(label="LPIPS (AlexNet)"),
    "lpips_vgg": Quantity(label="LPIPS (VGG)"),
    "mse_standardised": Quantity(label="MSE, standardised"),
    "psnr_normalised": Quantity(label="PSNR, normalised", unit="dB"),
    "psnr_unclipped": Quantity(label="PSNR, unclipped", unit="dB"),
    "ssim_minmax": Quantity(label="SSIM, min-max"),
    "psnr_minmax": Quantity(label="PSNR, min-max", unit="dB"),
    "mse_minmax": Quantity(label="MSE, min-max", digits=4),
    "rmse_bytes": Quantity(label="FedKL's MSE"),
    "psnr_bytes": Quantity(label="FedKL's PSNR", unit="dB"),
    "steps": Quantity(label="steps", digits=0),
    "parameters": Quantity(label="parameters", digits=0),
    "gap": Quantity(label="above a random key", times=100, accuracy=True, unit="points"),
    "share": Quantity(label="share of the lock", times=100, digits=2, unit="%"),
    "deviation": Quantity(label="deviation behind batch norm"),
    "skewness": Quantity(label="skewness behind batch norm"),
    "distance": Quantity(label="distance to the truth", digits=4),
}
"""What tables show, by the names that scores have in records; each is what the paper's program computes."""
