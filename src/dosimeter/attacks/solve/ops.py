"""The parts of a straight network, each a function of a batch.

    image -> before -> learned -> after -> activation -> before -> learned -> ... -> fully connected -> loss

What is learned is a convolution or a fully connected layer, which is a convolution of one pixel with many channels.
What stands around it is affine.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.func import vjp

from dosimeter.attacks.solve.inverses import Inverse
from dosimeter.types import Shape


class Scale(NamedTuple):
    """factor * x + shift, one number a channel."""

    factor: Tensor  # (C, 1, 1)
    shift: Tensor  # (C, 1, 1)

    def __call__(self, x: Tensor) -> Tensor:
        return self.factor * x + self.shift


class Pool(NamedTuple):
    """Something that is done to the pixels of every channel alike, such as pooling or padding."""

    run: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        y = self.run(x)
        return y if y.ndim == 4 else y[..., None, None]


class Reshape(NamedTuple):
    """The same numbers in another shape."""

    shape: Shape

    def __call__(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), *self.shape)


class Learned(NamedTuple):
    """A convolution, or a fully connected layer on (n, 1, 1)."""

    weight: str
    bias: str | None
    kernel: Tensor  # (O, C, k, k)
    places: Tensor  # (k * k, P) which pixel, counted from 1, each weight meets at each output; 0 is padding
    run: Callable[[Tensor], Tensor]  # (n, C, H, W) -> (n, O, H', W')

    @property
    def name(self) -> str:
        return self.weight.removesuffix(".weight")

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(x)


class Bend(NamedTuple):
    """An activation and how it is undone."""

    run: Callable[[Tensor], Tensor]
    inverse: Inverse

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(x)


Affine = Scale | Pool | Reshape
Op = Affine | Learned | Bend


class Block(NamedTuple):
    """One learned layer with what is done to its input and output."""

    shape: Shape  # of what comes in: the image or what the activation before gives
    before: tuple[Affine, ...]
    learned: Learned
    after: tuple[Affine, ...]
    bend: Bend | None

    def affine(self, x: Tensor) -> Tensor:
        """All but the activation."""
        return apply(self.after, self.learned(apply(self.before, x)))

    def __call__(self, x: Tensor) -> Tensor:
        y = self.affine(x)
        return y if self.bend is None else self.bend(y)


def apply(ops: Sequence[Op], x: Tensor) -> Tensor:
    for op in ops:
        x = op(x)
    return x


def returned(function: Callable[[Tensor], Tensor], x: Tensor, back: Tensor) -> Tensor:
    """What comes back to x when `back` comes back to function(x)."""
    result: Any = vjp(function, x)
    through: Tensor = result[1](back)[0]
    return through.detach()
