"""Layers on rows, one image a candidate, by kernels of our own (see `native`): fewer passes over the same memory.

Weights are packed once into panels that are as wide as two vectors; torch's products pack them anew in every call, for
which 64 rows are too few.
"""

import threading
import weakref

import torch
from torch import Tensor

from dosimeter.engine.matrix import Matrix
from dosimeter.engine.native import kernels, lanes
from dosimeter.engine.ops import BatchNorm, Memory

_LOCK = threading.Lock()
_PACKED: dict[tuple[int, ...], list["weakref.ref[Tensor]"]] = {}
"""Panels by their shape: tiles side by side share them, as they share weights."""


def known(like: Tensor) -> bool:
    """Whether there are kernels for such numbers."""
    numbers = like.dtype in (torch.float32, torch.float64)
    return like.device.type == "cpu" and numbers and kernels() is not None


def packed(weight: Tensor) -> Tensor | None:
    """A weight (K, N) in panels, None where it is too narrow for them."""
    columns = 2 * lanes(weight)
    if weight.shape[1] < columns:
        return None
    panels = weight.new_empty(-(-weight.shape[1] // columns), weight.shape[0], columns)
    kernels().pack_weight(weight, panels)
    with _LOCK:
        same = _PACKED.setdefault(tuple(panels.shape), [])
        same[:] = [ref for ref in same if ref() is not None]
        for ref in same:
            other = ref()
            if other is not None and other.dtype == panels.dtype and torch.equal(other, panels):
                return other
        same.append(weakref.ref(panels))
    return panels


def stacked(slopes: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(N, 2 a tensor): slopes in cross and squared of every tensor."""
    return torch.stack([slope for pair in slopes for slope in pair], 1)


class Rank(Matrix):
    """A linear layer under a single image: its gradient is one outer product, and the observed one has rank one too."""

    def _hold(self, bias: Tensor | None, observed: list[Tensor]) -> None:
        super()._hold(bias, observed)
        self.kernels = kernels()
        self.there, self.back_again = packed(self.weight.t()), packed(self.weight)

    def take(self, owner: Tensor) -> None:
        super().take(owner)
        self.theirs = None if self.vector is None else self.vector.mine
        if self.others is not None:
            self.U, self.V = self.mine[:, :, 0].contiguous(), self.others[:, 0].contiguous()

    def _times(self, x: Tensor, panels: Tensor | None, weight: Tensor, z: Tensor, *, add: bool) -> None:
        if panels is not None:
            self.kernels.times(x, panels, None, add, z)
        elif add:
            z.addmm_(x, weight)
        else:
            torch.mm(x, weight, out=z)

    def forward(self, a: Tensor) -> Tensor:
        self.shape = a.shape
        self.A = self._rows(a, "A")
        rows = self.A.reshape(len(a), -1)
        z = self.memory((self, "z"), (len(a), self.outputs), a)
        if self.there is not None:
            self.kernels.times(rows, self.there, self.bias, False, z)
        elif self.bias is not None:
            torch.addmm(self.bias, rows, self.weight.t(), out=z)
        else:
            torch.mm(rows, self.weight.t(), out=z)
        return self._leave(z)

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        self.d = self._enter(back, "d")
        if not needed:
            return None
        rows = self.memory((self, "rows", "backward"), (len(back), self.weight.shape[1]), back)
        self._times(self.d, self.back_again, self.weight, rows, add=False)
        return self._given(rows, "backward")

    def _given(self, rows: Tensor, key: str) -> Tensor:
        """In the shape of the inputs, by a copy only where a window leaves some of them out."""
        whole = self.window is None or self.window.as_it_is(*self.shape[1:3])
        return rows.view(self.shape) if whole else self._images(rows.unsqueeze(1), key)

    def products(self) -> list[tuple[Tensor, Tensor]]:
        if self.others is None:
            return super().products()
        self.found = self.memory((self, "found"), (len(self.d), 7), self.d)
        self.kernels.rank_products(self._inputs(), self.d, self.U, self.V, self.theirs, self.found)
        own = [(self.found[:, 0], self.found[:, 1])]
        return own if self.vector is None else [*own, (self.found[:, 2], self.found[:, 3])]

    def _inputs(self) -> Tensor:
        return self.A.reshape(len(self.A), -1)

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        if self.others is None:
            super().turn(slopes)
        else:
            self.slopes = stacked(slopes)

    def tangent(self, da: Tensor | None) -> Tensor | None:
        if self.others is None:
            return super().tangent(da)
        dz = self.memory((self, "dz"), (len(self.A), self.outputs), self.A)
        self.kernels.rank_tangent(self.found, self.slopes, self.d, self.U, self.theirs, dz)
        if da is not None:
            moved = self._rows(da, "dA rows").reshape(len(self.A), -1)
            self._times(moved, self.there, self.weight.t(), dz, add=True)
        return self._leave(dz)

    def returning(self, back: Tensor) -> Tensor:
        if self.others is None:
            return super().returning(back)
        rows = self.memory((self, "rows", "returning"), (len(back), self.weight.shape[1]), back)
        self.kernels.rank_returning(self.found, self.slopes, self._inputs(), self.V, rows)
        self._times(self._enter(back, "returned"), self.back_again, self.weight, rows, add=True)
        return self._given(rows, "returning")


class RowNorm(BatchNorm):
    """Batch norm of rows (n, C)."""

    def hold(self) -> None:
        """Bring constants to one tensor."""
        self.kernels, self.memory = kernels(), Memory()
        like = torch.ones_like(self.inverse)
        self.constants = torch.stack([self.inverse, self.shift, self.weight * like, self.bias * like])
        self.both = self.weight * self.inverse
        self.seen = torch.stack([part.observed for part in self.parts], 1)  # (V, 2, C)

    def take(self, owner: Tensor) -> None:
        self.mine = self.seen[owner]

    def _rows(self, key: str, like: Tensor) -> Tensor:
        return self.memory(key, tuple(like.shape), like)

    def forward(self, a: Tensor) -> Tensor:
        self.normal, z = self._rows("normal", a), self._rows("z", a)
        self.kernels.norm_forward(a, self.constants, self.normal, z)
        return z

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        self.back = back.contiguous()
        return torch.mul(self.back, self.both, out=self._rows("backward", back)) if needed else None

    def products(self) -> list[tuple[Tensor, Tensor]]:
        found = self.memory("found", (len(self.back), 4), self.back)
        self.kernels.norm_products(self.normal, self.back, self.mine, found)
        return [(found[:, 0], found[:, 1]), (found[:, 2], found[:, 3])]

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        self.slopes = stacked(slopes)

    def _passed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.normal, self.back, self.mine, self.slopes

    def tangent(self, da: Tensor | None) -> Tensor | None:
        dz = self._rows("dz", self.normal)
        self.kernels.norm_tangent(*self._passed(), da, self.constants, dz)
        return dz

    def returning(self, back: Tensor) -> Tensor:
        rows = self._rows("returning", back)
        self.kernels.norm_returning(*self._passed(), back.contiguous(), self.constants, rows)
        return rows
