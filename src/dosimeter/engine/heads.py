"""Attention of several heads as four passes.

    S = scale Q K^T    P = softmax(S)    O = P V

With what came back to O, called back, the client's step needs

    R = P (back V^T - (back . O))      to Q: R K     to K: R^T Q     to V: P^T back

where (x . y) is the inner product of every row, here sum_j P_ij (back V^T)_ij. Dots are derivatives along v.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.engine.nodes import Backs, Node, parted
from dosimeter.engine.ops import Memory


class Columns(NamedTuple):
    """Where queries, keys or values are: heads * width columns of a value (n, T, ...), from `first` on."""

    value: int  # number of the value
    first: int


class Heads(Node):
    """(n, T, heads * width) from queries, keys and values that are columns of one, two or three values.

    Args:
        places: of queries, keys and values.
        widths: columns of one head of queries and keys, and of values.
    """

    def __init__(
        self,
        output: int,
        memory: Memory,
        *,
        places: tuple[Columns, Columns, Columns],
        heads: int,
        widths: tuple[int, int],
        scale: float,
    ) -> None:
        super().__init__(list(dict.fromkeys(place.value for place in places)), output, memory)
        self.places, self.heads, self.scale = list(places), heads, scale
        self.wide = (widths[0], widths[0], widths[1])

    def _view(self, value: Tensor, which: int) -> Tensor:
        """Columns of one kind by heads, (n, heads, T, width)."""
        first, width = self.places[which].first, self.wide[which]
        some = value[:, :, first : first + self.heads * width]
        return parted(some, 2, (self.heads, width)).transpose(1, 2)

    def _heads(self, value: Tensor, out: Tensor) -> Tensor:
        """(n, heads, T, width) copied to (n * heads, T, width), which may be part of something wider."""
        parted(out, 0, (-1, self.heads)).copy_(value)
        return out

    def _pair(self, key: str, value: Tensor, which: int) -> tuple[Tensor, Tensor, Tensor]:
        """Memory (n * heads, T, 2 width), and its halves: both are the factors of one product."""
        rows, width = self.rows[which], self.wide[which]
        both = self.held(key, value, (len(value) * self.heads, rows, 2 * width))
        return both, both[:, :, :width], both[:, :, width:]

    def _values(self, values: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        named = dict(zip(self.inputs, values, strict=True))
        return [named[place.value] for place in self.places]

    def forward(self, *values: Tensor) -> Tensor:
        self.shapes = [tuple(value.shape) for value in values]
        q, k, v = (value for value in self._values(values) if value is not None)
        self.rows = (q.shape[1], k.shape[1], v.shape[1])
        self.qq, own, self.dq = self._pair("q", q, 0)  # [q, dq] against [dk, k]
        self.kk, self.dk, k_own = self._pair("k", k, 1)
        self.vv, self.dv, v_own = self._pair("v", v, 2)  # [back, back-dot] against [dv, v]
        torch.mul(self._view(q, 0), self.scale, out=parted(own, 0, (-1, self.heads)))
        self.q, self.k, self.v = own, self._heads(self._view(k, 1), k_own), self._heads(self._view(v, 2), v_own)
        self.chances = torch.softmax(torch.bmm(own, self.k.mT), -1)
        self.out = torch.bmm(self.chances, self.v)
        return self._join(self.out, "z")

    def _join(self, out: Tensor, key: str) -> Tensor:
        """(n * heads, T, width) -> (n, T, heads * width)"""
        heads = parted(out, 0, (-1, self.heads)).transpose(1, 2)
        whole = self.held(key, out, (len(heads), heads.shape[1], self.heads * out.shape[2]))
        parted(whole, 2, (self.heads, out.shape[2])).copy_(heads)
        return whole

    def _leave(self, found: list[Tensor], key: str) -> Backs:
        """What comes back to queries, keys and values, as columns of the values that they are of."""
        wholes = {
            value: self.held((key, value), found[0], shape)
            for value, shape in zip(self.inputs, self.shapes, strict=True)
        }
        for which, (place, each) in enumerate(zip(self.places, found, strict=True)):
            view = self._view(wholes[place.value], which)
            each = parted(each, 0, (-1, self.heads))
            if which == 0:
                torch.mul(each, self.scale, out=view)
            else:
                view.copy_(each)
        return list(wholes.values())

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        shape = (len(self.q), self.rows[0], 2 * self.wide[2])
        self.bb = self.held("back", back, shape)
        width = self.wide[2]
        self.back = self._heads(parted(back, 2, (self.heads, width)).transpose(1, 2), self.bb[:, :, :width])
        excess = torch.bmm(self.back, self.v.mT)
        self.excess = excess.sub_((self.back * self.out).sum(-1, keepdim=True))
        self.scores = torch.mul(self.excess, self.chances)
        found = [
            torch.bmm(self.scores, self.k),
            torch.bmm(self.scores.mT, self.q),
            torch.bmm(self.chances.mT, self.back),
        ]
        return self._leave(found, "back")

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        self.still = all(dot is None for dot in dots)
        if self.still:
            return None
        for which, (dot, half) in enumerate(zip(self._values(dots), (self.dq, self.dk, self.dv), strict=True)):
            if dot is None:
                half.zero_()
            elif which == 0:
                torch.mul(self._view(dot, 0), self.scale, out=parted(half, 0, (-1, self.heads)))
            else:
                self._heads(self._view(dot, which), half)
        moved = torch.bmm(self.qq, self.kk.mT).mul_(self.chances)  # P S-dot
        self.moved = moved.addcmul_(self.chances, moved.sum(-1, keepdim=True), value=-1)  # P-dot
        self.out_dot = torch.bmm(self.chances, self.dv).baddbmm_(self.moved, self.v)
        return self._join(self.out_dot, "dot")

    def returning(self, back: Tensor) -> Backs:
        width = self.wide[2]
        own = self._heads(parted(back, 2, (self.heads, width)).transpose(1, 2), self.bb[:, :, width:])
        if self.still:
            moved = torch.bmm(own, self.v.mT).sub_((own * self.out).sum(-1, keepdim=True)).mul_(self.chances)
            found = [torch.bmm(moved, self.k), torch.bmm(moved.mT, self.q), torch.bmm(self.chances.mT, own)]
            return self._leave(found, "returned")
        bent = torch.bmm(self.bb, self.vv.mT)
        rows = (own * self.out).addcmul_(self.back, self.out_dot).sum(-1, keepdim=True)
        bent.sub_(rows).mul_(self.chances).addcmul_(self.moved, self.excess)  # R-dot
        found = [
            torch.bmm(bent, self.k).baddbmm_(self.scores, self.dk),
            torch.bmm(bent.mT, self.q).baddbmm_(self.scores.mT, self.dq),
            torch.bmm(self.moved.mT, self.back).baddbmm_(self.chances.mT, own),
        ]
        return self._leave(found, "returned")
