"""A linear layer over the positions of a transformer, and products of its gradient in the cheapest exact form.

With a (P, I) what went in and d (P, O) what came back at the P positions of a candidate, g = d^T a and an observed G,
the slope of c <g, G> + s |g|^2 in g is v = c G + 2 s g, of which the layer needs a v^T and d v:

    factored   G = U V of rank r:   <g, G> = (d U) . (a V^T)    a v^T = c (a V^T) U^T + 2 s (a a^T) d
    Gram       G full (noise):      <g, G> = (a G^T) . d        a v^T = c (a G^T)     + 2 s (a a^T) d
    dense      g is written out;    |g|^2 = (a a^T) . (d d^T) in the others

Layers that take the same value, as those of queries, keys and values may, share a a^T.
"""

import torch
from torch import Tensor

from dosimeter.engine.contract import factor
from dosimeter.engine.nodes import Backs, Node, Pairs, by_candidate, summed
from dosimeter.engine.ops import Memory, Small

TOUCH = 24
"""Multiplications that take as long as an entry of a gradient written out takes on its way to and from memory."""


class Gram:
    """a a^T of one value for every layer that takes it, once a step."""

    def __init__(self) -> None:
        self.held: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        if self.held is None:
            self.held = torch.bmm(rows, rows.mT)
        return self.held


def cheapest(positions: int, rank: int, inputs: int, outputs: int) -> str:
    """The form with the fewest multiplications in all passes; of rank 0 where nothing is known of it."""
    square = 2 * positions**2 * (inputs + outputs)
    costs = {
        "dense": (3 * positions + TOUCH) * inputs * outputs,
        "Gram": 2 * positions * inputs * outputs + square,
    }
    if rank:
        costs["factored"] = 2 * positions * rank * (inputs + outputs) + square
    return min(costs, key=costs.__getitem__)


def low_rank(matrices: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
    """U (V, O, r) and V (V, r, I) as `factor` finds them, without directions that hold nothing but rounding."""
    if rank + 4 > min(matrices.shape[1:]):
        return None
    factors = factor(matrices, rank)
    if factors is None or rank == 1:
        return factors
    left, right = factors
    turn, sizes, right = torch.linalg.svd(right, full_matrices=False)
    tails = sizes.square().flip(1).cumsum(1).flip(1).sqrt()  # of what is left out from here on
    kept = int((tails > 4 * torch.finfo(sizes.dtype).eps * tails[:, :1]).sum(1).max())
    kept = max(1, kept)
    return (left @ turn)[:, :, :kept].contiguous(), (sizes[:, :, None] * right)[:, :kept].contiguous()


class Projection(Node):
    """z = a W^T + b for all positions at once.

    Args:
        weight: (O, I); `observed` has (V, O, I) of it and (V, O) of the bias.
    """

    pointwise = True

    def __init__(
        self,
        inputs: list[int],
        output: int,
        memory: Memory,
        *,
        weight: Tensor,
        bias: Tensor | None,
        names: list[str],
        observed: list[Tensor],
        batch: int,
    ) -> None:
        super().__init__(inputs, output, memory)
        self.weight, self.bias, self.batch = weight, bias, batch
        self.pieces, self.observed = names, observed
        self.form = ""

    def split(self, first: int, output: int) -> "Projection":
        """Leave the outputs before `first` to this layer; the others in a layer of their own."""
        weight, bias, observed = self.weight, self.bias, self.observed
        self.weight, self.bias = weight[:first], None if bias is None else bias[:first]
        self.observed = [o[:, :first] for o in observed]
        return Projection(
            list(self.inputs),
            output,
            self.memory,
            weight=weight[first:],
            bias=None if bias is None else bias[first:],
            names=list(self.pieces),
            observed=[o[:, first:] for o in observed],
            batch=self.batch,
        )

    def settle(self, positions: int, gram: Gram) -> None:
        """Choose the form, once it is known how many rows of a candidate come; layers of one value share its `gram`."""
        self.gram = gram
        matrix = self.observed[0]
        outputs, inputs = matrix.shape[1:]
        self.form = cheapest(positions, 0, inputs, outputs)
        self.left, self.right = matrix, None
        if cheapest(positions, positions, inputs, outputs) == "factored":
            factors = low_rank(matrix, positions)
            if factors is not None:
                self.form, (self.left, self.right) = "factored", factors
        self.vector = Small(self.observed[1]) if self.bias is not None else None
        self.observed = []

    def take(self, owner: Tensor) -> None:
        same = len(owner) == len(self.left) and bool((owner == torch.arange(len(owner), device=owner.device)).all())
        self.mine = self.left if same else self.left[owner]
        self.others = self.right if same or self.right is None else self.right[owner]
        if self.vector is not None:
            self.vector.take(owner)

    def _times(self, rows: Tensor, matrix: Tensor, key: str, bias: Tensor | None = None) -> Tensor:
        """rows (n, ..., a) times matrix (a, b)"""
        z = self.held(key, rows, (*rows.shape[:-1], matrix.shape[1]))
        flat, into = rows.view(-1, rows.shape[-1]), z.view(-1, z.shape[-1])
        if bias is None:
            torch.mm(flat, matrix, out=into)
        else:
            torch.addmm(bias, flat, matrix, out=into)
        return z

    def forward(self, *values: Tensor) -> Tensor:
        self.a, self.gram.held = values[0], None
        return self._times(self.a, self.weight.t(), "z", self.bias)

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        self.d = back
        return [self._times(back, self.weight, "back") if needed[0] else None]

    def products(self) -> Pairs:
        a, d = (by_candidate(value, self.batch) for value in (self.a, self.d))
        if self.form == "dense":
            self.g = torch.bmm(d.mT, a, out=self.held("g", a, (len(a), d.shape[2], a.shape[2])))
            squared = torch.linalg.vector_norm(self.g.flatten(1), dim=1).square()
            self.v = self.held("v", self.g)
            cross = torch.mul(self.g, self.mine, out=self.v).flatten(1).sum(1)
        else:
            self.dd = torch.bmm(d, d.mT)
            squared = (self.gram(a) * self.dd).flatten(1).sum(1)
            if self.others is None:
                self.along = torch.bmm(a, self.mine.mT)
                cross = torch.mul(self.along, d, out=self.held("dz", self.along)).flatten(1).sum(1)
            else:
                self.du, self.av = torch.bmm(d, self.mine), torch.bmm(a, self.others.mT)
                cross = (self.du * self.av).flatten(1).sum(1)
        found = [(cross, squared)]
        if self.vector is not None:
            found.append(self.vector.products(summed(d, self.memory)))
        return found

    def turn(self, slopes: Pairs) -> None:
        self.cross, self.squared = slopes[0][0][:, None, None], 2 * slopes[0][1][:, None, None]
        if self.form == "dense":
            torch.mul(self.mine, self.cross, out=self.v).addcmul_(self.g, self.squared)
        self.vb = None if self.vector is None else self.vector.turn(slopes[1])

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        a, d = (by_candidate(value, self.batch) for value in (self.a, self.d))
        dot = dots[0]
        if dot is None:
            whole = self.held("dot", self.d)
            rows = by_candidate(whole, self.batch)
            rows.zero_()
        else:
            whole = self._times(dot, self.weight.t(), "dot")
            rows = by_candidate(whole, self.batch)
        if self.vb is not None:
            rows.add_(self.vb[:, None])
        if self.form == "dense":
            rows.baddbmm_(a, self.v.mT)
            return whole
        if self.others is None:
            rows.addcmul_(self.along, self.cross)
        else:
            rows.baddbmm_(self.av * self.cross, self.mine.mT)
        rows.baddbmm_(self.gram(a) * self.squared, d)
        return whole

    def returning(self, back: Tensor) -> Backs:
        a, d = (by_candidate(value, self.batch) for value in (self.a, self.d))
        whole = self._times(back, self.weight, "returned")
        rows = by_candidate(whole, self.batch)
        if self.form == "dense":
            rows.baddbmm_(d, self.v)
            return [whole]
        if self.others is None:
            rows.baddbmm_(d * self.cross, self.mine)
        else:
            rows.baddbmm_(self.du * self.cross, self.others)
        rows.baddbmm_(self.dd * self.squared, a)
        return [whole]
