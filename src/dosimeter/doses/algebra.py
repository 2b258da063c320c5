"""Linear-Gaussian algebra on information matrices (N, N), all in float64.

With a prior of precision P and information M = J^T S^-1 J the posterior's precision is P + M. Unknowns that are of no
interest are eliminated by a Schur complement, which is the same as leaving their block of the posterior covariance out.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

BLOCKS = 8
"""Columns of a symmetric product are made in so many blocks, of which those below the diagonal are left out."""


def eliminated(matrix: Tensor, kept: Tensor, precision: Tensor) -> Tensor:
    """M_kk - M_ku (P_u + M_uu)^-1 M_uk for the unknowns u that are not kept, of prior precision P_u (U, U) or (U,)."""
    away = torch.ones(len(matrix), dtype=torch.bool, device=matrix.device)
    away[kept] = False
    own, rest = _span(kept), _span(away.nonzero()[:, 0])
    if not bool(away.any()):
        return matrix[own][:, own]
    inner = matrix[rest][:, rest] + (torch.diag(precision) if precision.ndim == 1 else precision)
    factor = torch.linalg.cholesky(inner)
    side = torch.linalg.solve_triangular(factor, matrix[rest][:, own], upper=False)
    hidden = symmetric(side.T, side.T)
    return torch.sub(matrix[own][:, own], hidden, out=hidden)


def _span(places: Tensor) -> Tensor | slice:
    """A slice where places follow one another, which takes no copy."""
    if len(places) and bool((places.diff() == 1).all()):
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def symmetric(t: Tensor, z: Tensor) -> Tensor:
    """t z^T for factors (N, R) whose product is known to be symmetric."""
    n = len(t)
    edges = [round(n * i / BLOCKS) for i in range(BLOCKS + 1)]
    out = t.new_empty(n, n)
    for low, high in pairwise(edges):
        block = t[low:high] @ z[low:].T
        out[low:high, low:] = block
        out[high:, low:high] = block[:, high - low :].T
        square = block[:, : high - low]
        out[low:high, low:high] = (square + square.T) / 2
    return out


def blocks(*matrices: Tensor) -> Tensor:
    """One matrix of several along its diagonal."""
    whole: Tensor = torch.block_diag(*matrices)  # type: ignore[no-untyped-call]
    return whole


def above(matrix: Tensor) -> int:
    """How many eigenvalues of a symmetric matrix are above 0, by Sylvester's law of inertia from L D L^T."""
    found, pivots = torch.linalg.ldl_factor(matrix)
    diagonal, below = found.diagonal().tolist(), found.diagonal(-1).tolist()
    count, at, pairs = 0, 0, (pivots < 0).tolist()
    while at < len(matrix):
        if pairs[at]:  # a block of two, which has one eigenvalue on either side unless its determinant is positive
            determinant = diagonal[at] * diagonal[at + 1] - below[at] ** 2
            count += 1 if determinant < 0 else 2 * (diagonal[at] > 0)
            at += 2
        else:
            count += diagonal[at] > 0
            at += 1
    return count


class Posterior(NamedTuple):
    """What a linear-Gaussian reader with a prior knows behind the update."""

    bits: float  # 1/2 log2 det(P + M) / det P
    error: float  # mean over dimensions of the posterior variance
    spread: Tensor  # (n,) the posterior variance of every dimension
    covariance: Tensor  # (n, n)


def posterior(matrix: Tensor, precision: Tensor, log_precision: float) -> Posterior:
    """Of information (n, n) and a prior of precision (n, n) whose log-determinant is known."""
    factor = torch.linalg.cholesky(matrix + precision)
    bits = (2 * float(factor.diagonal().log().sum()) - log_precision) / (2 * math.log(2))
    covariance = torch.cholesky_inverse(factor)
    spread = covariance.diagonal().clone()
    return Posterior(max(bits, 0.0), float(spread.mean()), spread, covariance)


def largest(matrix: Tensor, steps: int = 30) -> float:
    """The largest eigenvalue of a positive matrix, to a few per cent, by power iteration."""
    seed = torch.Generator().manual_seed(0)
    vector = torch.randn(len(matrix), generator=seed, dtype=matrix.dtype).to(matrix.device)
    size = 0.0
    for _ in range(steps):
        vector = matrix @ (vector / vector.norm().clamp_min(1e-300))
        size = float(vector.norm())
    return size


def leading(matrix: Tensor, many: int, steps: int = 60) -> Tensor:
    """(many, n) orthonormal directions of the largest eigenvalues of a positive matrix, by subspace iteration."""
    seed = torch.Generator().manual_seed(0)
    block = torch.randn(len(matrix), min(2 * many, len(matrix)), generator=seed, dtype=matrix.dtype).to(matrix.device)
    for _ in range(steps):
        block = torch.linalg.qr(matrix @ block).Q
    _, inner = torch.linalg.eigh(block.T @ matrix @ block)
    found: Tensor = (block @ inner.flip(1)[:, :many]).T
    return found


def psnr(error: float) -> float:
    """Of a mean squared error of pixels in [0, 1], in dB."""
    return -10 * math.log10(max(error, 1e-30))
