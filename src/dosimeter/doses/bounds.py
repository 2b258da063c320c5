"""Bounds on reconstruction from clipping and noise alone, whatever the model: beside the dose, for DP-SGD.

They hold for every image and every reader, so they are wide where the dose is narrow. kappa is how often a reader
succeeds without the update, such as 1 / 100 where it has to tell the image from 99 others.
"""

import math
from typing import Literal, NamedTuple

import torch

from dosimeter.channel import Clip, Facts, Noise

KAPPA = 0.01
"""Success without the update: one of 100 images that are as likely."""


DELTA = 1e-5
"""At which epsilon is given."""


class Bound(NamedTuple):
    """What no reader can exceed, and what that supposes."""

    name: str
    value: float
    means: str
    supposes: str
    unit: Literal["share", "dB"] = "share"

    def words(self) -> str:
        """In one line."""
        shown = f"{self.value:.1f} dB" if self.unit == "dB" else f"{100 * self.value:.3g} %"
        return f"{shown}, {self.means} ({self.name}, against {self.supposes})"


def multiplier(facts: Facts, batch: int) -> float | None:
    """The deviation of the noise on a sum of clipped gradients over their bound; None without both."""
    bound: float | None = None
    for fact in facts:
        match fact:
            case Clip(norm, "example"):
                bound = norm / batch  # which an image moves the mean of a batch by at most
            case Clip(norm, "update"):
                bound = norm
            case Noise("gaussian", scale, None) if bound is not None:
                return scale / bound
    return None


def renyi(kappa: float, sigma: float, updates: int = 1) -> float:
    """(kappa e^eps)^((a - 1) / a) at the best order a, eps = updates a / (2 sigma^2) (Balle et al. 2022, Cor. 3)."""
    orders = 1 + torch.logspace(-3, 6, 2000, dtype=torch.float64)
    exponent = (math.log(kappa) + updates * orders / (2 * sigma**2)) * (orders - 1) / orders
    return float(exponent.min().clamp_max(0).exp())


def blow_up(kappa: float, sigma: float, updates: int = 1) -> float:
    """Phi(Phi^-1(kappa) + sqrt(updates) / sigma) (Hayes et al. 2023, Thm. 2, full batches; Kaissis et al. 2023)."""
    at = torch.special.ndtri(torch.tensor(kappa, dtype=torch.float64)) + math.sqrt(updates) / sigma
    return float(torch.special.ndtr(at))


def delta_of(epsilon: float, sigma: float, updates: int = 1) -> float:
    """Phi(s / 2 - eps / s) - e^eps Phi(-s / 2 - eps / s), s = sqrt(updates) / sigma (Balle and Wang 2018, Thm. 8)."""
    size = math.sqrt(updates) / sigma
    ends = torch.tensor([size / 2 - epsilon / size, -size / 2 - epsilon / size], dtype=torch.float64)
    first, second = torch.special.log_ndtr(ends).tolist()
    return max(0.0, math.exp(first) - math.exp(min(epsilon + second, 0.0)))


def epsilon_of(sigma: float, updates: int = 1, delta: float = DELTA) -> float:
    """The smallest epsilon of Gaussian noise at this delta, by bisection."""
    low, high = 0.0, 1.0
    while delta_of(high, sigma, updates) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, sigma, updates) > delta else (low, middle)
    return high


def by_epsilon(kappa: float, epsilon: float, delta: float = DELTA) -> float:
    """kappa e^eps + delta (Balle et al. 2022, Thm. 2, with the delta of approximate privacy)."""
    return min(1.0, math.exp(min(math.log(kappa) + epsilon, 0.0)) + delta)


def by_fisher(psnr: float) -> Bound:
    """n / tr M of the most exposed image (Guo et al. 2022, Thm. 2); behind clipping, at this model and this image."""
    means = "the PSNR of an unbiased reader of the most exposed image"
    supposes = "a reader without a prior that is right on average, wherever the image lies near the true one"
    return Bound("Guo et al. 2022, by Fisher information", psnr, means, supposes, "dB")


def bounds_of(facts: Facts, batch: int, updates: int = 1, clients: int = 1) -> tuple[Bound, ...]:
    """What is known of a channel that clips and then adds Gaussian noise to all; nothing of any other.

    Of clients whose sum alone is seen each adds its own noise.
    """
    sigma = multiplier(facts, batch)
    if sigma is None:
        return ()
    sigma *= math.sqrt(clients)
    means = f"the chance to tell an image from {round(1 / KAPPA) - 1} others that are as likely before"
    informed = "a reader that knows all else: the other images, the model and the candidates"
    epsilon = epsilon_of(sigma, updates)
    name = f"Balle et al. 2022, from epsilon = {epsilon:.3g} at delta = {DELTA:g}"
    return (
        Bound(name, by_epsilon(KAPPA, epsilon), means, f"{informed}; by the (epsilon, delta) of these updates alone"),
        Bound("Balle et al. 2022, by Renyi divergences", renyi(KAPPA, sigma, updates), means, informed),
        Bound("Hayes et al. 2023, by the blow-up function", blow_up(KAPPA, sigma, updates), means, informed),
    )
