"""The input of layers whose gradients leave a little of it open, from these gradients and from what the layers gave.

Where slopes D behind a convolution are known its gradient is linear in its input h (see `wide.solve_given`), and where
the ReLU behind it was on and its output is known, that output is linear in h too. Several layers may see the same h,
such as a block's first convolution and its shortcut. All of it is one least-squares problem, solved by conjugate
gradients.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks.solve.wide import CLOSE, Window, conjugate, equations
from dosimeter.attacks.stages import Beat
from dosimeter.networks.trace import Trace, replay


class Told(NamedTuple):
    """What the gradient of one convolution says of its input."""

    weight: Tensor  # (o, c k k) dL/dW in float64
    slopes: Tensor  # (o, places)
    window: Window


class Seen(NamedTuple):
    """A ReLU's output that is known, in a trace."""

    before: Tensor  # the tensor of the trace that goes into it
    after: Tensor  # and the one that comes out
    value: Tensor  # (1, ...) what that was
    on: Tensor  # where it says what went in


def solve_joined(trace: Trace, source: Tensor, told: Sequence[Told], seen: Sequence[Seen], beat: Beat) -> Tensor | None:
    """(c, h, w): a tensor of a trace, the input of convolutions `told`, which leads to ReLUs `seen`; None where these
    are fewer equations than unknowns, or the gradients have no such solution."""
    pairs = [equations(*each) for each in told]
    pairs = [
        (matrix / size, wanted / size) for matrix, wanted in pairs for size in [torch.linalg.matrix_norm(matrix, 2)]
    ]
    square = sum(matrix.T @ matrix for matrix, _ in pairs)
    right = sum(wanted.T @ matrix for matrix, wanted in pairs)
    shape = source.shape[1:]
    affine = _Outputs(trace, source, seen)
    if sum(len(matrix) for matrix, _ in pairs) * shape[0] + affine.count < source.numel():
        return None
    at_zero = affine.slope(torch.zeros_like(source))

    def normal(h: Tensor) -> Tensor:
        """Of  |M h - g|^2 + |outputs - known ones|^2, for h (c, pixels)."""
        beat()
        back = affine.slope(h.reshape(source.shape)) - at_zero
        return h @ square + back.reshape(h.shape)

    found = conjugate(normal, right - at_zero.reshape(shape[0], -1))
    rest = max(float((matrix @ found.T - wanted).norm() / wanted.norm()) for matrix, wanted in pairs)
    return found.reshape(shape) if rest <= CLOSE else None


class _Outputs:
    """What goes into known ReLUs as a function of one tensor, which is affine as long as the known ones are given."""

    def __init__(self, trace: Trace, source: Tensor, seen: Sequence[Seen]) -> None:
        given = [each.after for each in seen]
        reached = trace.after([source], without=given)
        around = trace.after([trace.images], without=[source, *given])  # by ways of which nothing is known
        self._source = source
        self._seen = [each for each in seen if id(each.before) in reached - around]
        self.count = sum(int(each.on.sum()) for each in self._seen)
        self._values: Mapping[int, Tensor] = {id(each.after): each.value for each in seen}
        self._wanted = [each.before for each in self._seen]
        self._calls = trace.between([source, *given], self._wanted)

    def slope(self, h: Tensor) -> Tensor:
        """Of half the squared distance to the known outputs."""
        h = h.detach().requires_grad_()
        with torch.enable_grad():
            outputs = replay(self._calls, {**self._values, id(self._source): h}, self._wanted)
            apart = [(out - each.value)[each.on] for out, each in zip(outputs, self._seen, strict=True)]
            far = sum((part.square().sum() for part in apart), h.new_zeros(())) / 2 + 0 * h.sum()
            (slope,) = torch.autograd.grad(far, h)
        return slope
