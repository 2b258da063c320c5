"""Pixels that were whole numbers in a file, taken for these where what was solved for shows that they were."""

from torch import Tensor

NEAR = 0.25
"""Of a level, within which every pixel has to be of a whole one; by chance n pixels are with probability 1 / 2^n."""

ENOUGH = 64
"""Pixels that it takes for that to be no chance."""

FIT = 2.0
"""So many times the error of what was solved for may be that of whole levels, which no longer fit rounding."""


def whole_levels(image: Tensor, levels: int | None) -> Tensor | None:
    """(C, H, W) the nearest image whose pixels are multiples of 1 / (levels - 1); None where the image is not like it.

    It is asked of an image that was solved for, not supposed: an image that was resized or changed after it was read
    has no such pixels, and is left as it is.

    Args:
        image: (C, H, W), in [0, 1].
        levels: how many a pixel has in a file, 256 for bytes; None for any number of them.
    """
    if levels is None or image.numel() < ENOUGH:
        return None
    steps = image * (levels - 1)
    whole = steps.round()
    like = (steps - whole).abs().max() < NEAR and whole.min() >= 0 and whole.max() <= levels - 1
    return whole / (levels - 1) if like else None
