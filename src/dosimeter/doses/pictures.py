"""A dose as pictures: what a linear reader sees of an image, where, and along which directions it sees nothing."""

import torch
from torch import Tensor

from dosimeter.doses import algebra
from dosimeter.doses.priors import Known

SHOWN = 4
"""Directions that are drawn."""


def pictures_of(
    image: Tensor, matrix: Tensor, prior: Known | None, behind: algebra.Posterior | None
) -> dict[str, Tensor]:
    """The image, what a linear reader sees of it, where it is determined, and directions that are and are not."""
    shape = image.shape
    shown = {"original": image.float()}
    if prior is not None and behind is not None:
        off = image.flatten().double() - prior.mean
        shown["read"] = (prior.mean + behind.covariance @ (matrix @ off)).reshape(shape)
        gone = (1 - behind.spread / prior.variance).clamp(0, 1).reshape(shape)
        shown["map"] = gone.mean(0, keepdim=True).expand(shape)
        directions = algebra.leading(behind.covariance, SHOWN, 20)
        shown |= {f"hidden {i + 1}": _direction(each, shape) for i, each in enumerate(directions)}
    directions = algebra.leading(matrix, SHOWN, 20)
    shown |= {f"determined {i + 1}": _direction(each, shape) for i, each in enumerate(directions)}
    return {what: picture.float().clamp(0, 1) for what, picture in shown.items()}


def _direction(direction: Tensor, shape: torch.Size) -> Tensor:
    """A direction around grey, as strong as it can be shown."""
    return 0.5 + 0.5 * (direction / direction.abs().max().clamp_min(1e-30)).reshape(shape)
