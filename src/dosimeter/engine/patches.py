"""The windows of a convolution as rows of a matrix, and back; each is the derivative of the other.

Images are (n, H, W, C) here: a window's row is then a few long runs of memory, and copying it is many times faster than
`F.unfold`. Putting windows back adds those that do not overlap in one go, ceil(kernel / stride)^2 additions in all.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Window(NamedTuple):
    """The geometry of a convolution, (vertical, horizontal)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def span(self, axis: int) -> int:
        """Pixels from a window's first to its last."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1

    def output(self, height: int, width: int) -> tuple[int, int]:
        """Windows along each side of an image."""
        rows, columns = (
            (side + 2 * self.padding[axis] - self.span(axis)) // self.stride[axis] + 1
            for axis, side in enumerate((height, width))
        )
        return rows, columns


def unfold(images: Tensor, window: Window) -> Tensor:
    """(n, H, W, C) -> (n, windows, kernel * kernel * C), differentiable as often as needed."""
    if window.kernel == tuple(images.shape[1:3]) and not any(window.padding):
        return images.flatten(1).unsqueeze(1)  # one window is the whole image
    rows: Tensor = _Unfold.apply(images, window)  # type: ignore[no-untyped-call]
    return rows


class _Unfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, window: Window) -> Tensor:
        n, height, width, channels = ctx.shape = images.shape
        ctx.window = window
        (up, left), (down, right) = window.padding, window.output(height, width)
        if up or left:
            padded = images.new_zeros(n, height + 2 * up, width + 2 * left, channels)
            padded[:, up : up + height, left : left + width] = images
        else:
            padded = images.contiguous()
        return _windows(padded, window, (down, right)).reshape(n, down * right, -1)

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> tuple[Tensor, None]:
        return _Fold.apply(rows, ctx.window, ctx.shape), None  # type: ignore[no-untyped-call]


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, window: Window, shape: tuple[int, int, int, int]) -> Tensor:
        ctx.window = window
        n, height, width, channels = shape
        (up, left), output = window.padding, window.output(height, width)
        padded = rows.new_zeros(n, height + 2 * up, width + 2 * left, channels)
        rows = rows.contiguous()
        # Windows this many places apart share no pixel, so they can be added together.
        apart = (-(-window.span(0) // window.stride[0]), -(-window.span(1) // window.stride[1]))
        size = rows.shape[2]
        inner = (window.kernel[1] * channels, channels, 1)
        for i in range(min(apart[0], output[0])):
            for j in range(min(apart[1], output[1])):
                place = _windows(
                    padded, window, (-(-(output[0] - i) // apart[0]), -(-(output[1] - j) // apart[1])), (i, j), apart
                )
                strides = (rows.stride(0), apart[0] * output[1] * size, apart[1] * size, *inner)
                place.add_(rows.as_strided(place.shape, strides, (i * output[1] + j) * size))
        return padded[:, up : up + height, left : left + width]

    @staticmethod
    def backward(ctx: Any, images: Tensor) -> tuple[Tensor, None, None]:
        return _Unfold.apply(images, ctx.window), None, None  # type: ignore[no-untyped-call]


def _windows(
    padded: Tensor,
    window: Window,
    output: tuple[int, int],
    first: tuple[int, int] = (0, 0),
    every: tuple[int, int] = (1, 1),
) -> Tensor:
    """The windows from `first` on, every so many, as a view (n, rows, columns, kernel, kernel, C) of padded images."""
    n, _, _, channels = padded.shape
    image, row = padded.stride()[:2]
    down, right = window.stride[0] * row, window.stride[1] * channels
    return padded.as_strided(
        (n, *output, *window.kernel, channels),
        (image, every[0] * down, every[1] * right, window.dilation[0] * row, window.dilation[1] * channels, 1),
        first[0] * down + first[1] * right,
    )
