"""Bounds on reconstruction from clipping and noise alone, whatever the model: beside the dose, for DP-SGD.

They hold for every image and every reader, so they are wide where the dose is narrow. kappa is how often a reader
succeeds without the update, such as 1 / 100 where it has to tell the image from 99 others.
"""

import math
from typing import NamedTuple

import torch

from dosimeter.channel import Clip, Facts, Noise

KAPPA = 0.01
"""Success without the update: one of 100 images that are as likely."""


class Bound(NamedTuple):
    """What no reader can exceed, and what that supposes."""

    name: str
    value: float
    means: str
    supposes: str


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
    return (
        Bound("Balle et al. 2022, by Renyi divergences", renyi(KAPPA, sigma, updates), means, informed),
        Bound("Hayes et al. 2023, by the blow-up function", blow_up(KAPPA, sigma, updates), means, informed),
    )
