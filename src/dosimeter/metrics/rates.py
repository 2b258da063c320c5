"""How often an attack succeeds, with an interval, and whether a reconstruction points to its victim."""

from dataclasses import dataclass, field
from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from dosimeter.errors import DataError, SettingError
from dosimeter.rng import stream

TIE = 1e-6
"""Distances closer than this, relatively, are equal: float32 sums in another order differ by about as much."""

CHUNK = 2**24
"""Pixel values of decoys compared at once."""


def wilson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a proportion, (low, high).

        centre = (p + z^2 / 2n) / (1 + z^2 / n),  half width = z / (1 + z^2 / n) * sqrt(p (1 - p) / n + z^2 / 4n^2)

    with p = successes / n and z the normal quantile at (1 + level) / 2. Unlike p +- z s it stays inside [0, 1] and says
    something at 0 of n. Wilson: Probable inference, the law of succession, and statistical inference, 1927.
    """
    if not 0 <= successes <= n or n < 1:
        raise DataError(f"Expected between 0 and n successes of n >= 1 trials, got {successes} of {n}.")
    if not 0 < level < 1:
        raise SettingError(f"Expected a level of confidence between 0 and 1 such as 0.95, got {level}.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p, shrink = successes / n, 1 + z * z / n
    centre = (p + z * z / (2 * n)) / shrink
    half = z / shrink * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # The ends are exact in the formula but not in floating point.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


@dataclass(frozen=True)
class Rate:
    """A share of trials with its 95 % interval."""

    hits: int
    of: int
    picked_from: int = 1
    """Of how many rates this is the one that was chosen for being high; the interval is as much wider (Bonferroni)."""
    rate: float = field(init=False)
    low: float = field(init=False)
    high: float = field(init=False)
    text: str = field(init=False)
    """For people: "97 % (84-99 %), 31 of 32", "below 2.9 % (0 of 128)", "above 97.1 % (128 of 128)"."""

    def __post_init__(self) -> None:
        low, high = wilson(self.hits, self.of, 1 - 0.05 / max(1, self.picked_from))
        vars(self).update(rate=self.hits / self.of, low=low, high=high)
        vars(self).update(text=self._text())

    def _text(self) -> str:
        count = f"{self.hits} of {self.of}"
        if self.hits == 0:
            return f"below {percent(self.high, least=1)} % ({count})"
        if self.hits == self.of:
            return f"above {percent(self.low, least=1)} % ({count})"
        return f"{percent(self.rate)} % ({percent(self.low)}-{percent(self.high)} %), {count}"


def percent(share: float, least: int = 0) -> str:
    """A share in percent with `least` decimals, or as many as keep it from reading as 0 or 100 when it is not."""
    texts = [f"{100 * share:.{digits}f}" for digits in range(least, 5)]
    return texts[0] if share in (0, 1) else next((text for text in texts if 0 < float(text) < 100), texts[-1])


def identification(reconstructed: Tensor, originals: Tensor, decoys: Tensor, *, among: int | None = None) -> Tensor:
    """Is each reconstruction nearer (MSE) to its own victim than to every decoy? -> (n,) bool. True is success.

    reconstructed and originals (n, C, H, W), row by row the same victim; decoys (m, C, H, W), images of the same kind
    that were not in the update. `among`: each image has so many decoys of its own, drawn from all. If all had the same,
    one that lies near the middle would decide for many victims at once, and their rate would spread far more than that
    of independent trials. A guess succeeds with probability 1 / (m + 1). A tie (within `TIE`) is not an
    identification, so a decoy that is the victim's double can only make it fail, and neither is a reconstruction with
    values that are not finite. Images are compared as they are: clip first to judge what a viewer would see.
    """
    same = reconstructed.ndim == 4 and reconstructed.shape == originals.shape
    if not same or decoys.ndim != 4 or decoys.shape[1:] != originals.shape[1:] or len(decoys) < 1:
        raise DataError(
            "Expected reconstructions and originals (n, C, H, W) and at least one decoy (m, C, H, W), got "
            f"{tuple(reconstructed.shape)}, {tuple(originals.shape)} and {tuple(decoys.shape)}."
        )
    size = max(1, CHUNK // decoys[0].numel())
    found = torch.zeros(len(originals), dtype=torch.bool, device=originals.device)
    for i, image in enumerate(reconstructed.detach()):
        own = _distances(image, originals[i : i + 1])[0]
        some = decoys
        if among is not None and among < len(decoys):
            some = decoys[torch.randperm(len(decoys), generator=stream(0, "decoys", i))[:among]]
        nearest = torch.stack([_distances(image, chunk).amin() for chunk in torch.split(some, size)]).amin()
        found[i] = own < nearest * (1 - TIE)  # False for nan and for inf against inf
    return found


def _distances(image: Tensor, others: Tensor) -> Tensor:
    """MSE of one image (C, H, W) to others (k, C, H, W) -> (k,)."""
    return (others - image).square().flatten(1).mean(dim=1)
