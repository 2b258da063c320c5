"""The windows of a convolution as rows of a matrix, and back; each is the derivative of the other.

Images are (n, H, W, C) here: a window's row is then a few long runs of memory, and copying it is many times faster than
`F.unfold`. Putting windows back adds those that do not overlap in one go, 2 * ceil(kernel / stride) additions in all.
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

    def as_it_is(self, height: int, width: int) -> bool:
        """Whether an image's windows are its numbers in their order: each a pixel, or one of them all of the image."""
        return not any(self.padding) and (self.kernel == self.stride == (1, 1) or self.kernel == (height, width))

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


def copy_windows(padded: Tensor, window: Window, output: tuple[int, int], rows: Tensor) -> None:
    """Copy all windows of padded images (n, H, W, C), contiguous, into rows (n, windows, kernel * kernel * C)."""
    view = _windows(padded, window, output)
    rows.view(view.shape).copy_(view)


def add_windows(padded: Tensor, window: Window, output: tuple[int, int], rows: Tensor, bands: Tensor) -> None:
    """Add rows to the windows of padded images that they belong to; the adjoint of `copy_windows`.

    First along the width into `bands` (n, windows down, kernel, width, C), zero at the start, then along the height.
    """
    n, down, kernel, width, channels = bands.shape
    right, size, row = output[1], rows.shape[2], padded.stride(1)
    span = kernel * width * channels  # of one line of windows in the bands
    apart = -(-window.span(1) // window.stride[1])  # windows this many places apart share no pixel
    for j in range(min(apart, right)):
        shape = (n, down, -(-(right - j) // apart), kernel, window.kernel[1], channels)
        place = bands.as_strided(
            shape,
            (
                down * span,
                span,
                apart * window.stride[1] * channels,
                width * channels,
                window.dilation[1] * channels,
                1,
            ),
            j * window.stride[1] * channels,
        )
        source = (right * down * size, right * size, apart * size, window.kernel[1] * channels, channels, 1)
        place.add_(rows.as_strided(shape, source, rows.storage_offset() + j * size))
    apart = -(-window.span(0) // window.stride[0])
    for i in range(min(apart, down)):
        lines = (n, -(-(down - i) // apart), kernel, width * channels)
        step = window.stride[0] * row
        place = padded.as_strided(lines, (padded.stride(0), apart * step, window.dilation[0] * row, 1), i * step)
        place.add_(bands.as_strided(lines, (down * span, apart * span, width * channels, 1), i * span))


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
        bands = rows.new_zeros(n, output[0], window.kernel[0], padded.shape[2], channels)
        add_windows(padded, window, output, rows.contiguous(), bands)
        return padded[:, up : up + height, left : left + width]

    @staticmethod
    def backward(ctx: Any, images: Tensor) -> tuple[Tensor, None, None]:
        return _Unfold.apply(images, ctx.window), None, None  # type: ignore[no-untyped-call]


def _windows(padded: Tensor, window: Window, output: tuple[int, int]) -> Tensor:
    """The windows of contiguous padded images as a view (n, rows, columns, kernel, kernel, C)."""
    channels = padded.shape[3]
    image, row = padded.stride()[:2]
    return padded.as_strided(
        (padded.shape[0], *output, *window.kernel, channels),
        (
            image,
            window.stride[0] * row,
            window.stride[1] * channels,
            window.dilation[0] * row,
            window.dilation[1] * channels,
            1,
        ),
    )
