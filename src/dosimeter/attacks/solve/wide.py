"""What went into a convolution that has at least as many channels as places, solved from its gradient alone.

With a_p (c k k,) what it sees at place p and d_p (o,) what comes back there, one image's gradients are

    dL/dW = sum_p d_p a_p^T = D^T A        dL/db = sum_p d_p = D^T 1        D (P, o), A (P, c k k)

Where P is at most o and D has full rank, the rows of dL/dW span the same space as the patches A do, so that A = B V
with V (P, c k k) an orthonormal basis of it, and 1 = B w with w = S^-1 U^T dL/db from  dL/dW = U S V.  That is linear
in B (P, P), and so is what makes patches those of one picture: they agree wherever they overlap, and show 0 beyond its
edge. For P = 1 it is the ratio of Inverting Gradients, Prop. 1. No layer above has to be known, nor a label; it holds
behind any network, however deep, and deep networks are the ones whose late convolutions are wide.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.attacks.stages import Beat

MOST = 4000
"""Conjugate gradients at most; a ResNet takes 100 to 800."""

ENOUGH = 1e-10
"""They end once what is left of the right-hand side is this share of it."""


class Window(NamedTuple):
    """How a convolution moves over its input."""

    shape: tuple[int, int, int]  # (c, h, w) of the input
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def places(self) -> int:
        """P, how many patches there are."""
        return F.unfold(torch.zeros(1, 1, *self.shape[1:]), **self._how).shape[2]

    @property
    def overlaps(self) -> bool:
        """Whether every patch shares pixels with those next to it; dilated ones do so with every second at best."""
        together = all(kernel > stride for kernel, stride in zip(self.kernel, self.stride, strict=True))
        return together and self.dilation == (1, 1)

    @property
    def _how(self) -> dict[str, tuple[int, int]]:
        return {"kernel_size": self.kernel, "stride": self.stride, "padding": self.padding, "dilation": self.dilation}

    def cut(self, pictures: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, P, c k k)"""
        return F.unfold(pictures, **self._how).mT

    def laid(self, patches: Tensor) -> Tensor:
        """(P, c k k) -> (c, h, w) the sum of patches where they lie: the transpose of `cut`."""
        return F.fold(patches.T[None], self.shape[1:], **self._how)[0]


class Solved(NamedTuple):
    """A layer's input, and what is left of the equations."""

    value: Tensor  # (c, h, w)
    apart: float  # how far patches are from those of one picture, as a share of their size
    spread: float  # the smallest singular value that counts over the largest one that does not, 0 where none counts


def solve_wide(weight: Tensor, bias: Tensor, window: Window, beat: Beat) -> Solved:
    """The input of a wide convolution.

    Args:
        weight: (o, c k k) dL/dW in float64.
        bias: (o,) the sum over places of what comes back, dL/db.
        window: how the layer moves; it has at most as many places as dL/dW has rows and columns.
        beat: called between steps.
    """
    places = window.places
    left, sizes, right = _svd(weight)
    beyond = float(sizes[places]) if places < len(sizes) else torch.finfo(weight.dtype).eps * float(sizes[0])
    left, sizes, right = left[:, :places], sizes[:places], right[:places]
    often = window.laid(window.cut(torch.ones(1, *window.shape).to(weight))[0]).clamp_min(1)  # patches at a pixel
    if not sizes[-1] > 0:
        return Solved(torch.zeros_like(often), 1.0, 0.0)
    w = (left.T @ bias) / sizes
    along, level = w / w.norm(), 1 / w.norm()

    def normal(b: Tensor) -> Tensor:
        """Of  |B V - patches of their mean picture|^2 + |B along - level|^2."""
        beat()
        mean = window.cut((window.laid(b @ right) / often)[None])[0]
        return b - mean @ right.T + torch.outer(b @ along, along)

    b = conjugate(normal, torch.outer(level.expand(places), along))
    value = window.laid(b @ right) / often
    apart = (window.cut(value[None])[0] - b @ right).norm() / (b @ right).norm().clamp_min(1e-300)
    return Solved(value, float(apart.nan_to_num(1.0)), float(sizes[-1]) / max(beyond, 1e-300))


def conjugate(normal: Callable[[Tensor], Tensor], wanted: Tensor) -> Tensor:
    """x with normal(x) = wanted, for a symmetric function that is not negative."""
    x, rest = torch.zeros_like(wanted), wanted
    along, size = rest, rest.square().sum()
    least = ENOUGH**2 * size
    for _ in range(MOST):
        if not size > least:
            break
        through = normal(along)
        step = size / (along * through).sum()
        x, rest = x + step * along, rest - step * through
        before, size = size, rest.square().sum()
        along = rest + size / before * along
    return x


FIRM = 1e-4
"""Equations determine an input where their smallest singular value is at least this share of the largest."""

CLOSE = 1e-3
"""And hold where so much of the gradient at most is not explained by any input; slopes that are wrong leave more."""


def solve_given(weight: Tensor, slopes: Tensor, window: Window) -> Tensor | None:
    """The input (c, h, w) of a convolution where D is known, from D^T A = dL/dW; None where that leaves it
    open, or has no solution.

    Args:
        weight: (o, c k k) dL/dW in float64.
        slopes: (o, places) D^T.
        window: how the layer moves.
    """
    pixels, entries = window.shape[1] * window.shape[2], window.kernel[0] * window.kernel[1]
    if len(weight) * entries < pixels:
        return None
    matrix, wanted = equations(weight, slopes, window)
    left, sizes, right = _svd(matrix)
    if not sizes[-1] > FIRM * sizes[0]:
        return None
    along = left.T @ wanted
    if not (wanted - left @ along).norm() <= CLOSE * wanted.norm():
        return None
    return (right.T @ (along / sizes[:, None])).T.reshape(window.shape)


def equations(weight: Tensor, slopes: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """(o k k, pixels) and (o k k, c): D^T A = dL/dW as equations for the pixels of each channel.

    All channels c have the same: a pixel q under entry k of the kernel at place p has, for every output o,
    sum_p D_po [q = p + k] x_q = dL/dW_ok.
    """
    channels, height, width = window.shape
    pixels, entries = height * width, window.kernel[0] * window.kernel[1]
    each = torch.eye(pixels).to(weight).reshape(pixels, 1, height, width)
    lies = window._replace(shape=(1, height, width)).cut(each)  # (pixels, P, k k)
    matrix = torch.einsum("op,qpk->okq", slopes, lies).flatten(0, 1)
    return matrix, weight.reshape(len(weight), channels, entries).mT.flatten(0, 1)


def _svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    return left, sizes, right
