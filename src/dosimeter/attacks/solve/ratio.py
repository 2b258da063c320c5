"""A fully connected first layer solved for the image.

With one image the gradient of that layer, z = W x + b, is  dW = (dL/dz) x^T  and  db = dL/dz,  so that x is in it:

    with a bias     x = dW^T db / |db|^2, all rows' ratios dW_i / db_i weighted by db_i^2 (Inverting Gradients, Prop. 1)
    without one     dW has rank one, its right singular vector is x up to sign and scale; these two numbers come from
                    the range of pixels and a one-dimensional match of the whole update

Noise on the bias spoils the ratio long before it spoils the singular vector, so an update that the ratio does not
explain is solved in the second way as well and the image that explains more of it is kept.

Where the model draws private numbers later on, only this layer's own equation is checked: all of dW is db x^T.

Several local steps on one image add up to  dW = (sum_t dL/dz_t) x^T  and  db = sum_t dL/dz_t,  whatever the weights are
in between, and clipping scales both: the ratio stays exact.
"""

import torch
from torch import Tensor

from dosimeter.attacks.base import Found
from dosimeter.attacks.solve.certificate import IMAGE, Solver, Update, direction
from dosimeter.attacks.solve.first_layer import FirstLayer
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.engine import Matcher
from dosimeter.types import Ended, Observation, Outcome, Target

SCALES = 64
"""Scales that are tried on the range that keeps pixels in [0, 1], of both signs."""

BASINS = 3
"""The best of them that are better than their neighbours are refined, one after another until one reproduces it."""

SLACK = 0.01
"""How far pixels may leave [0, 1] while scales are tried, so that rounding at 0 and 1 shuts no scale out."""


class RatioSolver(Solver):
    def __init__(self, target: Target, layer: FirstLayer, seen: Observation, labels: Tensor) -> None:
        super().__init__(target, seen, labels)
        self.layer = layer
        self.matcher = Matcher(target, seen.gradient, statistics=seen.statistics)

    def solve(self, v: int, beat: Beat = unheard) -> Found:
        observed, labels = self.update(v)
        weight = observed[self.layer.weight]
        slopes = observed[self.layer.bias] if self.layer.bias else None  # dL/dz
        update = Update(self.exact, self.layer.weight, observed, labels, rounding=self.precision)
        if not weight.any():
            image = blank(self.exact)
            return Found(image, update.mismatch(image), Ended(Outcome.NOT_DETERMINED), {IMAGE: 0.0})
        image, match = blank(self.exact), torch.inf
        if slopes is not None and slopes.any():
            inputs = weight.T @ slopes / slopes.square().sum()
            image = self.layer.image(inputs)
            if self.target.secrets:  # what other layers saw depends on draws that stay with the client
                match = float(torch.linalg.norm(weight - slopes[:, None] * inputs) / torch.linalg.norm(weight))
            else:
                match = update.mismatch(image)
        if match > update.bound:
            image, match = min(
                (image, match), self._scaled(v, direction(weight), update, beat), key=lambda pair: pair[1]
            )
        outcome = Outcome.RECOVERED if match <= update.bound else Outcome.NOT_DETERMINED
        return Found(image, match, Ended(outcome), {IMAGE: 1.0})

    def _scaled(self, v: int, unit: Tensor, update: Update, beat: Beat) -> tuple[Tensor, float]:
        """The image on the line through 0 along `unit` whose update is nearest to the observed one."""
        low, high = scale_range(self.layer, unit)
        scales = torch.linspace(low, high, SCALES, dtype=unit.dtype, device=unit.device)
        images = torch.stack([self.layer.image(s * unit) for s in scales]).unsqueeze(1)  # (SCALES, 1, C, H, W)
        owner = torch.full((SCALES,), v, device=unit.device)
        with torch.no_grad():
            products = self.matcher(images.to(self.target.mean), self.labels[owner], owner)
        apart = products.difference.sum(1).detach()  # (SCALES,)
        best = (blank(self.exact), torch.inf)

        def image_of(scale: float) -> Tensor:
            beat()
            return self.layer.image(scale * unit)

        for start in valleys(apart)[:BASINS]:
            scale = update.refine(image_of, float(scales[start]), (high - low) / SCALES)
            image = self.layer.image(scale * unit)
            best = min(best, (image, update.mismatch(image)), key=lambda pair: pair[1])
            if best[1] <= update.bound:
                break
        return best


def valleys(heights: Tensor) -> list[int]:
    """Places that are no higher than their neighbours, the lowest first."""
    heights = heights.nan_to_num(torch.inf)
    fence = torch.nn.functional.pad(heights, (1, 1), value=torch.inf)
    low = (heights <= fence[:-2]) & (heights <= fence[2:])
    found: list[int] = heights.masked_fill(~low, torch.inf).argsort(stable=True)[: int(low.sum())].tolist()
    return found


def scale_range(layer: FirstLayer, unit: Tensor) -> tuple[float, float]:
    """The scales s that keep the image behind the input s * unit in [0, 1], but for `SLACK`."""
    black = layer.image(torch.zeros_like(unit)).flatten()
    slope = layer.image(unit).flatten() - black
    moves = slope != 0
    ends = torch.stack([(edge - black[moves]) / slope[moves] for edge in (-SLACK, 1 + SLACK)])  # (2, pixels)
    return float(ends.amin(0).max()), float(ends.amax(0).min())
