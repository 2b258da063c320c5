"""An embedding of patches solved for the image, where learned numbers are added to its tokens (as in ViTs).

An embedding gives a token  z_t = W x_t + b  for every patch x_t. With d_t = dL/dz_t its gradient is

    dL/dW = sum_t d_t x_t^T = D^T X,    D (T, m), X (T, k)

and a learned position p_t that is added to z_t has the gradient d_t: all of D is sent. One image's patches are then the
least-squares solution of D^T X = dL/dW, whatever comes behind: attention, noise that is drawn, bottlenecks. Clipping
scales both sides, and local steps on the same image add up on both, for X stays the same. Where D has less than full
rank, as with more patches than the width of a token, patches are determined in the directions that it has.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks.base import Found
from dosimeter.attacks.solve.certificate import IMAGE, Solver, Update
from dosimeter.attacks.solve.embedding import Embedding
from dosimeter.attacks.solve.first_layer import probes_of
from dosimeter.attacks.solve.levels import FIT, whole_levels
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.types import Ended, Gradient, Local, Observation, Outcome, Target

UNITS = 100
"""Singular values of D within so many units of the update's rounding of the largest count as 0."""

SMALL = 0.01
"""Times the median, below which entries are left where zeros are random and not where entries were small."""

SPREAD = 0.25
"""Standard deviation of pixels around grey, where noise leaves them open."""


class PatchSolver(Solver):
    """Solves D^T X = dL/dW for the patches of one image, whose pixels may have been whole levels."""

    def __init__(
        self, target: Target, layer: Embedding, seen: Observation, labels: Tensor, levels: int | None = None
    ) -> None:
        super().__init__(target, seen, labels)
        self.layer, self.levels = layer, levels
        # What other layers saw depends on draws that stay with the client.
        self.draws = bool(target.secrets) or _draws(self.exact)

    def solve(self, v: int, beat: Beat = unheard) -> Found:
        observed, labels = self.update(v)
        update = Update(self.exact, self.layer.weight, observed, labels, rounding=self.precision)
        summed = self._without_decay(observed)
        came, slopes = self.layer.returned(summed), self.layer.equations(summed)
        if not (came.any() and slopes.any() and came.isfinite().all() and slopes.isfinite().all()):
            image = blank(self.exact)
            return Found(image, update.mismatch(image), Ended(Outcome.NOT_DETERMINED), {IMAGE: 0.0})
        beat()
        grey = self.layer.patches(blank(self.exact))
        cut, rank = solve_patches(came, slopes, grey, eps=torch.finfo(self.precision).eps, spread=self._spread())
        image, tokens, apart = self.layer.image(cut), len(came), _apart(came, slopes, cut)
        whole = whole_levels(image, self.levels)
        if whole is not None:
            error = _apart(came, slopes, self.layer.patches(whole))
            if error <= max(FIT * apart, update.bound):  # clients round pixels again as they normalise them
                image, apart = whole, error
        match = apart if self.draws else update.mismatch(image)
        vain = self.draws and rank == came.shape[1]  # then some patches solve any equations
        ended = Ended(Outcome.RECOVERED)
        if match > update.bound or vain:
            ended = Ended(Outcome.NOT_DETERMINED)
        elif rank < tokens:
            ended = Ended(Outcome.PARTLY, f"patches: {rank:,} of {tokens:,} directions determined")
        return Found(image, match, ended, {IMAGE: rank / tokens})

    def _without_decay(self, observed: Gradient) -> Gradient:
        """The update without what weight decay adds to it, so that it is a sum of gradients."""
        if not isinstance(self.exact.step, Local):
            return observed
        pull = self.exact.step.pull(self.exact.parameters, 1)
        return {name: g - pull[name] for name, g in observed.items()}

    def _spread(self) -> float:
        """Of the numbers of patches, for pixels around grey."""
        black, white = (self.layer.patches(each) for each in probes_of(self.exact)[:2])
        return SPREAD * float((white - black).abs().mean())


def _apart(came: Tensor, slopes: Tensor, cut: Tensor) -> float:
    """The relative error of  D^T X = dL/dW."""
    return float(torch.linalg.norm(slopes - came.T @ cut) / torch.linalg.norm(slopes))


def _draws(target: Target) -> bool:
    """Whether the model draws numbers of its own, such as a dropout that is on."""
    probe = probes_of(target)[2:]
    with torch.no_grad():
        return not torch.equal(target.model(probe), target.model(probe))


def solve_patches(came: Tensor, slopes: Tensor, grey: Tensor, *, eps: float, spread: float) -> tuple[Tensor, int]:
    """(T, k) the patches X with D^T X = dL/dW, nearest to grey where that leaves them open; and the rank of D.

    The slopes are known up to what no X explains, and the more that is the nearer patches stay to grey (ridge).
    Where rounding is all that is between them, equations count by how exact each is.
    Entries that are zeros at random have no equation; where small ones are, zero is nearer than nothing.

    Args:
        came: (T, m) D, what came back to the tokens.
        slopes: (m, k) dL/dW, the gradient of the embedding's weight.
        grey: (T, k)
        eps: the precision of the update.
        spread: standard deviation of patches around grey.
    """
    rest = slopes - came.T @ grey
    known, sizes = (slopes != 0) | ~slopes.any(0), slopes[slopes != 0].abs()
    if not known.all() and sizes.min() < SMALL * sizes.median():
        columns = [_ridge(came[:, rows], rest[rows, at, None], eps, spread) for at, rows in enumerate(known.T)]
        return grey + torch.cat([c.cut for c in columns], 1), min(c.rank for c in columns)
    plain = _ridge(came, rest, eps, spread)
    if plain.noise or plain.rank < len(came):
        return grey + plain.cut, plain.rank
    heft = 1 / rounding(came, grey + plain.cut)
    weighed = _ridge(came * heft, heft[:, None] * rest, eps, spread)
    return grey + (weighed if weighed.rank == plain.rank else plain).cut, plain.rank


def rounding(came: Tensor, cut: Tensor) -> Tensor:
    """(m,) how inexact a row of  D^T X = sum_t d_t x_t^T  is where numbers are added up one after another; mean 1.

    Every partial sum is rounded to its own size, and the errors of all of them stay in the sum. As they are
    independent,  var_i ~ sum_t |S_t,i|^2,  S_t = sum_{s <= t} d_s x_s^T  (m, k). Other orders of adding up have other
    partial sums of about these sizes.
    """
    partial = torch.zeros(came.shape[1], cut.shape[1], dtype=came.dtype, device=came.device)
    squares = torch.zeros_like(came[0])
    for back, patch in zip(came, cut, strict=True):
        partial += back[:, None] * patch
        squares += partial.square().mean(1)
    size = squares.sqrt()
    return torch.where(size > 0, size, size.max()) / size.mean()  # what nothing came back to has no equation


class _Solved(NamedTuple):
    cut: Tensor  # (T, k)
    rank: int
    noise: bool  # whether there is more than rounding between both sides


def _ridge(came: Tensor, rest: Tensor, eps: float, spread: float) -> _Solved:
    """The smallest X with D^T X = rest, or one nearer to 0 for noise; and the rank of D."""
    left, sizes, right = torch.linalg.svd(came.T, full_matrices=False)  # (m, r), (r,), (r, T)
    kept = sizes > UNITS * eps * sizes[0]
    left, sizes, right = left[:, kept], sizes[kept], right[kept]
    along = left.T @ rest  # (r, k)
    free = (len(rest) - len(sizes)) * rest.shape[1]
    beyond = (rest - left @ along).square().sum() / max(1, free)  # the variance of noise
    noisy = bool(beyond > (UNITS * eps) ** 2 * rest.square().mean())
    shrunk = sizes / (sizes.square() + (beyond / spread**2 if noisy else 0))
    return _Solved(right.T @ (shrunk[:, None] * along), len(sizes), noisy)
