"""Where the lines of a network meet, and what makes its images smaller, as four passes each; see `ops`.

Images are (n, H, W, C).
"""

import math

import torch
from torch import Tensor

from dosimeter.engine.ops import Memory
from dosimeter.engine.patches import Window, add_windows, copy_windows


class Add:
    """a + b. What comes back to the sum comes back to both."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.add(a, b, out=self.memory((self, "z"), tuple(a.shape), a))

    def tangent(self, da: Tensor | None, db: Tensor | None) -> Tensor | None:
        if da is None or db is None:
            return db if da is None else da
        return torch.add(da, db, out=self.memory((self, "tangent"), tuple(da.shape), da))


class Mean:
    """The mean of windows that tile the image, (n, H, W, C) -> (n, H / h, W / w, C), or of all of it, (n, C)."""

    def __init__(self, size: tuple[int, int] | None, memory: Memory) -> None:
        self.size, self.memory = size, memory

    def _split(self, shape: torch.Size) -> tuple[int, ...]:
        n, height, width, channels = shape
        down, right = self.size or (height, width)
        return n, height // down, down, width // right, right, channels

    def forward(self, a: Tensor) -> Tensor:
        self.shape = a.shape
        mean = a.reshape(self._split(a.shape)).mean((2, 4))
        return mean.flatten(1) if self.size is None else mean

    def _spread(self, back: Tensor) -> Tensor:
        n, down, high, right, wide, channels = split = self._split(self.shape)
        share = (back / (high * wide)).view(n, down, 1, right, 1, channels)
        return share.expand(split).reshape(self.shape)

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        return self._spread(back) if needed else None

    def tangent(self, da: Tensor | None) -> Tensor | None:
        return None if da is None else self.forward(da)

    def returning(self, back: Tensor) -> Tensor:
        return self._spread(back)


class MaxPool:
    """The largest number of every window."""

    def __init__(self, window: Window, memory: Memory) -> None:
        self.window, self.memory = window, memory

    def _rows(self, a: Tensor, border: float) -> Tensor:
        """All windows, (n, positions, kernel * kernel, C)."""
        n, height, width, channels = a.shape
        up, left = self.window.padding
        padded = a.new_full((n, height + 2 * up, width + 2 * left, channels), border)
        padded[:, up : up + height, left : left + width] = a
        positions, size = math.prod(self.window.output(height, width)), math.prod(self.window.kernel)
        rows = self.memory.scratch("pool", (n, positions, size * channels), a)
        copy_windows(padded, self.window, self.window.output(height, width), rows)
        return rows.view(n, positions, size, channels)

    def _leave(self, rows: Tensor) -> Tensor:
        chosen = rows.gather(2, self.chosen)
        return chosen.view(len(chosen), *self.window.output(*self.shape[1:3]), -1)

    def forward(self, a: Tensor) -> Tensor:
        self.shape = a.shape
        rows = self._rows(a, -math.inf)
        self.chosen = rows.argmax(2, keepdim=True)
        return self._leave(rows)

    def _images(self, back: Tensor) -> Tensor:
        n, height, width, channels = self.shape
        output, (up, left) = self.window.output(height, width), self.window.padding
        size = math.prod(self.window.kernel)
        rows = self.memory.scratch("pool", (n, math.prod(output), size, channels), back).zero_()
        rows.scatter_(2, self.chosen, back.reshape(self.chosen.shape))
        padded = back.new_zeros(n, height + 2 * up, width + 2 * left, channels)
        bands = back.new_zeros(n, output[0], self.window.kernel[0], padded.shape[2], channels)
        add_windows(padded, self.window, output, rows.flatten(2), bands)
        return padded[:, up : up + height, left : left + width]

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        return self._images(back) if needed else None

    def tangent(self, da: Tensor | None) -> Tensor | None:
        return None if da is None else self._leave(self._rows(da, 0.0))

    def returning(self, back: Tensor) -> Tensor:
        return self._images(back)
