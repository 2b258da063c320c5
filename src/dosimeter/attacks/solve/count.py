"""How much the equations of a straight network determine at most, by counting them: nothing is solved.

A layer that is applied at P places, z_p = W u_p with W (O, k), has the gradient dW = D^T U with D (P, O) of what came
back, which is at most min(P, O) k equations for its input. Where its outputs are known there is one more for each.
Places whose outputs no later layer sees count for nothing, what no place sees stays open, and so does all of an average
but the average. See `layers`, which solves these equations one by one.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks.solve.certificate import IMAGE
from dosimeter.attacks.solve.ops import Block, Pool, apply


class Rank(NamedTuple):
    """Of a layer's input."""

    rank: int  # at most
    unknowns: int


def count_ranks(blocks: Sequence[Block]) -> dict[str, Rank]:
    """{layer, or image for the first one's input: how much of it is determined at most}, from the last layer down.

    It ends with the first that leaves open what the layers above depend on: below are estimates, which no rank counts.
    """
    found: dict[str, Rank] = {}
    used = _used(blocks)
    for place in reversed(range(len(blocks))):
        block, last = blocks[place], place + 1 == len(blocks)
        unknowns, averages = prod(block.shape), _averages(block)
        solved, seen = _solved(block, *used[place], known=not last)
        found[block.learned.name if place else IMAGE] = Rank(min(unknowns, averages, solved), unknowns)
        if averages < unknowns or solved < seen:
            break
    return found


def _used(blocks: Sequence[Block]) -> list[tuple[Tensor, int]]:
    """For every block which places (P,) of its layer later ones see, and how many of its outputs.

    Found by what comes back without the activations, which only ever stop something; all where nothing does, as with
    weights that start at 0.
    """
    kernel = blocks[0].learned.kernel
    x = kernel.new_zeros(1, *blocks[0].shape).requires_grad_()
    inner, outer = [], []
    with torch.enable_grad():
        for block in blocks:
            inner.append(block.learned(apply(block.before, x)))
            outer.append(x := apply(block.after, inner[-1]))
        back = torch.autograd.grad((x * torch.linspace(1, 2, x.numel()).to(x).reshape(x.shape)).sum(), [*inner, *outer])
    masks = [slope != 0 if slope.any() else torch.ones_like(slope, dtype=torch.bool) for slope in back]
    return [
        (one[0].flatten(1).any(0), int(other.sum())) for one, other in zip(masks, masks[len(blocks) :], strict=False)
    ]


def _averages(block: Block) -> int:
    """Numbers that are left of a block's input where it is averaged most."""
    x = block.learned.kernel.new_zeros(1, *block.shape)
    least = x.numel()
    for op in block.before:
        x = op(x)
        least = min(least, x.numel()) if isinstance(op, Pool) else least
    return least


def _solved(block: Block, places: Tensor, outputs: int, *, known: bool) -> tuple[int, int]:
    """Numbers that a learned layer determines of what goes into it at most, and those that it sees.

    Args:
        places: (P,) which of its places count.
        outputs: how many of the block's outputs do.
        known: whether these are known.
    """
    learned = block.learned
    width, channels, *kernel = learned.kernel.shape
    if learned.places.numel() == 1:
        return channels, channels
    met = learned.places[:, places]
    seen = channels * len(torch.unique(met[met > 0]))
    equations = min(width, met.shape[1]) * channels * prod(kernel) + (outputs if known else 0)
    return min(seen, equations), seen
