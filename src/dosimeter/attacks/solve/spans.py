"""Patches with fixed positions, solved for by the span of the tokens that the first block's weights saw.

Positions that are not trained send nothing. But the weights that multiply normalised tokens, such as those of queries,
keys and values, have the gradient  sum_t d_t n_t^T,  whose rows lie in the span of the tokens

    n_t = g * C z_t / s_t + h,    z_t = W x_t + c_t

with C the taking off of the mean, s_t the deviation, g and h the norm's own weights, c_t the bias and the position.
Where there are fewer tokens than numbers of one, that span is known, and with P the projection to what is outside of it

    P (g * C (W x_t + c_t) + s_t h) = 0

is linear in x_t and s_t: one small least-squares problem a patch. Its solution is the only one if no sum of positions
lies among the images of patches, which takes positions in general place and  tokens + numbers of a patch < width.
Separable positions (sines and cosines of rows and columns) are sums of each other, and without positions any mixture
of patches is a solution: there it ends. APRIL (Lu et al., CVPR 2022) solves the same gradients with the
help of that of learned positions; here positions send nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks.base import Found
from dosimeter.attacks.solve.certificate import IMAGE, Solver, Update
from dosimeter.attacks.solve.embedding import Cut, Linear, find_cut, near, probe_gradient
from dosimeter.attacks.solve.levels import whole_levels
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.networks.remember import remembered
from dosimeter.networks.trace import Section, arguments
from dosimeter.types import Ended, Gradient, Observation, Outcome, Target

NORM = {"normalized_shape": None, "weight": None, "bias": None, "eps": 1e-5}

RIGHT = 0.01
"""Relative error up to which patches of the attacker's own must come out of their rounded update."""


class Tokens(NamedTuple):
    """How normalised tokens follow from patches, and which weights multiply them."""

    weights: tuple[str, ...]
    number: int  # of tokens, also those that are no patches
    slope: Tensor  # (m, k) g * C W
    offset: Tensor  # (T, m) g * C c_t
    shift: Tensor  # (m,) h
    image: Linear  # (T, k) -> (C, H, W)

    def solve(self, observed: Gradient) -> Tensor:
        """(T, k): the patches."""
        rows = torch.cat([observed[name] for name in self.weights])
        span = torch.linalg.svd(rows, full_matrices=False)[2][: self.number]  # (count, m)
        unknown = torch.cat([self.slope, self.shift[:, None]], 1) if self.shift.any() else self.slope
        outside = unknown - span.T @ (span @ unknown)  # (m, k) or (m, k + 1)
        given = self.offset - self.offset @ span.T @ span  # (T, m)
        found = torch.linalg.lstsq(outside, -given.T, driver="gelsd").solution  # gelsd, for those without full rank
        patches: Tensor = found[: self.slope.shape[1]].T
        return patches


@remembered
def find_tokens(target: Target, precision: torch.dtype) -> Tokens | None:
    """The first norm behind patches, if the weights that see its tokens determine these.

    That they do is tried on an image of the attacker's own, whose update is rounded as clients' are.

    Args:
        target: the model, in float64.
        precision: of updates.
    """
    cut = find_cut(target)
    if cut is None:
        return None
    behind = cut.trace.after(cut.first.outputs)
    norm = next((c for c in cut.trace.calls if c.name == "layer_norm" and id(c.inputs[0]) in behind), None)
    placed = None if norm is None else _placed(cut, norm.inputs[0])
    if norm is None or placed is None:
        return None
    shape, scale, shift, _ = arguments(norm.args[1:], norm.kwargs, **NORM)
    width = placed.shape[1]
    if tuple(shape) != (width,):
        return None
    normal = norm.outputs[0].reshape(-1, width)  # (count, m)
    gradient = probe_gradient(target, cut)
    weights = tuple(name for name, g in gradient.items() if len(normal) < width and _inside(g, normal))
    scale = placed.new_ones(width) if scale is None else scale.detach()
    slope = scale[:, None] * _centred(cut.first.inputs[1].detach().flatten(1), 0)
    shift = placed.new_zeros(width) if shift is None else shift.detach()
    found = Tokens(weights, len(normal), slope, scale * _centred(placed, 1), shift, cut.image)
    if not weights or len(normal) + slope.shape[1] >= width:
        return None
    truth = cut.patches(cut.trace.images[0])
    seen = {name: g.to(precision).double() for name, g in gradient.items()}
    apart = torch.linalg.norm(found.solve(seen) - truth) / torch.linalg.norm(truth)
    return found if apart < RIGHT else None


class TokenSolver(Solver):
    """Solves for the patches of one image by the span of its tokens."""

    def __init__(
        self, target: Target, tokens: Tokens, seen: Observation, labels: Tensor, levels: int | None = None
    ) -> None:
        super().__init__(target, seen, labels)
        self.tokens, self.levels = tokens, levels

    def solve(self, v: int, beat: Beat = unheard) -> Found:
        observed, labels = self.update(v)
        update = Update(self.exact, self.tokens.weights[0], observed, labels, rounding=self.precision)
        grey = blank(self.exact)
        if not all(g.isfinite().all() for g in observed.values()):
            return Found(grey, torch.inf, Ended(Outcome.NOT_DETERMINED), {IMAGE: 0.0})
        beat()
        image = self.tokens.image(self.tokens.solve(observed))
        match, none = update.mismatch(image), update.mismatch(grey)
        whole = whole_levels(image, self.levels)
        if whole is not None and update.mismatch(whole) <= match:
            image, match = whole, update.mismatch(whole)
        if match > min(none, 1.0):  # noise, and nothing that is better than to say nothing
            return Found(grey, none, Ended(Outcome.NOT_DETERMINED), {IMAGE: 0.0})
        outcome = Outcome.RECOVERED if match <= update.bound else Outcome.NOT_DETERMINED
        return Found(image, match, Ended(outcome), {IMAGE: 1.0})


def _placed(cut: Cut, tokens: Tensor) -> Tensor | None:
    """(T, m): c_t, what is added to  W x_t  of every patch among the tokens; None where they are something else."""
    weight = cut.first.inputs[1].detach().flatten(1)  # (m, k)
    if tokens.dim() != 3 or tokens.shape[2] != len(weight):
        return None
    here = cut.trace.images[0]
    there = here.flip(-1).square()
    run = Section(cut.trace, cut.trace.images, tokens)
    one, other = run(here[None])[0].detach(), run(there[None])[0].detach()  # (count, m)
    one_cut, other_cut = cut.patches(here) @ weight.T, cut.patches(there) @ weight.T  # (T, m)
    order = torch.cdist(one_cut - other_cut, one - other).argmin(1)  # which token is which patch's
    added = one[order] - one_cut
    right = near(other_cut + added, other[order]) and len(set(order.tolist())) == len(order)
    return added if right else None


def _inside(gradient: Tensor, tokens: Tensor) -> bool:
    """Whether the rows of a gradient are sums of tokens (count, m)."""
    if gradient.dim() != 2 or gradient.shape[1] != tokens.shape[1] or not gradient.any():
        return False
    span = torch.linalg.qr(tokens.T)[0]  # (m, count)
    return near(gradient @ span @ span.T, gradient)


def _centred(values: Tensor, dim: int) -> Tensor:
    return values - values.mean(dim, keepdim=True)
