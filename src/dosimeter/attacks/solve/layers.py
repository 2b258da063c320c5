"""A straight network solved from its last layer to its first (R-GAP, Zhu and Blaschko 2021, arXiv:2010.07733).

    last layer        dL/dz is the bias's gradient, or follows from the one scale that explains the weight's; its input
                      by Inverting Gradients, Prop. 1
    every other one   the activation above it is undone and dL/dz follows from the layers above; its input is the
                      solution of the equations in `system`, of which Prop. 2 is the fully connected case

This is exact as long as every number that the layers above depend on is determined. From there on numbers are
estimates, the smallest solution in place of the true one, and no rank counts below. Where less than half is determined,
as before an average pooling, there is nothing to go on with.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from dosimeter.attacks.base import Found
from dosimeter.attacks.solve.certificate import IMAGE, Solver, Update, Walk, direction, judged, refine
from dosimeter.attacks.solve.fill import smoothest
from dosimeter.attacks.solve.inputs import Above, Inputs, solve_inputs
from dosimeter.attacks.solve.ops import Bend, Block, returned
from dosimeter.attacks.solve.ratio import valleys
from dosimeter.attacks.solve.straight import read_straight
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.types import Gradient, Observation, Target

UNITS = 100
"""Singular values within so many units of the update's rounding of the largest count as 0."""

OWN_UNITS = 10
"""The same for the rounding of solving in float64, times the number of unknowns."""

GAP = 1000
"""How many times more than others a badly determined number may be rounded, and its square the gap that shows it."""

HALF = 0.5
"""The share of a layer's input that must be determined for an estimate of the rest to be of any use."""

SCALES = torch.logspace(-4, 5, 91, dtype=torch.float64)
"""Norms of the last layer's input that are tried where it has no bias, with both signs."""


class LayerSolver(Solver):
    def __init__(self, target: Target, seen: Observation, labels: Tensor) -> None:
        super().__init__(target, seen, labels)
        self.blocks = read_straight(self.exact)

    def solve(self, v: int, beat: Beat = unheard) -> Found:
        observed, labels = self.update(v)
        walk = Walk(blank(self.exact), {})
        if all(g.isfinite().all() for g in observed.values()):
            walk = walk_down(self.exact, self.blocks, observed, labels, self.precision, beat)
        update = Update(self.exact, self.blocks[0].learned.weight, observed, labels, rounding=self.precision)
        return judged(walk, blank(self.exact), update.mismatch, update.bound, self.blocks[-1], observed)


class Descent(NamedTuple):
    """Where a way down through blocks ended."""

    inputs: Inputs | None  # of the first block; None where there was too little to go on with
    above: Above  # of the first block
    ranks: dict[str, tuple[int, int]]  # {layer: (rank, unknowns)} of its input while all above was exact
    exact: bool  # whether all that the blocks depend on is determined, the first one's input too


def walk_down(
    target: Target, blocks: Sequence[Block], observed: Gradient, labels: Tensor, precision: torch.dtype, beat: Beat
) -> Walk:
    """From the loss to the image.

    Args:
        target: the model, in float64.
        blocks: the model read as a straight network.
        observed: {name: gradient} of one image, in float64.
        labels: (1,)
        precision: in which the update was made.
        beat: before every block and while the image is filled.
    """
    found = descend(blocks, from_loss(target, blocks[-1], observed, labels), observed, precision, beat)
    return walked(target, blocks[0], found, found.ranks, beat)


def descend(
    blocks: Sequence[Block],
    above: Above,
    observed: Gradient,
    precision: torch.dtype,
    beat: Beat,
    *,
    bottom: str = IMAGE,
    exact: bool = True,
) -> Descent:
    """From what is known of the last block's output to the first block's input.

    Args:
        blocks: in the order in which an image meets them.
        above: of the last one's output.
        observed, precision, beat: as in `walk_down`.
        bottom: what the first block's input is called.
        exact: whether what is known of the output is exact.
    """
    eps = torch.finfo(precision).eps
    ranks: dict[str, tuple[int, int]] = {}
    for place in reversed(range(len(blocks))):
        beat()
        block = blocks[place]
        with torch.no_grad():
            inputs = solve_inputs(block, above, observed[block.learned.weight], _tolerance(block, eps), beat)
        if exact:
            ranks[block.learned.name if place else bottom] = (inputs.rank, prod(block.shape))
        back = returned(block.affine, inputs.value[None], above.slopes[None])[0]  # dL/d inputs
        exact = exact and bool((inputs.known | (back == 0)).all())
        if place == 0:
            break
        if not exact and inputs.rank < HALF * prod(block.shape):
            return Descent(None, above, ranks, exact=False)
        above = _from_activation(blocks[place - 1].bend, inputs, back, exact=exact, eps=eps)
    return Descent(inputs, above, ranks, exact)


def reach_first(
    target: Target, blocks: Sequence[Block], observed: Gradient, labels: Tensor, precision: torch.dtype, beat: Beat
) -> Above | None:
    """What all blocks but the first say of the first one's output, with the arguments of `walk_down`; None where that
    is too little."""
    above = from_loss(target, blocks[-1], observed, labels)
    if len(blocks) == 1:
        return above
    last = blocks[1]
    found = descend(blocks[1:], above, observed, precision, beat, bottom=last.learned.name)
    if found.inputs is None or (not found.exact and found.inputs.rank < HALF * prod(last.shape)):
        return None
    back = returned(last.affine, found.inputs.value[None], found.above.slopes[None])[0]
    eps = torch.finfo(precision).eps
    return _from_activation(blocks[0].bend, found.inputs, back, exact=found.exact, eps=eps)


def walked(target: Target, block: Block, found: Descent, ranks: dict[str, tuple[int, int]], beat: Beat) -> Walk:
    """The end of a way down to the first block, blank where it was not reached."""
    if found.inputs is None:
        return Walk(blank(target), ranks)
    return Walk(found.inputs.value, ranks, partial(_filled, target, block, found.inputs, found.above, beat))


def _tolerance(block: Block, eps: float) -> float:
    return max(UNITS * eps, OWN_UNITS * prod(block.shape) * torch.finfo(torch.float64).eps)


def from_loss(target: Target, block: Block, observed: Gradient, labels: Tensor) -> Above:
    """Of the last layer's output: its slopes, nothing else."""
    slopes = observed[block.learned.bias] if block.learned.bias else None
    if slopes is None or not slopes.any():
        slopes = _scaled_slopes(target, block, observed[block.learned.weight], labels)
    slopes = slopes[:, None, None]
    nothing = torch.zeros_like(slopes, dtype=torch.bool)
    return Above(slopes, torch.zeros_like(slopes), nothing, nothing, torch.ones_like(slopes))


def _scaled_slopes(target: Target, block: Block, weight: Tensor, labels: Tensor) -> Tensor:
    """(O,): dL/dz of a last layer without bias.

    Its input is s v with a number s and the unit vector v that the weight's gradient of rank one shows. What the loss
    sends back for s v must give that gradient: s dL/dz(s v) = dW v, as many equations as there are classes for s.
    """
    if not weight.any():
        return torch.zeros_like(weight[:, 0])
    unit = direction(weight)
    seen = weight @ unit

    def slopes(scale: Tensor | float) -> Tensor:
        logits = block.learned((scale * unit)[None, :, None, None])[0, :, 0, 0].detach()
        found: Tensor = grad(lambda z: target.loss(z[None], labels))(logits)
        return found

    def rest(scale: float) -> Tensor:
        return scale * slopes(scale) - seen

    scales = torch.cat([-SCALES.flip(0), SCALES]).tolist()
    heights = torch.stack([rest(scale).square().sum() for scale in scales])
    tried = [refine(rest, scales[i], nudge=1e-6 * abs(scales[i])) for i in valleys(heights)[:3]]
    return slopes(min(tried, key=lambda scale: float(rest(scale).square().sum().nan_to_num(torch.inf))))


def _from_activation(bend: Bend | None, inputs: Inputs, back: Tensor, *, exact: bool, eps: float) -> Above:
    """What the input of the layer above, which an activation gave, says of that activation's own input."""
    known = inputs.known if exact else torch.ones_like(inputs.known)
    if bend is None:
        return Above(back, inputs.value, known, torch.zeros_like(known), torch.ones_like(back))
    zero = _zero(inputs.value[known & (back != 0)], eps)
    undone = bend.inverse(inputs.value, zero)
    sharpness = undone.slopes / undone.slopes.max().clamp_min(torch.finfo(back.dtype).tiny)
    return Above(undone.slopes * back, undone.inputs, undone.trusted & known, undone.below & known & exact, sharpness)


def _zero(values: Tensor, eps: float) -> float:
    """Up to which value a ReLU was inactive: a few times what is below 0, which a ReLU never gives: it is rounding.

    Badly determined numbers are rounded more than others. In float64 a gap tells these from what was active.
    """
    if not len(values):
        return 0.0
    zero = max(3 * float(-values.min()), 10 * eps * float(values.abs().max()))
    above = [value for value in values.sort().values.tolist() if value > zero]
    far = [low for low, high in pairwise(above) if low < GAP * zero and high > GAP**2 * low]
    return max(far, default=zero)


def _filled(target: Target, block: Block, inputs: Inputs, above: Above, beat: Beat, bounded: bool) -> Tensor:
    """The image, the smoothest of those that the first layer's equations and inactive neurons allow."""
    below = above.below.flatten()

    def resting(images: Tensor) -> Tensor:
        return block.affine(images).flatten(1)[:, below]

    with torch.no_grad():
        return smoothest(inputs.value, inputs.open(), blank(target), resting, beat, bounded=bounded)
