"""Convolutions of 3x3 by Winograd's algorithm, as four passes; see `tiles` for what happens at the 36 places."""

import torch
from torch import Tensor, nn

from dosimeter.engine.layers import two
from dosimeter.engine.low import Low
from dosimeter.engine.ops import Memory, Small
from dosimeter.engine.patches import Window, copy_windows
from dosimeter.engine.tiles import PLACES, SIDE, Tiles, maps

LEAST = 32
"""Channels in and out from which the maps to the 36 places cost less than they save."""

MOST = 2**22
"""Numbers of a weight at 36 places, 16 MiB in float32; larger ones do not stay in cache for the next pass."""

FEW = 4
"""Tiles of a candidate below which reading a weight at 36 places costs more than products with all windows."""


class Winograd:
    """A convolution of 3x3 and stride 1; every victim's own products at the 36 places, or from few positions.

    Args:
        weight: (O, C, 3, 3).
        observed: (V, O, C, 3, 3) of the weight, and (V, O) of the bias.
        dense: write gradients out, (C, O) at every place, instead of comparing them by their positions.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        window: Window,
        names: tuple[str, ...],
        observed: list[Tensor],
        *,
        batch: int,
        positions: int,
        dense: bool,
        memory: Memory,
    ) -> None:
        self.names, self.batch, self.window, self.memory = names, batch, window, memory
        self.maps = maps(weight.dtype, weight.device)
        self.tiles = Tiles(window, self.maps, memory)
        self.outputs, self.channels = weight.shape[:2]
        rows = weight.permute(2, 3, 1, 0).reshape(9, -1)
        self.weight = torch.mm(self.maps.kernel, rows).view(PLACES, self.channels, self.outputs)
        self.bias = bias
        self.vector = None if bias is None else Small(observed[1])
        self.low: Low | None = None
        if dense:
            self.seen = observed[0].permute(3, 4, 0, 2, 1).flatten(0, 1).contiguous()  # (9, V, C, O)
        else:
            self.low = Low(observed[0].permute(0, 1, 3, 4, 2).flatten(2), positions, memory)
        self.form = "dense, Winograd" if self.low is None else f"{self.low.form}, Winograd"

    @staticmethod
    def fits(weight: Tensor, window: Window, output: tuple[int, int], batch: int) -> bool:
        """3x3 of stride 1 with many channels, and tiles enough to be worth reading the weight at 36 places."""
        plain = window.kernel == (3, 3) and window.stride == (1, 1) == window.dilation
        tiles = -(-output[0] // SIDE) * -(-output[1] // SIDE)
        full = output[0] * output[1] >= SIDE * SIDE * tiles // 2  # no more than half of the outputs are thrown away
        outputs, inputs = weight.shape[:2]
        sized = min(outputs, inputs) >= LEAST and PLACES * outputs * inputs <= MOST
        return plain and full and sized and batch * tiles >= FEW

    @staticmethod
    def suits(layer: nn.Conv2d, output: tuple[int, int], batch: int) -> bool:
        """Whether a layer is run so, where it is run by hand."""
        window = Window(*(two(v) for v in (layer.kernel_size, layer.stride, 0, layer.dilation)))
        return layer.groups == 1 and Winograd.fits(layer.weight, window, output, batch)

    def take(self, owner: Tensor) -> None:
        if self.vector is not None:
            self.vector.take(owner)
        if self.low is not None:
            self.low.take(owner)
            return
        same = len(owner) == self.seen.shape[1] and bool((owner == torch.arange(len(owner), device=owner.device)).all())
        self.mine = self.seen if same else self.seen[:, owner]

    def forward(self, a: Tensor) -> Tensor:
        self.tiles.begin(a.shape)
        self.a = self.tiles.spread(a, "a")
        if self.low is not None:
            self.windows = self.memory((self, "windows"), self._rows(), a)
            copy_windows(self.tiles.padded, self.window, self.tiles.output, self.windows)
        z = self.tiles.gather(torch.bmm(self.a, self.weight, out=self._places(self.outputs)), "z")
        return z if self.bias is None else z.add_(self.bias)

    def _places(self, channels: int) -> Tensor:
        """Memory for (36, n tiles, channels)."""
        return self.memory.scratch("places", (PLACES, self.a.shape[1], channels), self.a)

    def _rows(self) -> tuple[int, int, int]:
        return self.tiles.images, self.tiles.output[0] * self.tiles.output[1], 9 * self.channels

    def _each(self, places: Tensor) -> Tensor:
        """(36 N, tiles of a candidate, channels)"""
        return places.view(PLACES * (self.tiles.images // self.batch), -1, places.shape[2])

    def _candidates(self, rows: Tensor) -> Tensor:
        """(N, positions of a candidate, channels)"""
        return rows.reshape(self.tiles.images // self.batch, -1, rows.shape[-1])

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        self.back = back
        self.d = self.tiles.spread_back(back, "d")
        if not needed:
            return None
        rows = torch.bmm(self.d, self.weight.transpose(1, 2), out=self._places(self.channels))
        return self.tiles.gather_back(rows, "backward")

    def products(self) -> list[tuple[Tensor, Tensor]]:
        if self.low is not None:
            found = [self.low.products(self._candidates(self.windows), self._candidates(self.back))]
        else:
            found = [self._written_out()]
        if self.vector is not None:
            found.append(self.vector.products(self._candidates(self.back).sum(1)))
        return found

    def _written_out(self) -> tuple[Tensor, Tensor]:
        a, d = self._each(self.a), self._each(self.d)
        full = (len(a), self.channels, self.outputs)
        places = torch.bmm(a.transpose(1, 2), d, out=self.memory.scratch("gradients", full, a))
        self.g = self.memory((self, "g"), (9, len(a) // PLACES, self.channels, self.outputs), a)
        torch.mm(self.maps.kernel.t(), places.view(PLACES, -1), out=self.g.view(9, -1))
        squared = torch.linalg.vector_norm(self.g.flatten(2), dim=2).square().sum(0)
        self.v = self.memory.scratch("v", tuple(self.g.shape), a)
        return torch.mul(self.g, self.mine, out=self.v).flatten(2).sum(2).sum(0), squared

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        cross, squared = slopes[0]
        self.vb = None if self.vector is None else self.vector.turn(slopes[1])
        if self.low is not None:
            self.low.turn(cross, squared)
            return
        v = self.memory.scratch("v", tuple(self.g.shape), self.g)
        torch.mul(self.mine, cross[:, None, None], out=v).addcmul_(self.g, 2 * squared[:, None, None])
        full = (PLACES * self.g.shape[1], self.channels, self.outputs)
        self.v = self.memory((self, "v"), full, v)
        torch.mm(self.maps.kernel, v.view(9, -1), out=self.v.view(PLACES, -1))

    def tangent(self, da: Tensor | None) -> Tensor | None:
        places = self._places(self.outputs)
        if self.low is None:
            torch.bmm(self._each(self.a), self.v, out=self._each(places))
            if da is not None:
                places.baddbmm_(self.tiles.spread(da, "da"), self.weight)
            dz = self.tiles.gather(places, "dz")
        else:
            own = self.memory((self, "own"), (*self.windows.shape[:2], self.outputs), self.a)
            self.low.tangent(self._candidates(own))
            dz = own.view(-1, *self.tiles.output, self.outputs)
            if da is not None:
                torch.bmm(self.tiles.spread(da, "da"), self.weight, out=places)
                dz.add_(self.tiles.gather(places, "dz"))
        if self.vb is not None:
            dz.add_(self.vb.repeat_interleave(self.batch, 0)[:, None, None])
        return dz

    def returning(self, back: Tensor) -> Tensor:
        places = self._places(self.channels)
        torch.bmm(self.tiles.spread_back(back, "returned"), self.weight.transpose(1, 2), out=places)
        if self.low is None:
            self._each(places).baddbmm_(self._each(self.d), self.v.transpose(1, 2))
            return self.tiles.gather_back(places, "returning")
        images = self.tiles.gather_back(places, "returning")
        rows = self.memory.scratch("rows", self._rows(), back)
        self.low.returning(self._candidates(rows), add=False)
        self.tiles.add_windows(rows)
        return images
