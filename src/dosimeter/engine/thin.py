"""Layers of few positions and many entries: every victim's own products without writing gradients out."""

import torch
from torch import Tensor

from dosimeter.engine.low import Low
from dosimeter.engine.matrix import Matrix
from dosimeter.engine.ops import Small


class Thin(Matrix):
    """A linear layer or convolution whose candidates have several positions, compared as `Low` does."""

    def _hold(self, bias: Tensor | None, observed: list[Tensor]) -> None:
        self.wide, self.bias = self.weight, bias
        self.vector = None if bias is None else Small(observed[1])
        self.low = Low(observed[0], self.positions, self.memory)
        self.form = self.low.form

    def take(self, owner: Tensor) -> None:
        self.low.take(owner)
        if self.vector is not None:
            self.vector.take(owner)

    def products(self) -> list[tuple[Tensor, Tensor]]:
        a, d = self._each(self.A), self._each(self.d)
        found = [self.low.products(a, d)]
        if self.vector is not None:
            found.append(self.vector.products(self._summed(d)))
        return found

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        self.low.turn(*slopes[0])
        self.vb = None if self.vector is None else self.vector.turn(slopes[1])

    def tangent(self, da: Tensor | None) -> Tensor | None:
        n, positions, width = self.A.shape
        dz = self.memory((self, "dz"), (n * positions, self.outputs), self.A)
        self.low.tangent(self._each(dz))
        if da is not None:
            dz.addmm_(self._rows(da, "dA rows").reshape(n * positions, width), self.weight.t())
        if self.vb is not None:
            self._each(dz).add_(self.vb[:, None])
        return self._leave(dz)

    def returning(self, back: Tensor) -> Tensor:
        rows = self.memory.scratch("rows", tuple(self.A.shape), back)
        torch.mm(back.reshape(-1, self.outputs), self.weight, out=rows.view(-1, rows.shape[2]))
        self.low.returning(self._each(rows), add=True)
        return self._images(rows, "returning")
