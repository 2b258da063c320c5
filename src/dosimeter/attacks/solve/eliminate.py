"""Noise drawn inside the model, solved for instead of searched: the latent, what went into its encoder, the image.

latent     the layers above it are solved one by one, as in `layers`; its slope follows
encoder    its noise is now a function of its input: a fully connected one shows its input by rank one (Inverting
           Gradients, Prop. 1), a convolutional one by the equations in `encoder`
image      the layers below are solved one by one
"""

from dataclasses import replace

import torch
from torch import Tensor

from dosimeter.attacks.base import Found
from dosimeter.attacks.solve.certificate import ROUNDING, Solver, Update, Walk, judged
from dosimeter.attacks.solve.encoder import Equations, Solved, solve_encoder
from dosimeter.attacks.solve.inputs import Above
from dosimeter.attacks.solve.latent import Latent, Noisy, read_noisy
from dosimeter.attacks.solve.layers import UNITS, Descent, descend, from_loss, walked
from dosimeter.attacks.solve.ops import Block, apply, returned
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.rng import stream
from dosimeter.types import Gradient, Observation, Target

LATENT = "latent"

STARTS = 2
"""Inputs from which a convolutional encoder is solved, until one explains its gradient to rounding."""


SETTLED = 1e-9
"""The relative error of an encoder's gradient that solving the layers above it may leave even in float64."""


class LatentSolver(Solver):
    def __init__(self, target: Target, seen: Observation, labels: Tensor, *, seed: int) -> None:
        super().__init__(target, seen, labels)
        self.seed = seed
        self.noisy = read_noisy(self.exact)

    def solve(self, v: int, beat: Beat = unheard) -> Found:
        observed, labels = self.update(v)
        walk, latent = Walk(blank(self.exact), {}), None
        if all(g.isfinite().all() for g in observed.values()):
            starts = self._starts(self.seen.ids[v])
            walk, latent = walk_through(self.exact, self.noisy, observed, labels, self.precision, starts, beat)

        def mismatch(image: Tensor) -> float:
            drawn = {} if latent is None else {self.noisy.noise: self.noisy.noise_of(image, latent)}
            ran, first = replace(self.exact, drawn=drawn), self.noisy.below[0].learned.weight
            return Update(ran, first, observed, labels, rounding=self.precision).mismatch(image)

        bound = ROUNDING * torch.finfo(self.precision).eps
        return judged(walk, blank(self.exact), mismatch, bound, self.noisy.above[-1], observed)

    def _starts(self, victim: str) -> Tensor:
        """(n, C, H, W): the blank image and some of noise."""
        draws = stream(self.seed, "encoder", victim)
        noise = torch.rand(STARTS - 1, *self.exact.shape, generator=draws).to(self.exact.mean)
        return torch.cat([blank(self.exact)[None], noise])


def walk_through(
    target: Target,
    noisy: Noisy,
    observed: Gradient,
    labels: Tensor,
    precision: torch.dtype,
    starts: Tensor,
    beat: Beat,
) -> tuple[Walk, Latent | None]:
    """From the loss to the image, through the noise; the latent is None where there is too little to solve it by.

    Args:
        target: the model, in float64.
        noisy: its parts.
        observed: {name: gradient} of one image, in float64.
        labels: (1,)
        precision: in which the update was made.
        starts: (n, C, H, W) images where the search for the encoder's input may begin.
        beat: before every block and every step of that search.
    """
    upper, latent = find_latent(noisy, observed, labels, precision, beat)
    if latent is None:
        return Walk(blank(target), upper.ranks), None
    encoder = noisy.below[-1]
    observed = {**observed, **noisy.observed(observed)}
    exact = upper.exact
    if encoder.learned.places.numel() == 1:
        above = from_loss(replace(target, loss=noisy.encoder.loss_of(latent)), encoder, observed, labels)
    else:
        solved = search(noisy, latent, observed[encoder.learned.weight], starts, precision, beat)
        nothing = torch.zeros_like(solved.slopes, dtype=torch.bool)
        above = Above(solved.slopes, solved.slopes, nothing, nothing, torch.ones_like(solved.slopes))
        exact = exact and solved.error <= _settled(precision)
    lower = descend(noisy.below, above, observed, precision, beat, exact=exact)
    return walked(target, noisy.below[0], lower, {**upper.ranks, **lower.ranks}, beat), latent


def find_latent(
    noisy: Noisy, observed: Gradient, labels: Tensor, precision: torch.dtype, beat: Beat = unheard
) -> tuple[Descent, Latent | None]:
    """The way down to the latent, and the latent with its slope; arguments as in `walk_through`."""
    top = from_loss(noisy.tail, noisy.above[-1], observed, labels)
    upper = descend(noisy.above, top, observed, precision, beat, bottom=LATENT)
    if upper.inputs is None:
        return upper, None
    value = upper.inputs.value
    slopes = returned(noisy.above[0].affine, value[None], upper.above.slopes[None])
    return upper, Latent(value.reshape(1, *noisy.shape), slopes.reshape(1, *noisy.shape))


def search(
    noisy: Noisy, latent: Latent, gradient: Tensor, starts: Tensor, precision: torch.dtype, beat: Beat
) -> Solved:
    """What went into a convolutional encoder, from the start that leads to the least error."""
    *straight, encoder = noisy.below
    with torch.no_grad():
        inputs = starts
        for block in straight:
            inputs = block(inputs)
        inputs = apply(encoder.before, inputs)
    shape = (inputs.shape[1], inputs.shape[2], inputs.shape[3])
    equations = Equations(encoder.learned, shape, lambda z: noisy.encoder.slopes(z, latent), gradient)
    least = 2 * torch.finfo(precision).eps
    found: list[Solved] = []
    for start in inputs:
        found.append(solve_encoder(equations, start, floor=_floor(straight, encoder), least=least, beat=beat))
        if found[-1].error <= _settled(precision):
            break
    return min(found, key=lambda solved: solved.error)


def _settled(precision: torch.dtype) -> float:
    """The relative error of an encoder's gradient up to which its equations hold."""
    return max(UNITS * torch.finfo(precision).eps, SETTLED)


def _floor(straight: list[Block], encoder: Block) -> float:
    """The least that the activation before an encoder gives."""
    bend = straight[-1].bend if straight else None
    if bend is None or encoder.before:
        return -torch.inf
    return float(bend(torch.full((1,), -1e4, dtype=torch.float64)))
