"""What one learned layer's gradient and output say about its input, as linear equations, and their solution.

For a convolution  z = W * u + b  of an unknown input u, whose output y = A z + c is known in places:

    forward     A (W * u) = y - A b - c                  the places of y that are known
    gradient    sum_p d[o, p] u[c, p + i] = dW[o, c, i]  d = dL/dz is known; the same matrix G for every channel c

G is decomposed once. Directions of a channel's pixels that it sees sharply are solved by it alone; the others (weak or
not seen at all) are solved together with the forward equations, as least squares. The rank of the stacked system is

    rank [gradient; forward] = channels * (sharp directions) + rank of both on what is left

which is exact, since the rows of sharp directions are orthogonal to what is left. For a fully connected layer there is
one place, G is the vector d, and the solution is dW^T d / |d|^2: Inverting Gradients, Prop. 2. Stacking both kinds of
equations is the step of R-GAP (Zhu and Blaschko 2021).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.attacks.solve.ops import returned

SHARP = 0.1
"""Singular values of G from this share of the largest on are solved by the gradient alone.

Lower is faster, since fewer unknowns are left to both kinds of equations, but rounding grows by its inverse."""

ENTRIES_UP_TO = 10**8
"""Numbers of a system up to which the forward equations are used; the gradient alone solves larger ones."""

OPEN = 1e-6
"""A number is determined when unit steps in open directions move it by less than this."""


class Equations(NamedTuple):
    """One layer's; the unknown is (C, n), n pixels a channel. `spread` leads from it to the layer's own input."""

    places: Tensor  # (K, P) which pixel of the layer's input, from 1, each of K weights meets at each output
    slopes: Tensor  # (O, P) dL/dz
    gradient: Tensor  # (O, C, K) dL/dW
    spread: Tensor | None  # (m, n) pixels of the layer's input from pixels of the unknown; None for the same
    offset: Tensor  # (C, m) the layer's input where the unknown is 0
    forward: Callable[[Tensor], Tensor]  # (N, C, n) -> (N, Y), affine
    outputs: Tensor  # (Y,) y
    known: Tensor  # (Y,) where y is known
    weights: Tensor  # (Y,) how sharply, 1 at most


class Solution(NamedTuple):
    value: Tensor  # (C, n) the smallest that solves them
    known: Tensor  # (C, n) which numbers of it the equations determine
    rank: int
    lifted: Tensor  # (C, n, q) orthonormal directions that the equations see and leave open
    outside: Tensor  # (n, r) directions of a channel that they do not see

    def open(self) -> Tensor:
        """(q + C * r, C, n): all directions that the equations leave open."""
        channels = len(self.value)
        unseen = _repeat(self.outside.T, channels).reshape(-1, *self.value.shape)
        return torch.cat([self.lifted.movedim(2, 0), unseen])


class _Basis(NamedTuple):
    """Pixels of a channel in other coordinates: what the equations can see at all, and what they cannot."""

    inside: Tensor  # (n, e)
    outside: Tensor  # (n, n - e)


class _Gradient(NamedTuple):
    """G = left diag(values) right^T in the coordinates of a basis, and its right-hand side."""

    values: Tensor  # (e,) singular values over the largest, largest first; zeros where there are no rows
    right: Tensor  # (e, e)
    known: Tensor  # (e, C) left^T dW over the largest singular value


def solve(equations: Equations, tolerance: float) -> Solution:
    """The least squares solution of smallest norm, and what of it is determined.

    Args:
        equations: of one layer.
        tolerance: singular values below this share of the largest count as 0.
    """
    probe, gain = _sensitivity(equations)
    basis = _basis(equations, probe, tolerance)
    gradient = _decompose(equations, basis, tolerance)
    sharp = int((gradient.values > SHARP).sum())
    channels = equations.gradient.shape[1]
    start = gradient.right[:, :sharp] @ (gradient.known[:sharp] / gradient.values[:sharp, None])  # (e, C)
    weak = basis.inside @ gradient.right[:, sharp:]  # (n, w)
    value = (basis.inside @ start).T  # (C, n)
    rank, open_ = channels * sharp, weak.new_zeros(channels * weak.shape[1], 0)
    if weak.shape[1]:
        rows, rest = _left(equations, value, weak, gradient, sharp, gain)
        found, more, open_ = least_squares(rows, rest, tolerance)
        value = value + found.reshape(channels, -1) @ weak.T
        rank += more
    lifted = torch.einsum("nw,cwq->cnq", weak, open_.reshape(channels, weak.shape[1], open_.shape[1]))
    known = lifted.square().sum(2) + basis.outside.square().sum(1) < OPEN**2
    return Solution(value, known, rank, lifted, basis.outside)


def least_squares(rows: Tensor, rest: Tensor, tolerance: float) -> tuple[Tensor, int, Tensor]:
    """(solution (n,) of smallest norm, rank, directions (n, q) left open) for rows (m, n) of norms about 1.

    Full rank is decided by a QR decomposition with pivots, which is several times faster than the SVD that a lack of
    rank then takes.
    """
    rows, rest, home = rows.cpu(), rest.cpu(), rows.device  # the drivers that find a rank are on the CPU
    m, n = rows.shape
    if m >= n and float(torch.linalg.matrix_norm(rows)) > 0.1:
        fit = torch.linalg.lstsq(rows, rest[:, None], rcond=tolerance, driver="gelsy")
        if int(fit.rank) == n:
            return fit.solution[:, 0].to(home), n, rows.new_zeros(n, 0).to(home)
    if m > n:
        q, rows = torch.linalg.qr(rows)
        rest = q.T @ rest
    left, values, right = torch.linalg.svd(rows, full_matrices=True)
    rank = int((values > tolerance * max(1.0, float(values.max()) if len(values) else 0.0)).sum())
    solution = right[:rank].T @ (left[:, :rank].T @ rest / values[:rank])
    return solution.to(home), rank, right[rank:].T.to(home)


def _sensitivity(equations: Equations) -> tuple[Tensor, float]:
    """(C, n): numbers that are 0 only where no known output depends on the unknown; and how much forward amplifies."""
    channels, m = equations.offset.shape
    n = m if equations.spread is None else equations.spread.shape[1]
    zero = equations.offset.new_zeros(1, channels, n)
    draws = torch.Generator().manual_seed(0)
    cotangent = torch.rand(equations.outputs.shape, generator=draws).to(equations.outputs) + 0.5
    sharp = equations.weights * equations.known
    probe = returned(equations.forward, zero, (cotangent * sharp)[None])
    moved = (equations.forward(probe) - equations.forward(zero))[0] * sharp
    size = float(torch.linalg.vector_norm(probe))
    return probe[0], float(torch.linalg.vector_norm(moved)) / size if size else 1.0


def _basis(equations: Equations, probe: Tensor, tolerance: float) -> _Basis:
    """What the equations can see of a channel: the pixels that they touch, or combinations of them where it spreads."""
    touched = torch.zeros(equations.offset.shape[1] + 1, dtype=torch.bool, device=probe.device)
    touched[equations.places[:, (equations.slopes != 0).any(0)]] = True
    touched = touched[1:]
    if equations.spread is None:
        touched |= (probe != 0).any(0)
        unit = torch.eye(len(touched), dtype=probe.dtype, device=probe.device)
        return _Basis(unit[:, touched], unit[:, ~touched])
    _, values, right = torch.linalg.svd(equations.spread, full_matrices=True)
    rank = int((values > tolerance * values.max()).sum())
    return _Basis(right[:rank].T, right[rank:].T)


def correlation(slopes: Tensor, places: Tensor, pixels: int) -> Tensor:
    """G: (O * K, pixels of the layer's input), from the slopes (O, P) put where each weight meets a pixel."""
    outputs, (weights, count) = len(slopes), places.shape
    matrix = slopes.new_zeros(outputs, weights, pixels + 1)
    where = places.expand(outputs, weights, count)
    matrix.scatter_add_(2, where, slopes[:, None].expand(outputs, weights, count))
    return matrix[..., 1:].flatten(0, 1)


def _decompose(equations: Equations, basis: _Basis, tolerance: float) -> _Gradient:
    matrix = correlation(equations.slopes, equations.places, equations.offset.shape[1])
    rest = equations.gradient.permute(0, 2, 1).flatten(0, 1) - matrix @ equations.offset.T  # (O * K, C)
    if equations.spread is not None:
        matrix = matrix @ equations.spread
    matrix = matrix @ basis.inside  # (O * K, e)
    if len(matrix) > matrix.shape[1]:
        q, matrix = torch.linalg.qr(matrix)
        rest = q.T @ rest
    left, values, right = torch.linalg.svd(matrix, full_matrices=True)
    largest = values.max().clamp_min(torch.finfo(values.dtype).tiny) if len(values) else 1.0
    values = values / largest
    values = torch.where(values > tolerance, values, 0)
    known = (left.T @ rest)[: len(values)] / largest
    missing = matrix.shape[1] - len(values)
    return _Gradient(F.pad(values, (0, missing)), right.T, F.pad(known, (0, 0, 0, missing)))


def _left(
    equations: Equations, value: Tensor, weak: Tensor, gradient: _Gradient, sharp: int, gain: float
) -> tuple[Tensor, Tensor]:
    """Rows (m, C * w) and right-hand side (m,) of all equations for what the sharp directions leave."""
    channels, width = len(value), weak.shape[1]
    faint = int((gradient.values[sharp:] > 0).sum())
    diagonal = F.pad(torch.diag(gradient.values[sharp : sharp + faint]), (0, width - faint))
    rows = [_repeat(diagonal, channels)]
    rest = [gradient.known[sharp : sharp + faint].T.flatten()]
    count = int(equations.known.sum())
    if count and count * channels * width <= ENTRIES_UP_TO:
        weights = equations.weights[equations.known] / gain
        base = equations.forward(torch.zeros_like(value)[None])[0, equations.known]
        columns = []
        for channel in range(channels):
            images = value.new_zeros(width, *value.shape)
            images[:, channel] = weak.T
            columns.append(equations.forward(images)[:, equations.known] - base)  # (w, count)
        rows.append(weights[:, None] * torch.cat(columns).T)
        known = equations.outputs - equations.forward(value[None])[0]
        rest.append(weights * known[equations.known])
    return torch.cat(rows), torch.cat(rest)


def _repeat(matrix: Tensor, channels: int) -> Tensor:
    """The same matrix for every channel: blocks along the diagonal."""
    return torch.kron(torch.eye(channels, dtype=matrix.dtype, device=matrix.device), matrix.contiguous())
