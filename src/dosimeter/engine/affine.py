"""Parts of a transformer whose parameters are small: layer norm, positions and tokens. See `nodes` for the passes."""

import torch
from torch import Tensor

from dosimeter.engine.nodes import Backs, Node, Pairs, by_candidate, parted, summed
from dosimeter.engine.ops import Memory, Small


class Norm(Node):
    """Rows less their mean, over their deviation: y = r (x - m(x)), z = y w + b.

    With J e = r (e - m(e) - y m(e y)) both passes are J, and along v (Ba et al., arXiv:1607.06450, for the norm)

        (J e)-dot = r (e-dot - m(e-dot) - y (m(e-dot y) + m(e y-dot)) - y-dot m(e y)) - r m(x-dot y) J e
    """

    pointwise = True

    def __init__(
        self,
        inputs: list[int],
        output: int,
        memory: Memory,
        *,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        names: list[str],
        observed: list[Tensor],
        batch: int,
    ) -> None:
        super().__init__(inputs, output, memory)
        self.weight, self.bias, self.eps, self.batch = weight, bias, eps, batch
        self.pieces, self.parts = names, [Small(o) for o in observed]

    def take(self, owner: Tensor) -> None:
        for part in self.parts:
            part.take(owner)

    def forward(self, *values: Tensor) -> Tensor:
        x = values[0]
        y = torch.sub(x, x.mean(-1, keepdim=True), out=self.held("y", x))
        z = torch.mul(y, y, out=self.held("z", x))
        self.inverse = z.mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        self.y = y.mul_(self.inverse)
        if self.weight is None:
            return self.y
        return (
            torch.mul(y, self.weight, out=z) if self.bias is None else torch.addcmul(self.bias, y, self.weight, out=z)
        )

    def _shift(self, e: Tensor, key: str) -> tuple[Tensor, Tensor]:
        """(J e) / r, and m(e y)."""
        along = torch.mul(e, self.y, out=self.held("product", e)).mean(-1, keepdim=True)
        found = torch.sub(e, e.mean(-1, keepdim=True), out=self.held(key, e))
        return found.addcmul_(self.y, along, value=-1), along

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        self.back = back
        self.e = back if self.weight is None else torch.mul(back, self.weight, out=self.held("e", back))
        found, self.along = self._shift(self.e, "back")
        self.into = found.mul_(self.inverse)
        return [self.into if needed[0] else None]

    def products(self) -> Pairs:
        if not self.parts:
            return []
        both = torch.mul(self.back, self.y, out=self.held("product", self.back))
        sums = [summed(by_candidate(value, self.batch), self.memory) for value in (both, self.back)]
        return [part.products(g) for part, g in zip(self.parts, sums, strict=False)]

    def turn(self, slopes: Pairs) -> None:
        self.v = [part.turn(s)[:, None] for part, s in zip(self.parts, slopes, strict=True)]

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        dot, self.doty, moved = dots[0], None, None
        if dot is not None:
            found, along = self._shift(dot, "dot y")
            self.doty, self.bent = found.mul_(self.inverse), along.mul_(self.inverse)
            moved = self.doty
            if self.weight is not None:
                moved = torch.mul(self.doty, self.weight, out=self.held("dot z", dot))
        if self.parts:
            base = moved
            moved = self.held("dot z", self.y) if base is None else base
            rows = by_candidate(moved, self.batch)
            if base is None:
                torch.mul(by_candidate(self.y, self.batch), self.v[0], out=rows)
            else:
                rows.addcmul_(by_candidate(self.y, self.batch), self.v[0])
            if len(self.v) > 1:
                rows.add_(self.v[1])
        return moved

    def returning(self, back: Tensor) -> Backs:
        e = back
        if self.weight is not None:
            e = torch.mul(back, self.weight, out=self.held("dot e", back))
        if self.parts:
            by_candidate(e, self.batch).addcmul_(by_candidate(self.back, self.batch), self.v[0])
        found, _ = self._shift(e, "returned")
        if self.doty is None:
            return [found.mul_(self.inverse)]
        across = torch.mul(self.e, self.doty, out=self.held("product", e)).mean(-1, keepdim=True)
        found.addcmul_(self.y, across, value=-1).addcmul_(self.doty, self.along, value=-1).mul_(self.inverse)
        return [found.addcmul_(self.into, self.bent, value=-1)]


class Gain(Node):
    """Rows times a parameter, z = x w, as at the end of a branch of deep transformers (Touvron et al., 2103.17239)."""

    pointwise = True

    def __init__(
        self, inputs: list[int], output: int, memory: Memory, *, weight: Tensor, name: str, observed: Tensor, batch: int
    ) -> None:
        super().__init__(inputs, output, memory)
        self.weight, self.pieces, self.part, self.batch = weight.flatten(), [name], Small(observed), batch

    def take(self, owner: Tensor) -> None:
        self.part.take(owner)

    def _times(self, value: Tensor, key: str) -> Tensor:
        return torch.mul(value, self.weight, out=self.held(key, value))

    def _along(self, value: Tensor, whole: Tensor) -> Tensor:
        """Add value * v to it, in place."""
        by_candidate(whole, self.batch).addcmul_(by_candidate(value, self.batch), self.v)
        return whole

    def forward(self, *values: Tensor) -> Tensor:
        self.x = values[0]
        return self._times(self.x, "z")

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        self.back = back
        return [self._times(back, "back") if needed[0] else None]

    def products(self) -> Pairs:
        both = torch.mul(self.back, self.x, out=self.held("product", self.x))
        return [self.part.products(summed(by_candidate(both, self.batch), self.memory))]

    def turn(self, slopes: Pairs) -> None:
        self.v = self.part.turn(slopes[0])[:, None]

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        whole = self.held("dot", self.x).zero_() if dots[0] is None else self._times(dots[0], "dot")
        return self._along(self.x, whole)

    def returning(self, back: Tensor) -> Backs:
        return [self._along(self.back, self._times(back, "returned"))]


class Shift(Node):
    """A parameter added to some rows of every image, such as positions or a class token.

    Args:
        first: the first of these rows.
        order: (rows * W,) the parameter's entry that goes to each entry of these rows, or None where it is that one.
    """

    def __init__(
        self,
        inputs: list[int],
        output: int,
        memory: Memory,
        *,
        parameter: Tensor,
        name: str,
        observed: Tensor,
        first: int,
        order: Tensor,
        batch: int,
    ) -> None:
        super().__init__(inputs, output, memory)
        self.pieces, self.part = [name], Small(observed)
        self.first, self.batch, self.size = first, batch, parameter.numel()
        same = len(order) == self.size and bool((order == torch.arange(self.size, device=order.device)).all())
        self.order = None if same else order
        self.entries = len(order)
        self.parameter = parameter.flatten()[order]

    def _some(self, value: Tensor) -> Tensor:
        return value[:, self.first : self.first + self.entries // value.shape[2]]

    def take(self, owner: Tensor) -> None:
        self.part.take(owner)

    def forward(self, *values: Tensor) -> Tensor:
        self.shape = tuple(values[0].shape)
        z = self.held("z", values[0]).copy_(values[0])
        self._some(z).add_(self.parameter.view(-1, self.shape[2]))
        return z

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        self.back = back
        return [back if needed[0] else None]

    def products(self) -> Pairs:
        rows = self._some(self.back).reshape(len(self.back) // self.batch, self.batch, -1)
        gradient = rows[:, 0] if self.batch == 1 else summed(rows, self.memory)
        if self.order is not None:
            zero = gradient.new_zeros(len(gradient), self.size)
            gradient = torch.index_add(zero, 1, self.order, gradient)
        return [self.part.products(gradient)]

    def turn(self, slopes: Pairs) -> None:
        v = self.part.turn(slopes[0])
        self.v = v if self.order is None else torch.index_select(v, 1, self.order)

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        whole = self.memory((self, "dot"), self.shape, self.v)
        if dots[0] is not None:
            whole.copy_(dots[0])
        else:
            whole.zero_()
        rows = parted(self._some(whole), 0, (-1, self.batch))
        rows.add_(self.v.view(len(self.v), 1, -1, self.shape[2]))
        return whole

    def returning(self, back: Tensor) -> Backs:
        return [back]
