"""The parts of a transformer as four passes each, without autograd and in memory that is used again.

The passes are those of `ops`, for networks in which a value may go to several parts: a node takes any number of values
and gives one. Values are (n, ..., W), images of a candidate together, so that positions are the rows of one matrix. A
dot marks derivatives along v, the slope of the match in the gradient.
"""

import torch
from torch import Tensor

from dosimeter.engine.curves import CURVES
from dosimeter.engine.ops import Memory

Backs = list[Tensor | None]
"""What comes back to every value that a node takes."""

Pairs = list[tuple[Tensor, Tensor]]
"""(cross, squared), (N,) each, of every piece of a parameter that a node has."""


class Node:
    """One part of the network. Passes are made in the order forward, backward, tangent, returning.

    Args:
        inputs: numbers of the values that it takes.
        output: number of the value that it gives.
    """

    pointwise = False
    """Whether every row of what it gives follows from the same row of each value it takes."""

    def __init__(self, inputs: list[int], output: int, memory: Memory) -> None:
        self.inputs, self.output, self.memory = inputs, output, memory
        self.pieces: list[str] = []  # names of the parameters whose gradients it compares

    def forward(self, *values: Tensor) -> Tensor:
        raise NotImplementedError

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        """What comes back in the client's step; `needed` is False where no parameter is below."""
        raise NotImplementedError

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        """None stands for zero."""
        raise NotImplementedError

    def returning(self, back: Tensor) -> Backs:
        """The derivative of `backward` along v."""
        raise NotImplementedError

    def take(self, owner: Tensor) -> None:
        """Use the observations of these victims."""

    def products(self) -> Pairs:
        return []

    def turn(self, slopes: Pairs) -> None:
        """Slopes of the match in the products, which give v."""

    def held(self, key: object, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        """Memory of this node, zero when it is new."""
        return self.memory((self, key), tuple(like.shape) if shape is None else shape, like)


def by_candidate(value: Tensor, batch: int) -> Tensor:
    """(n, ..., W) -> (N, positions of a candidate, W)"""
    return value.view(len(value) // batch, -1, value.shape[-1])


def parted(value: Tensor, axis: int, sizes: tuple[int, int]) -> Tensor:
    """One axis as two, in the same memory."""
    return value.view(*value.shape[:axis], *sizes, *value.shape[axis + 1 :])


def summed(value: Tensor, memory: Memory) -> Tensor:
    """(N, a, b) -> (N, b), as a product with ones: many times the speed of `sum` along that axis."""
    ones = memory.ones(value.shape[1], value)
    return torch.bmm(ones[None, None].expand(len(value), 1, -1), value)[:, 0]


class Add(Node):
    """The sum of two values."""

    pointwise = True

    def forward(self, *values: Tensor) -> Tensor:
        return torch.add(values[0], values[1], out=self.held("z", values[0]))

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        return [back if asked else None for asked in needed]

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        one, other = dots
        if one is None or other is None:
            return other if one is None else one
        return torch.add(one, other, out=self.held("dot", one))

    def returning(self, back: Tensor) -> Backs:
        return [back, back]


class Fixed(Node):
    """A linear map without parameters, by itself and its adjoint."""

    def apply(self, value: Tensor, key: str) -> Tensor:
        raise NotImplementedError

    def adjoint(self, back: Tensor, key: str) -> Tensor:
        raise NotImplementedError

    def forward(self, *values: Tensor) -> Tensor:
        self.shape = tuple(values[0].shape)
        return self.apply(values[0], "z")

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        return [self.adjoint(back, "back") if needed[0] else None]

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        return None if dots[0] is None else self.apply(dots[0], "dot")

    def returning(self, back: Tensor) -> Backs:
        return [self.adjoint(back, "returned")]


class Scale(Fixed):
    """x * factor + shift with constants of one image, or numbers."""

    def __init__(self, inputs: list[int], output: int, memory: Memory, factor: Tensor, shift: Tensor | None) -> None:
        super().__init__(inputs, output, memory)
        self.factor, self.constant = factor, shift

    def apply(self, value: Tensor, key: str) -> Tensor:
        return torch.mul(value, self.factor, out=self.held(key, value))

    def adjoint(self, back: Tensor, key: str) -> Tensor:
        return self.apply(back, key)

    def forward(self, *values: Tensor) -> Tensor:
        z = super().forward(*values)
        return z if self.constant is None else z.add_(self.constant)


class Rows(Fixed):
    """Some of the rows that follow one another, (n, T, W) -> (n, count, W)."""

    def __init__(self, inputs: list[int], output: int, memory: Memory, first: int, count: int) -> None:
        super().__init__(inputs, output, memory)
        self.first, self.count = first, count

    def apply(self, value: Tensor, key: str) -> Tensor:
        some = value[:, self.first : self.first + self.count]
        return self.held(key, value, tuple(some.shape)).copy_(some)

    def adjoint(self, back: Tensor, key: str) -> Tensor:
        whole = self.held(key, back, self.shape)
        whole[:, self.first : self.first + self.count] = back
        return whole


class Place(Rows):
    """Rows below and above which there is room for others, (n, count, W) -> (n, T, W)."""

    def __init__(self, inputs: list[int], output: int, memory: Memory, first: int, count: int, tokens: int) -> None:
        super().__init__(inputs, output, memory, first, count)
        self.tokens = tokens

    def apply(self, value: Tensor, key: str) -> Tensor:
        whole = self.held(key, value, (len(value), self.tokens, value.shape[2]))
        whole[:, self.first : self.first + self.count] = value
        return whole

    def adjoint(self, back: Tensor, key: str) -> Tensor:
        return Rows.apply(self, back, key)


class Mean(Fixed):
    """The mean of all rows, (n, T, W) -> (n, W)."""

    def apply(self, value: Tensor, key: str) -> Tensor:
        return summed(value, self.memory).mul_(1 / value.shape[1])

    def adjoint(self, back: Tensor, key: str) -> Tensor:
        whole = self.held(key, back, self.shape)
        return whole.copy_((back * (1 / self.shape[1])).unsqueeze(1).expand(self.shape))


class Gather(Fixed):
    """Entries of each image in another order or shape, each at most once."""

    def __init__(
        self, inputs: list[int], output: int, memory: Memory, order: Tensor, shape: tuple[int, ...], size: int
    ) -> None:
        super().__init__(inputs, output, memory)
        self.order, self.out = order, shape
        self.back = torch.argsort(order) if len(order) == size else None

    def apply(self, value: Tensor, key: str) -> Tensor:
        return torch.index_select(value.flatten(1), 1, self.order).view(len(value), *self.out)

    def adjoint(self, back: Tensor, key: str) -> Tensor:
        if self.back is not None:
            return torch.index_select(back.flatten(1), 1, self.back).view(self.shape)
        whole = self.held(key, back, self.shape)
        whole.flatten(1).index_copy_(1, self.order, back.flatten(1))
        return whole


class Activation(Node):
    """The same function of every entry."""

    pointwise = True

    def __init__(self, inputs: list[int], output: int, memory: Memory, name: str) -> None:
        super().__init__(inputs, output, memory)
        self.curve = CURVES[name]

    def forward(self, *values: Tensor) -> Tensor:
        ones = self.memory.ones(values[0].numel(), values[0])
        z, self.slope, self.bend = self.curve(values[0], ones.view(values[0].shape))
        self.back: Tensor | None = None
        return z

    def _through(self, value: Tensor, key: str) -> Tensor:
        return torch.mul(value, self.slope, out=self.held(key, value))

    def backward(self, back: Tensor, needed: list[bool]) -> Backs:
        self.back = back
        return [self._through(back, "back") if needed[0] else None]

    def tangent(self, *dots: Tensor | None) -> Tensor | None:
        self.dot = dots[0]
        return None if self.dot is None else self._through(self.dot, "dot")

    def returning(self, back: Tensor) -> Backs:
        through = self._through(back, "returned")
        if self.dot is not None and self.bend is not None and self.back is not None:
            through.addcmul_(torch.mul(self.back, self.dot, out=self.held("both", back)), self.bend)
        return [through]
