"""A block's input from its output: its learned layer's equations solved, and what stands before that layer undone."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks.solve.ops import Affine, Block, Pool, Reshape, Scale, apply, returned
from dosimeter.attacks.solve.system import Equations, Solution, solve
from dosimeter.attacks.stages import Beat
from dosimeter.types import Shape


class Above(NamedTuple):
    """What is known of a block's output y, before its activation; all (O, H, W)."""

    slopes: Tensor  # dL/dy
    outputs: Tensor  # y
    known: Tensor  # where y is known
    below: Tensor  # where all that is known is y <= 0
    weights: Tensor  # how sharply it is known, 1 at most


class Inputs(NamedTuple):
    """What is known of a block's input."""

    value: Tensor  # (C, H, W)
    known: Tensor  # (C, H, W) which numbers are determined
    rank: int
    open: Callable[[], Tensor]  # (q, C, H, W) directions that are left open


class _Run(NamedTuple):
    """Affine maps in a row that do the same to all pixels of a channel: u = spread (factor * h) + offset."""

    shape: Shape  # of h
    factor: Tensor  # (C, 1)
    spread: Tensor | None  # (m, n); None where no pixel meets another
    offset: Tensor  # (C, m)


def solve_inputs(block: Block, above: Above, gradient: Tensor, tolerance: float, beat: Beat) -> Inputs:
    """Solve a block's learned layer and go on to what came into the block.

    Args:
        block: the layer with what is around it.
        above: what is known of its output.
        gradient: dL/dW.
        tolerance: as in `system.solve`.
        beat: between its pieces.
    """
    runs = _runs(block, gradient)
    last, kernel = runs[-1], block.learned.kernel  # (O, C, k, k)
    inputs = apply(block.before, gradient.new_zeros(1, *block.shape))
    slopes = returned(lambda z: apply(block.after, z), block.learned(inputs), above.slopes[None])

    def forward(h: Tensor) -> Tensor:
        beat()
        u = (h if last.spread is None else h @ last.spread.T) + last.offset
        return apply(block.after, block.learned(u.reshape(-1, *inputs.shape[1:]))).flatten(1)

    equations = Equations(
        places=block.learned.places,
        slopes=slopes[0].flatten(1),
        gradient=gradient.reshape(len(kernel), kernel.shape[1], -1),
        spread=last.spread,
        offset=last.offset,
        forward=forward,
        outputs=above.outputs.flatten(),
        known=above.known.flatten(),
        weights=above.weights.flatten(),
    )
    return _undo(runs, solve(equations, tolerance))


def _undo(runs: Sequence[_Run], solution: Solution) -> Inputs:
    """From the numbers that were solved for to those that came into the block.

    Where pixels were pooled before they were flattened, every window's smallest solution is its mean.
    """
    inverses = [None if run.spread is None else torch.linalg.pinv(run.spread) for run in runs[:-1]]

    def down(x: Tensor, *, shifted: bool) -> Tensor:
        """(N, C, n) -> (N, C, H, W)"""
        x = x / runs[-1].factor
        for run, inverse in zip(reversed(runs[:-1]), reversed(inverses), strict=True):
            x = x.reshape(-1, *run.offset.shape)
            x = x - run.offset if shifted else x
            x = (x if inverse is None else x @ inverse.T) / run.factor
        return x.reshape(-1, *runs[0].shape)

    known, rank = solution.known, solution.rank
    for run, inverse in zip(reversed(runs[:-1]), reversed(inverses), strict=True):
        if inverse is None or run.spread is None:
            known = known.reshape(run.offset.shape)
            continue
        seen = (inverse @ run.spread).diagonal() > 1 - 1e-9  # pixels that pooling leaves as they are
        known = (known.all() & seen).expand(len(run.factor), -1)
        rank = min(rank, len(run.factor) * int(torch.linalg.matrix_rank(run.spread)))
    return Inputs(
        down(solution.value[None], shifted=True)[0],
        known.reshape(runs[0].shape),
        rank,
        lambda: down(solution.open(), shifted=False),
    )


def _runs(block: Block, like: Tensor) -> list[_Run]:
    """What stands before the learned layer, cut where numbers change their channel."""
    shape, runs = block.shape, []
    ops: list[Affine] = []
    for op in (*block.before, None):
        if op is not None and not isinstance(op, Reshape):
            ops.append(op)
            continue
        runs.append(_run(shape, ops, like))
        if op is not None:
            shape, ops = op.shape, []
    return runs


def _run(shape: Shape, ops: Sequence[Affine], like: Tensor) -> _Run:
    channels, height, width = shape
    factor = like.new_ones(channels, 1, 1)
    pools = [op for op in ops if isinstance(op, Pool)]
    for op in ops:
        factor = factor * op.factor if isinstance(op, Scale) else factor
    spread = None
    if pools:
        pixels = torch.eye(height * width).to(like).reshape(-1, 1, height, width)
        spread = (apply(pools, pixels) - apply(pools, torch.zeros_like(pixels[:1]))).flatten(1).T
    return _Run(shape, factor.flatten(1), spread, apply(ops, like.new_zeros(1, *shape))[0].flatten(1))
