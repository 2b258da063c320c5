"""Products of a simulated gradient with the observed one, tensor by tensor, in the cheapest exact form.

A weight's gradient for one candidate is g = sum_p d_p a_p^T over all positions p of its images. With an observed G:

    factored   G = U V of low rank:   <g, G> = sum_p (d_p U)(V a_p),   |g|^2 = sum_pq (d_p.d_q)(a_p.a_q)
    Gram       G full (noise):        <g, G> = sum_p d_p^T G a_p,      |g|^2 the same
    dense      few entries, many positions: write g out and compare entry by entry
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dosimeter.engine.layers import Conv, Outer, Part, Vector
from dosimeter.rng import stream
from dosimeter.trees import flat

ENTRIES_AT_ONCE = 2**24
"""Entries of simulated gradients that are written out together, 64 MiB in float32."""


Owner = tuple[Tensor, int] | None
"""The owners that were last asked for, and how often that tensor had been written to."""


def is_same(owner: Tensor, last: Owner) -> bool:
    """Whether these are the owners that were last asked for, so that nothing has to be copied."""
    return last is not None and owner is last[0] and owner._version == last[1]


class Row(NamedTuple):
    """Products of one tensor (N,), or of several (N, tensors)."""

    cross: Tensor  # <simulated, observed>
    squared: Tensor  # |simulated|^2
    apart: Tensor | None  # |simulated - observed|^2 where entries were compared


class Vectors:
    """All tensors that are written out as small vectors, compared in one go.

    Args:
        observed: (V, *shape of the parameter) each.
    """

    def __init__(self, observed: Sequence[Tensor], *, entries: bool) -> None:
        self._entries = entries
        self._observed = torch.cat([flat(o) for o in observed], 1)  # (V, all entries)
        sizes = [o[0].numel() for o in observed]
        which = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self._sum = F.one_hot(which).to(self._observed)  # (all entries, tensors)
        self._owner: Owner = None

    def __call__(self, parts: Sequence[Sequence[Part]], owner: Tensor) -> Row:
        """Rows of all tensors side by side, (N, tensors)."""
        if not is_same(owner, self._owner):
            self._owner, self._taken = (owner, owner._version), self._observed[owner]
        simulated = torch.cat([_total(uses, own_order=True) for uses in parts], 1)
        apart = (simulated - self._taken).square() @ self._sum if self._entries else None
        return Row((simulated * self._taken) @ self._sum, simulated.square() @ self._sum, apart)


class Contraction:
    """How one tensor of the gradient is compared.

    Args:
        observed: (V, *shape of the parameter).
        parts: the parts of this tensor in a trial run, for their shapes.
        entries: always write gradients out, for an exact |simulated - observed|^2.
    """

    def __init__(self, observed: Tensor, parts: Sequence[Part], *, entries: bool) -> None:
        self._entries = entries
        self._owner: Owner = None
        self._left: Tensor
        self._right: Tensor | None = None
        if not all(isinstance(part, Outer) for part in parts):
            self.form, self._left = "dense", flat(observed)
            return
        outer = [part for part in parts if isinstance(part, Outer)]
        positions = sum(part.inputs.shape[1] for part in outer)
        inputs, outputs = outer[0].inputs.shape[2], outer[0].back.shape[2]
        matrix, extra = _as_matrix(observed), outputs - observed.shape[1]  # (V, O, I)
        matrix = F.pad(matrix, (0, 0, 0, extra)) if extra else matrix  # a pad of nothing copies
        if entries or cheaper_dense(positions, inputs, outputs):
            self.form, self._left = "dense", matrix.flatten(1)
            return
        factors = factor(matrix, positions) if 2 * positions <= min(inputs, outputs) else None
        if factors is None:
            self.form, self._left = "Gram", matrix
        else:
            self.form = "factored"
            self._left, self._right = factors

    def __call__(self, parts: Sequence[Part], owner: Tensor) -> Row:
        """Compare the candidates' parts with their owners' observations."""
        left, right = self._rows(owner)
        if self.form == "dense":
            simulated = _total(parts, own_order=not all(isinstance(part, Outer) for part in parts))
            apart = (simulated - left).square().sum(1) if self._entries else None
            cross, squared = _Compare.apply(simulated, left)  # type: ignore[no-untyped-call]
            return Row(cross, squared, apart)
        inputs, back = _positions(parts)
        squared = _gram(inputs, back)
        if right is None:
            cross = (torch.bmm(inputs, left.transpose(1, 2)) * back).flatten(1).sum(1)
        elif inputs.shape[1] == 1 and left.shape[2] == 1:
            cross = (back[:, 0] * left[:, :, 0]).sum(1) * (inputs[:, 0] * right[:, 0]).sum(1)
        else:
            cross = (torch.bmm(back, left) * torch.bmm(inputs, right.transpose(1, 2))).flatten(1).sum(1)
        return Row(cross, squared, None)

    def _rows(self, owner: Tensor) -> tuple[Tensor, Tensor | None]:
        """The observations of the owners; copied only when the owners change, not at all when each has itself."""
        if not is_same(owner, self._owner):
            self._owner = (owner, owner._version)
            same = len(owner) == len(self._left) and bool(
                (owner == torch.arange(len(owner), device=owner.device)).all()
            )
            self._taken = (
                self._left if same else self._left[owner],
                self._right if same or self._right is None else self._right[owner],
            )
        return self._taken


def _positions(parts: Sequence[Part]) -> tuple[Tensor, Tensor]:
    """Inputs (N, P, I) and what came back (N, P, O), over all positions of a candidate's images and uses."""
    pairs = [(part.inputs, part.back) for part in parts if isinstance(part, Outer)]
    return pairs[0] if len(pairs) == 1 else (torch.cat([a for a, _ in pairs], 1), torch.cat([d for _, d in pairs], 1))


def _total(parts: Sequence[Part], *, own_order: bool) -> Tensor:
    """The gradient (N, entries) that all uses of a parameter make together."""
    total: Tensor | None = None
    for part in parts:
        value = write_out(part, own_order=own_order)
        total = value if total is None else total + value
    assert total is not None
    return total


def entry_losses(
    parts: Sequence[Part], observed: Tensor, owner: Tensor, compare: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """compare(simulated, observed) (N,) of one tensor, written out for a few candidates at a time and then forgotten.

    The backward pass writes them out once more, so that memory never holds all.
    """
    few = max(1, ENTRIES_AT_ONCE // observed.shape[1])
    losses = []
    for first in range(0, len(owner), few):
        some = slice(first, first + few)
        mine = [_only(part, some) for part in parts]

        def loss(uses: list[Part], who: Tensor) -> Tensor:
            return compare(_total(uses, own_order=True), observed[who])

        losses.append(checkpoint(loss, mine, owner[some], use_reentrant=False))
    return torch.cat(losses)


def _only(part: Part, some: slice) -> Part:
    if isinstance(part, Vector):
        return part._replace(value=part.value[some])
    if isinstance(part, Conv):
        some = slice(some.start * part.batch, some.stop * part.batch)
    return part._replace(inputs=part.inputs[some], back=part.back[some])


def write_out(part: Part, *, own_order: bool) -> Tensor:
    """One part's gradient (N, entries); in the parameter's own order, or in that of windows."""
    if isinstance(part, Vector):
        return part.value
    if isinstance(part, Conv):
        gradient: Tensor = _NativeGradient.apply(*part[1:])  # type: ignore[no-untyped-call]
        return gradient.flatten(1)
    matrix = torch.bmm(part.inputs.transpose(1, 2), part.back).transpose(1, 2)  # (N, O, I), in the faster order
    if own_order:
        matrix = matrix[:, : part.outputs]
    if own_order and part.kernel is not None:
        matrix = matrix.reshape(*matrix.shape[:2], *part.kernel, -1).permute(0, 1, 4, 2, 3)
    return matrix.flatten(1)


def factor(matrices: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
    """U (V, O, r) and V (V, r, I) with U V equal to (V, O, I) to rounding, or None where the rank is higher.

    The range is found from a few random combinations of columns and then checked against every entry.
    """
    width = rank + (4 if rank > 1 else 0)
    eps = 100 * torch.finfo(matrices.dtype).eps
    test = torch.randn(matrices.shape[2], width, generator=stream(0, "factor"), dtype=matrices.dtype).to(
        matrices.device
    )
    lefts, rights = [], []
    for matrix in matrices:
        left = torch.linalg.qr(matrix @ test).Q
        left = torch.linalg.qr(matrix @ (left.T @ matrix).T).Q  # once more, for a test that was nearly orthogonal
        right = left.T @ matrix
        if (matrix - left @ right).norm() > eps * matrix.norm():
            return None
        lefts.append(left)
        rights.append(right)
    return torch.stack(lefts), torch.stack(rights)


def cheaper_dense(positions: int, inputs: int, outputs: int) -> bool:
    """Multiplications of writing out against Gram matrices; touching an entry in memory counts as eight."""
    written = positions * inputs * outputs + 8 * inputs * outputs
    gram = 2 * positions**2 * (inputs + outputs) + positions * (inputs + outputs) * min(positions, inputs, outputs)
    return written < gram


def _gram(inputs: Tensor, back: Tensor) -> Tensor:
    """|sum_p back_p inputs_p^T|^2, (N,)."""
    if inputs.shape[1] == 1:
        return inputs[:, 0].square().sum(1) * back[:, 0].square().sum(1)
    return (torch.bmm(inputs, inputs.transpose(1, 2)) * torch.bmm(back, back.transpose(1, 2))).flatten(1).sum(1)


def _as_matrix(observed: Tensor) -> Tensor:
    """(V, O, I) as it is; (V, O, C, k, k) in the order of a window's row, (V, O, k * k * C)."""
    return observed if observed.ndim == 3 else observed.permute(0, 1, 3, 4, 2).flatten(2)


class _Compare(torch.autograd.Function):
    """(simulated (N, E), observed (N, E)) -> cross and squared (N,), in as few passes as there can be."""

    @staticmethod
    def forward(ctx: Any, simulated: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(simulated, observed)
        return (simulated * observed).sum(1), torch.linalg.vector_norm(simulated, dim=1).square()

    @staticmethod
    def backward(ctx: Any, cross: Tensor, squared: Tensor) -> tuple[Tensor, None]:
        simulated, observed = ctx.saved_tensors
        return (observed * cross[:, None]).addcmul_(simulated, 2 * squared[:, None]), None


class _NativeGradient(torch.autograd.Function):
    """A convolution's weight gradients (N, O, C, k, k) by native kernels, a candidate at a time."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, back: Tensor, layer: Any, batch: int) -> Tensor:
        ctx.save_for_backward(inputs, back)
        ctx.layer, ctx.batch = layer, batch
        mask = [False, True, False]
        return torch.stack([_backward(layer, x, layer.weight, d, mask)[1] for x, d in _pairs(inputs, back, batch)])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None, None]:
        inputs, back = ctx.saved_tensors
        layer = ctx.layer
        settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
        into, out = [], []
        for (x, d), weight in zip(_pairs(inputs, back, ctx.batch), slope, strict=True):
            out.append(F.conv2d(x, weight, None, *settings))
            into.append(_backward(layer, x, weight, d, [True, False, False])[0])
        return torch.cat(into), torch.cat(out), None, None


def _pairs(inputs: Tensor, back: Tensor, batch: int) -> Any:
    return zip(torch.split(inputs, batch), torch.split(back, batch), strict=True)


def _backward(layer: Any, x: Tensor, weight: Tensor, back: Tensor, mask: list[bool]) -> Any:
    return torch.ops.aten.convolution_backward(
        back, x, weight, None, layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups, mask
    )
