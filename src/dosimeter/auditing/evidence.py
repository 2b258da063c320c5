"""Whether a reconstruction that shows nothing is evidence of privacy, or only of a poor search.

The auditor knows what clients computed, and asks of every update that was not read: does what the attack found explain
it at least as well as the truth does, in the attack's own measure? If so the search did its work and the update does
not hold the image, for this attack. If not the search stopped early, or its model of the client is wrong, and the
update may well hold it. Nothing of this is told to an attack.
"""

from collections.abc import Mapping
from enum import StrEnum

import torch
from torch import Tensor

from dosimeter.attacks import Attack
from dosimeter.metrics import ssim
from dosimeter.types import Outcome, Reconstruction, Target

SLACK = 1e-3
"""By how much, relatively, what was found may explain an update worse than the truth and still count as well."""

ROUNDING = 1e-5
"""The same where the truth explains it to the last digit, as a share of the mismatch at the start of a search."""


HOLDS = 1e-3
"""The relative error of the truth up to which equations that are solved without noise in mind can be said to hold."""


class Evidence(StrEnum):
    """What the attack on one update, or on one image of it, says of privacy."""

    READ = "read"
    HIDDEN = "hidden"  # what was found explains the update at least as well as the truth does
    FELL_SHORT = "fell short"  # the truth explains it better: this says nothing of the defense
    UNFIT = (
        "does not fit"  # the truth does not solve the attack's equations, as under noise, or is not among its images
    )
    UNMEASURED = "not measured"  # the attack did not come to an end, or the update is zero


def tally(counts: Mapping[str, int]) -> str:
    """How many images the evidence is what of, as it is printed: "3 read, 1 hidden, 2 fell short"."""
    return ", ".join(f"{counts[kind]:,} {kind}" for kind in Evidence if counts.get(kind))


def out_of_reach(attack: Attack, target: Target, images: Tensor, threshold: float, tile: int) -> Tensor | None:
    """(V,): whether the attack, through a generator, has no images that would count as these; None where it has all.

    Args:
        images: (V, B, C, H, W) that clients trained on.
        threshold: the SSIM from which an image counts as read.
        tile: victims at once.
    """
    reached = []
    for first in range(0, len(images), tile):
        part = images[first : first + tile]
        made = attack.nearest(target, part.to(target.mean))
        if made is None:
            return None
        alike = ssim(made.float().cpu().clamp(0, 1).flatten(0, 1), part.cpu().float().flatten(0, 1))
        reached.append((alike.reshape(part.shape[:2]) >= threshold).all(1))
    return ~torch.cat(reached)


def explained(found: Reconstruction, truth: Tensor, beyond: Tensor | None = None) -> list[Evidence]:
    """Of every update, as if no image of it were read.

    Args:
        found: by the attack.
        truth: (V,) the match of the clients' own steps.
        beyond: (V,) whether the truth is out of the attack's reach.
    """
    start = found.curve.match[:, 0].cpu().nan_to_num(0.0, 0.0, 0.0).abs()
    enough = found.match.cpu() <= truth + SLACK * truth.abs() + ROUNDING * start
    unfit = torch.zeros_like(enough)
    if found.curve.steps == (0,):
        unfit = (truth > HOLDS) & torch.tensor([each is Outcome.NOT_DETERMINED for each in found.outcomes])
    if beyond is not None:
        unfit = unfit | beyond
    both = zip(found.outcomes, enough.tolist(), unfit.tolist(), strict=True)
    return [_standing(outcome, well, unfit) for outcome, well, unfit in both]


def _standing(outcome: Outcome, well: bool, unfit: bool) -> Evidence:
    if not outcome.measured or outcome is Outcome.INTERRUPTED:
        return Evidence.UNMEASURED
    if unfit:
        return Evidence.UNFIT
    return Evidence.HIDDEN if well or outcome.explains else Evidence.FELL_SHORT
