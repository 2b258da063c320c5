"""The maps of Winograd's algorithm for convolutions of 3x3: 36 products for every 4x4 outputs, where windows take 144.

F(4x4, 3x3) of Lavin and Gray (arXiv:1509.09308). A tile of 6x6 inputs, a kernel and a tile of 4x4 outputs all have a
linear map to 36 places, and there a convolution is one matrix product a place:

    z = A^T [ (G w G^T) . (B^T a B) ] A

Every map is a product with a constant matrix. The adjoint runs the same maps backwards, so that what comes back to the
outputs is brought to the 36 places once, for the inputs' slope and for the kernel's gradient, which is

    g = G^T [ sum over tiles of (A d A^T) (B^T a B)^T ] G

*Deviations*: other points than theirs, see `POINTS`. Roundings are about four times those of a product over windows.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.engine.ops import Memory
from dosimeter.engine.patches import Window, add_windows

SIDE, SPAN, PLACES = 4, 6, 36
"""Outputs and inputs along the side of a tile, and the products it takes."""


class Maps(NamedTuple):
    """The constant matrices, both sides of a tile at once."""

    inputs: Tensor  # (36, 36)
    kernel: Tensor  # (36, 9)
    outputs: Tensor  # (16, 36)


POINTS = (0.0, 0.75, -0.75, 1.5, -1.5)
"""Where the polynomials behind the maps are evaluated, beside infinity. At 0, 1, -1, 2, -2, the usual points, the error
of a convolution in float32 is twice as large on average and seven times at worst."""


@cache
def maps(dtype: torch.dtype, device: torch.device) -> Maps:
    """Of tiles (6, 6), kernels (3, 3) and outputs (4, 4), each flattened, by Toom and Cook."""
    a, g, b = (torch.zeros(*shape, dtype=torch.float64) for shape in ((SIDE, SPAN), (SPAN, 3), (SPAN, SPAN)))
    for at, point in enumerate(POINTS):
        others = [other for other in POINTS if other != point]
        a[:, at] = point ** torch.arange(SIDE, dtype=torch.float64)
        g[at] = a[:3, at] / math.prod(point - other for other in others)
        b[at, : len(POINTS)] = _polynomial(others)
    a[-1, -1] = g[-1, -1] = 1
    b[-1] = _polynomial(POINTS)
    return Maps(*(torch.kron(m, m).to(device, dtype) for m in (b, g, a)))


def _polynomial(roots: Sequence[float]) -> Tensor:
    """The coefficients of prod (x - root), from that of 1 up."""
    found = torch.ones(1, dtype=torch.float64)
    for root in roots:
        found = F.pad(found, (1, 0)) - root * F.pad(found, (0, 1))
    return found


class Tiles:
    """Images (n, H, W, C) to the 36 places and back, in memory that is used again."""

    def __init__(self, window: Window, maps: Maps, memory: Memory) -> None:
        self.window, self.maps, self.memory = window, maps, memory

    def begin(self, shape: torch.Size) -> None:
        self.images, self.height, self.width = shape[:3]
        self.output = self.window.output(self.height, self.width)
        self.down, self.right = (-(-side // SIDE) for side in self.output)

    def spread(self, a: Tensor, key: str) -> Tensor:
        """B^T a B of all tiles, (36, n tiles, C)."""
        n, channels = self.images, a.shape[3]
        up, left = self.window.padding
        high, wide = SIDE * self.down + 2, SIDE * self.right + 2
        border = ("border", up, left, self.height, self.width)  # same for all layers of this size; stays zero
        self.padded = padded = self.memory((*border, channels), (n, high, wide, channels), a)
        padded[:, up : up + self.height, left : left + self.width] = a
        image, row, pixel, _ = padded.stride()
        shape = (SPAN, SPAN, n, self.down, self.right, channels)
        view = padded.as_strided(shape, (row, pixel, image, SIDE * row, SIDE * pixel, 1))
        copied = self.memory.scratch("tiles", shape, a).copy_(view)
        full = (PLACES, n * self.down * self.right, channels)
        spread = self.memory((self, key), full, a) if key == "a" else self.memory.scratch("spread", full, a)
        torch.mm(self.maps.inputs, copied.view(PLACES, -1), out=spread.view(PLACES, -1))
        return spread

    def gather(self, places: Tensor, key: str) -> Tensor:
        """A^T z A of (36, n tiles, O), the outputs (n, H, W, O)."""
        n, channels = self.images, places.shape[2]
        tiles = self.memory.scratch("tiles", (SIDE, SIDE, n, self.down, self.right, channels), places)
        torch.mm(self.maps.outputs, places.view(PLACES, -1), out=tiles.view(SIDE * SIDE, -1))
        full = self.memory((self, key), (n, SIDE * self.down, SIDE * self.right, channels), places)
        full.view(n, self.down, SIDE, self.right, SIDE, channels).copy_(tiles.permute(2, 3, 0, 4, 1, 5))
        return full[:, : self.output[0], : self.output[1]]

    def spread_back(self, back: Tensor, key: str) -> Tensor:
        """The adjoint of `gather`: A d A^T of all tiles, (36, n tiles, O)."""
        n, channels = self.images, back.shape[3]
        high, wide = SIDE * self.down, SIDE * self.right
        if tuple(self.output) != (high, wide):
            padded = self.memory((self, "outputs padded"), (n, high, wide, channels), back)
            padded[:, : self.output[0], : self.output[1]] = back
            back = padded
        shape = (SIDE, SIDE, n, self.down, self.right, channels)
        image, row, pixel, step = back.stride()
        view = back.as_strided(shape, (row, pixel, image, SIDE * row, SIDE * pixel, step), back.storage_offset())
        copied = self.memory.scratch("tiles", shape, back).copy_(view)
        full = (PLACES, n * self.down * self.right, channels)
        spread = self.memory((self, key), full, back) if key == "d" else self.memory.scratch("spread", full, back)
        torch.mm(self.maps.outputs.t(), copied.view(SIDE * SIDE, -1), out=spread.view(PLACES, -1))
        return spread

    def gather_back(self, places: Tensor, key: str) -> Tensor:
        """The adjoint of `spread`: (36, n tiles, C) to images (n, H, W, C), overlapping tiles added."""
        n, down, right, channels = self.images, self.down, self.right, places.shape[2]
        tiles = self.memory.scratch("tiles", (SPAN, SPAN, n, down, right, channels), places)
        torch.mm(self.maps.inputs.t(), places.view(PLACES, -1), out=tiles.view(PLACES, -1))
        tiles = tiles.permute(2, 3, 0, 4, 1, 5)  # (n, down, 6, right, 6, C)
        whole = self.memory((self, key), (n, SIDE * (down + 1), SIDE * (right + 1), channels), places)
        blocks = whole.view(n, down + 1, SIDE, right + 1, SIDE, channels)
        blocks[:, down].zero_()
        blocks[:, :, :, right].zero_()
        over = SPAN - SIDE
        blocks[:, :down, :, :right] = tiles[:, :, :SIDE, :, :SIDE]
        blocks[:, 1:, :over, :right].add_(tiles[:, :, SIDE:, :, :SIDE])
        blocks[:, :down, :, 1:, :over].add_(tiles[:, :, :SIDE, :, SIDE:])
        blocks[:, 1:, :over, 1:, :over].add_(tiles[:, :, SIDE:, :, SIDE:])
        self.whole = whole
        up, left = self.window.padding
        return whole[:, up : up + self.height, left : left + self.width]

    def add_windows(self, rows: Tensor) -> None:
        """Add windows (n, positions, 9 C) to what `gather_back` gave last."""
        channels, wide = self.whole.shape[3], self.width + 2 * self.window.padding[1]
        bands = self.memory.scratch("bands", (self.images, self.output[0], 3, wide, channels), rows)
        add_windows(self.whole, self.window, self.output, rows, bands.zero_())
