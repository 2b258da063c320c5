"""Products of gradients that few positions make, without writing the gradients out.

With g = sum_p d_p a_p^T over the positions p of a candidate, K = A A^T and L = D D^T between positions:

    |g|^2 = sum_pq K_pq L_pq        g a_p = sum_q K_pq d_q        g^T d_p = sum_q L_pq a_q

and the observed gradient is multiplied as it is (Gram), or by its factors U V where it has low rank (factored).
"""

import torch
from torch import Tensor

from dosimeter.engine.contract import factor
from dosimeter.engine.ops import Memory


class Low:
    """One weight's own products for all candidates.

    Args:
        observed: (V, O, I).
        positions: of one candidate, which the rank of an undefended gradient does not exceed.
    """

    def __init__(self, observed: Tensor, positions: int, memory: Memory) -> None:
        self.memory = memory
        factors = factor(observed, positions) if 2 * positions <= min(observed.shape[1:]) else None
        self.form = "Gram" if factors is None else "factored"
        self.right: Tensor | None
        self.left, self.right = (observed, None) if factors is None else factors

    def take(self, owner: Tensor) -> None:
        """Use the observations of these victims."""
        same = len(owner) == len(self.left) and bool((owner == torch.arange(len(owner), device=owner.device)).all())
        self.mine = self.left if same else self.left[owner]
        self.others = self.right if same or self.right is None else self.right[owner]

    def _product(self, key: str, one: Tensor, other: Tensor) -> Tensor:
        into = self.memory((self, key), (len(one), one.shape[1], other.shape[2]), one)
        return torch.bmm(one, other, out=into)

    def products(self, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """<g, G> and |g|^2, (N,) each, of inputs (N, P, I) and what came back (N, P, O); both are kept."""
        self.a, self.d = a, d
        self.K, self.L = self._product("K", a, a.transpose(1, 2)), self._product("L", d, d.transpose(1, 2))
        squared = (self.K * self.L).flatten(1).sum(1)
        if self.others is None:
            self.Ga = self._product("Ga", a, self.mine.transpose(1, 2))  # (N, P, O)
            return (self.Ga * d).flatten(1).sum(1), squared
        self.Va = self._product("Va", a, self.others.transpose(1, 2))  # (N, P, r)
        self.Ud = self._product("Ud", d, self.mine)
        return (self.Va * self.Ud).flatten(1).sum(1), squared

    def turn(self, cross: Tensor, squared: Tensor) -> None:
        """Slopes of the match in the products, (N,) each, which give v = cross G + 2 squared g."""
        self.cross, self.squared = cross[:, None, None], 2 * squared[:, None, None]

    def _scaled(self, value: Tensor, by: Tensor) -> Tensor:
        return torch.mul(value, by, out=self.memory.scratch("scaled", tuple(value.shape), value))

    def tangent(self, into: Tensor) -> None:
        """v a_p of all positions, (N, P, O)."""
        if self.others is None:
            torch.mul(self.Ga, self.cross, out=into)
        else:
            torch.bmm(self._scaled(self.Va, self.cross), self.mine.transpose(1, 2), out=into)
        into.baddbmm_(self._scaled(self.K, self.squared), self.d)

    def returning(self, into: Tensor, *, add: bool) -> None:
        """v^T d_p of all positions, (N, P, I); added to what is there, or in its place."""
        along, other = (self.d, self.mine) if self.others is None else (self.Ud, self.others)
        into.baddbmm_(self._scaled(along, self.cross), other, beta=float(add))
        into.baddbmm_(self._scaled(self.L, self.squared), self.a)
