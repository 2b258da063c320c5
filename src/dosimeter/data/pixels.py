"""Images in another size or number of channels: one way for every loader."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, int, int]

VALUES_AT_ONCE = 2**24
"""What preparing holds in floats beside its input and output: 64 MB."""

_GREY = (19595, 38470, 7471)  # of 2**16: the weights 0.299, 0.587, 0.114 of ITU-R 601, as whole numbers


def prepare(images: Array, size: int | None, channels: int | None) -> Array:
    """(n, H, W, C) -> (n, size, size, channels) in the same type; None leaves a side of the form as it is.

    Colour becomes grey before, and grey is repeated after the resize. A bounded number of images is worked on at once.
    """
    height, width, stored = images.shape[1:]
    sides = (height, width) if size is None else (size, size)
    chunk = max(1, VALUES_AT_ONCE // (stored * max(sides[0] * sides[1], height * width)))
    prepared = np.empty((len(images), *sides, channels or stored), images.dtype)
    for start in range(0, len(images), chunk):
        part = images[start : start + chunk]
        part = grey(part) if channels == 1 else part
        prepared[start : start + chunk] = part if size is None else resize(part, size)  # one channel fills three
    return prepared


def grey(images: Array) -> Array:
    """The luma 0.299 R + 0.587 G + 0.114 B of ITU-R 601, (n, H, W, 3) -> (n, H, W, 1); grey images as they are.

    Bytes are rounded as Pillow and torchvision's `Grayscale` round them, to the same bytes.
    """
    if images.shape[3] == 1:
        return images
    if images.dtype == np.uint8:
        luma = images.astype(np.uint32) @ np.array(_GREY, np.uint32)
        return ((luma + 2**15) >> 16).astype(np.uint8)[..., None]
    weighted: Array = images @ (np.array(_GREY) / 2**16).astype(images.dtype)
    return np.minimum(weighted, 1)[..., None]  # the weights of white may add up to 1 + 1e-7


def resize(images: Array, size: int) -> Array:
    """The square in the middle of the images, at size x size: (n, H, W, C) -> (n, size, size, C) in the same type.

    Bilinear, corners not aligned, averaged over the pixels that are left out when it shrinks: what Pillow does, and
    torchvision's `Resize`. Bytes are rounded to bytes again, so that they are what an image file could hold.
    """
    import torch  # not before it is needed: data is listed without it
    import torch.nn.functional as F

    height, width = images.shape[1:3]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[:, top : top + side, left : left + side]
    if size == side:
        return square
    pixels = torch.from_numpy(square.astype(np.float32)).permute(0, 3, 1, 2)
    pixels = F.interpolate(pixels, (size, size), mode="bilinear", align_corners=False, antialias=size < side)
    # Clamped because the weights of an average may add up to 1 + 1e-7.
    pixels = pixels.round() if images.dtype == np.uint8 else pixels.clamp(0, 1)
    resized: Array = pixels.permute(0, 2, 3, 1).numpy().astype(images.dtype)
    return resized
