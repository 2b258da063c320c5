"""Convolutions of few channels by kernels of our own (see `native`), which read windows where they are.

A window's row lies side by side in an image (H, W, C), so that windows need not be copied. All that a pass does with an
image is done before the next, in the caches nearest to the core.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.engine.native import kernels, lanes
from dosimeter.engine.ops import Memory, Small
from dosimeter.engine.patches import Window

ENTRIES_UP_TO = 20_000
"""Of a weight, so that it stays in cache with its victim's gradient."""


class Direct:
    """One image a candidate; gradients are written out, (n, O, kernel, run) with runs padded to whole vectors.

    Args:
        weight: (O, C, kernel, kernel).
        bias: (O,) or None.
        shape: of an input, (H, W, C).
        observed: (V, O, C, kernel, kernel), and (V, O) of the bias.
    """

    form = "dense"

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        window: Window,
        shape: tuple[int, ...],
        names: tuple[str, ...],
        observed: list[Tensor],
        *,
        memory: Memory,
    ) -> None:
        self.names, self.memory, self.bias = names, memory, bias
        self.kernels = kernels()
        self.outputs, channels, kernel = weight.shape[:3]
        self.sides = (shape[0], shape[1], channels)
        self.shape = [*self.sides, kernel, window.stride[0], window.padding[0], self.outputs]
        self.down, self.right = window.output(shape[0], shape[1])
        self.size = (shape[0] + 2 * window.padding[0]) * (shape[1] + 2 * window.padding[1]) * channels
        self.lanes = lanes(weight)
        self.along = self._along(weight[None])[0]
        across = weight.permute(2, 3, 1, 0).reshape(-1, self.outputs)  # (kernel * run, O)
        self.across = F.pad(across, (0, -self.outputs % self.lanes)).contiguous()
        self.left = self._along(observed[0])
        self.vector = None if bias is None else Small(observed[1])

    @staticmethod
    def fits(weight: Tensor, window: Window, batch: int) -> bool:
        """Whether the kernels are for such a layer."""
        square = all(len(set(pair)) == 1 for pair in window)
        return batch == 1 and square and window.dilation == (1, 1) and weight.numel() <= ENTRIES_UP_TO

    def _along(self, weights: Tensor) -> Tensor:
        """(n, O, C, kernel, kernel) -> (n, O, kernel, run padded)"""
        rows = weights.permute(0, 1, 3, 4, 2).flatten(3)
        return F.pad(rows, (0, -rows.shape[3] % self.lanes)).contiguous()

    def take(self, owner: Tensor) -> None:
        same = len(owner) == len(self.left) and bool((owner == torch.arange(len(owner), device=owner.device)).all())
        self.mine = self.left if same else self.left[owner]
        if self.vector is not None:
            self.vector.take(owner)

    def _bordered(self, a: Tensor, key: str) -> Tensor:
        """Images (n, H, W, C) with their borders, as rows (n, numbers) with room behind the last."""
        n = len(a)
        room = self.memory((self, key), (n * self.size + self.lanes,), a)
        rows = room[: n * self.size].view(n, self.size)
        self.kernels.border(a, self.shape, rows)
        return rows

    def _rows(self, key: str, like: Tensor) -> Tensor:
        return self.memory((self, key), (len(like), self.down * self.right, self.outputs), like)

    def _entries(self, key: str, like: Tensor) -> Tensor:
        return self.memory((self, key), (len(like), *self.along.shape), like)

    def _leave(self, z: Tensor) -> Tensor:
        return z.view(len(z), self.down, self.right, self.outputs)

    def _enter(self, back: Tensor) -> Tensor:
        return back.contiguous().view(len(back), -1, self.outputs)

    def forward(self, a: Tensor) -> Tensor:
        self.given, self.A = a, self._bordered(a, "A")
        z = self._rows("z", a)
        self.kernels.conv_forward(self.A, self.across, self.bias, self.shape, z)
        return self._leave(z)

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        self.d = self._enter(back)
        if not needed:
            return None
        images = self.memory.like((self, "backward"), self.given)
        self.kernels.conv_backward(self.d, self.along, self.shape, images)
        return images

    def products(self) -> list[tuple[Tensor, Tensor]]:
        self.G = self._entries("G", self.d)
        found = self.memory((self, "found"), (len(self.d), 2 + self.outputs), self.d)
        self.kernels.conv_products(self.A, self.d, self.mine, self.shape, self.G, found)
        own = [(found[:, 0], found[:, 1])]
        return own if self.vector is None else [*own, self.vector.products(found[:, 2:])]

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        self.cross, self.squared = slopes[0]
        self.vb = None if self.vector is None else self.vector.turn(slopes[1])

    def tangent(self, da: Tensor | None) -> Tensor | None:
        moved = None if da is None else self._bordered(da, "dA")
        self.v, dz = self._entries("v", self.d), self._rows("dz", self.d)
        given = (self.A, self.G, self.mine, self.cross, self.squared, moved, self.across, self.vb)
        self.kernels.conv_tangent(*given, self.shape, self.v, dz)
        return self._leave(dz)

    def returning(self, back: Tensor) -> Tensor:
        images = self.memory.like((self, "returning"), self.given)
        self.kernels.conv_returning(self._enter(back), self.along, self.d, self.v, self.shape, images)
        return images
