"""An embedding of patches solved for the image, where learned numbers are added to its tokens (as in ViTs).

An embedding gives a token  z_t = W x_t + b  for every patch x_t. With d_t = dL/dz_t its gradient is

    dL/dW = sum_t d_t x_t^T = D^T X,    D (T, m), X (T, k)

and a learned position p_t that is added to z_t has the gradient d_t: all of D is sent. One image's patches are then the
least-squares solution of D^T X = dL/dW, whatever comes behind: attention, noise that is drawn, bottlenecks. Clipping
scales both sides, and local steps on the same image add up on both, for X stays the same. Where D has less than full
rank, as with more patches than the width of a token, patches are determined in the directions that it has.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from dosimeter.attacks.base import Found
from dosimeter.attacks.solve.certificate import IMAGE, Solver, Update
from dosimeter.attacks.solve.first_layer import probes_of
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.networks.trace import CONV, Call, Section, Trace, arguments
from dosimeter.types import Ended, Gradient, Observation, Outcome, Target

UNITS = 100
"""Singular values of D within so many units of the update's rounding of the largest count as 0."""

CLOSE = 1e-6
"""Relative error up to which a relation is taken to hold in float64."""

SMALL = 0.01
"""Times the median, below which entries are left where zeros are random and not where entries were small."""

SPREAD = 0.25
"""Standard deviation of pixels around grey, where noise leaves them open."""

Linear = Callable[[Tensor], Tensor]


class Embedding(NamedTuple):
    """A layer that sees an image in patches, and how to read off what came back to its tokens."""

    weight: str
    patches: Linear  # (C, H, W) -> (T, k)
    image: Linear  # (T, k) -> (C, H, W)
    positions: dict[str, Linear]  # {parameter: its gradient -> D (T, m)}

    def returned(self, observed: Gradient) -> Tensor:
        """(T, m): D, the mean of what all positions say."""
        return torch.stack([read(observed[name]) for name, read in self.positions.items()]).mean(0)

    def equations(self, observed: Gradient) -> Tensor:
        """(m, k): dL/dW"""
        return observed[self.weight].flatten(1)


def find_embedding(target: Target) -> Embedding | None:
    """The first layer with weights, if it sees patches and the gradients of positions say what came back to them.

    Found by running the model; that the equations hold is tried on an image of the attacker's own.

    Args:
        target: the model, in float64.
    """
    probe = probes_of(target)[2]
    trace = Trace(target.model, probe[None])
    trained = {id(p): name for name, p in target.model.named_parameters() if p.requires_grad}
    seen = trace.after([trace.images])
    first = next((c for c in trace.calls if _weighs(c) and id(c.inputs[0]) in seen), None)
    if first is None or id(first.inputs[1]) not in trained:
        return None
    patches = _patches(trace, first)
    image = None if patches is None else _undo(patches, probe)
    if patches is None or image is None:
        return None
    found = Embedding(trained[id(first.inputs[1])], patches, image, dict(_positions(trace, first, trained)))
    gradient = target.gradient(probe[None], _some_labels(target, trace.output))
    cut, slopes = patches(probe), found.equations(gradient)
    holding = {
        name: read for name, read in found.positions.items() if _near(read(gradient[name]).T @ cut, slopes)
    }  # no way from the tokens to the loss leads around these
    return found._replace(positions=holding) if holding else None


class PatchSolver(Solver):
    """Solves D^T X = dL/dW for the patches of one image."""

    def __init__(self, target: Target, layer: Embedding, seen: Observation, labels: Tensor) -> None:
        super().__init__(target, seen, labels)
        self.layer = layer

    def solve(self, v: int, beat: Beat = unheard) -> Found:
        observed, labels = self.update(v)
        update = Update(self.exact, self.layer.weight, observed, labels, rounding=self.precision)
        came, slopes = self.layer.returned(observed), self.layer.equations(observed)
        if not (came.any() and slopes.any() and came.isfinite().all() and slopes.isfinite().all()):
            image = blank(self.exact)
            return Found(image, update.mismatch(image), Ended(Outcome.NOT_DETERMINED), {IMAGE: 0.0})
        beat()
        grey = self.layer.patches(blank(self.exact))
        cut, rank = solve_patches(came, slopes, grey, eps=torch.finfo(self.precision).eps, spread=self._spread())
        image, tokens = self.layer.image(cut), len(came)
        apart = float(torch.linalg.norm(slopes - came.T @ cut) / torch.linalg.norm(slopes))
        # What other layers saw depends on draws that stay with the client.
        match = apart if self.target.secrets else update.mismatch(image)
        vain = bool(self.target.secrets) and rank == came.shape[1]  # then some patches solve any equations
        ended = Ended(Outcome.RECOVERED)
        if match > update.bound or vain:
            ended = Ended(Outcome.NOT_DETERMINED)
        elif rank < tokens:
            ended = Ended(Outcome.PARTLY, f"patches: {rank:,} of {tokens:,} directions determined")
        return Found(image, match, ended, {IMAGE: rank / tokens})

    def _spread(self) -> float:
        """Of the numbers of patches, for pixels around grey."""
        black, white = (self.layer.patches(each) for each in probes_of(self.exact)[:2])
        return SPREAD * float((white - black).abs().mean())


def solve_patches(came: Tensor, slopes: Tensor, grey: Tensor, *, eps: float, spread: float) -> tuple[Tensor, int]:
    """(T, k) the patches X with D^T X = dL/dW, nearest to grey where that leaves them open; and the rank of D.

    The slopes are known up to what no X explains, and the more that is the nearer patches stay to grey (ridge).
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
        return grey + torch.cat([column for column, _ in columns], 1), min(rank for _, rank in columns)
    cut, rank = _ridge(came, rest, eps, spread)
    return grey + cut, rank


def _ridge(came: Tensor, rest: Tensor, eps: float, spread: float) -> tuple[Tensor, int]:
    """(T, k) the smallest X with D^T X = rest, or one nearer to 0 for noise; and the rank of D."""
    left, sizes, right = torch.linalg.svd(came.T, full_matrices=False)  # (m, r), (r,), (r, T)
    kept = sizes > UNITS * eps * sizes[0]
    left, sizes, right = left[:, kept], sizes[kept], right[kept]
    along = left.T @ rest  # (r, k)
    free = (len(rest) - len(sizes)) * rest.shape[1]
    beyond = (rest - left @ along).square().sum() / max(1, free)  # the variance of noise
    size = rest.square().mean()
    noise = beyond if beyond > (UNITS * eps) ** 2 * size else torch.zeros_like(beyond)
    shrunk = sizes / (sizes.square() + noise / spread**2)
    return right.T @ (shrunk[:, None] * along), len(sizes)


def _weighs(call: Call) -> bool:
    return call.name in ("linear", "conv2d") and len(call.inputs) > 1


def _patches(trace: Trace, first: Call) -> Linear | None:
    """From an image to the patches that a layer multiplies by its weight; None where it does something else."""
    before = Section(trace, trace.images, first.inputs[0])
    if first.name == "linear":
        return lambda image: before(image[None]).flatten(0, -2)
    weight, _, stride, padding, dilation, groups = arguments(first.args[1:], first.kwargs, **CONV)
    if groups != 1 or isinstance(padding, str):
        return None
    kernel = tuple(weight.shape[2:])

    def cut(image: Tensor) -> Tensor:
        return F.unfold(before(image[None]), kernel, dilation, padding, stride)[0].T

    return cut


def _undo(patches: Linear, probe: Tensor) -> Linear | None:
    """From patches to the image, the mean where they overlap; None where pixels are more than scaled and ordered."""
    offset, back = _transposed(patches, torch.zeros_like(probe))
    slope = patches(torch.ones_like(probe)) - offset
    often = back(slope)

    def image(cut: Tensor) -> Tensor:
        return back(cut - offset) / often

    right = bool((often > 0).all()) and _near(image(patches(probe)), probe)
    return image if right and _near(image(patches(probe.flip(-1).square())), probe.flip(-1).square()) else None


def _positions(trace: Trace, first: Call, trained: dict[int, str]) -> Iterator[tuple[str, Linear]]:
    """Parameters that are added to a layer's output, each with how its gradient says what came back to that."""
    tokens = first.outputs[0]
    later = trace.after([tokens])
    for name, parameter in trace.model.named_parameters():
        if id(parameter) not in trained:
            continue
        own = trace.after([parameter])  # and of these, what no image has come to
        sums = (
            call.outputs[0]
            for call in trace.calls
            if call.name in ("add", "iadd", "radd", "add_")
            and any(id(t) in own - later for t in call.inputs)
            and any(id(t) in later and (id(t) not in own or t is call.out) for t in call.inputs)
        )
        total = next(sums, None)
        if total is not None:
            yield name, _reader(trace, parameter.detach(), parameter, tokens, total, first.name)


def _reader(trace: Trace, value: Tensor, parameter: Tensor, tokens: Tensor, total: Tensor, kind: str) -> Linear:
    """How the gradient of a parameter p says that of tokens z where  total = A z + B p:  A^T B (B^T B)^-1 dL/dp."""
    ahead, behind = Section(trace, parameter, total), Section(trace, tokens, total)
    nothing, lowered = _transposed(ahead, torch.zeros_like(value))
    often = lowered(ahead(torch.ones_like(value)) - nothing)
    _, back = _transposed(behind, tokens)

    def read(gradient: Tensor) -> Tensor:
        lifted = ahead(gradient / often.clamp(min=1)) - nothing
        came = back(lifted)
        return came[0].flatten(1).T if kind == "conv2d" else came.flatten(0, -2)

    return read


def _transposed(linear: Linear, at: Tensor) -> tuple[Tensor, Linear]:
    """What a function gives there, and the transpose of its slope."""
    value, back = vjp(linear, at)  # type: ignore[misc]
    return value.detach(), lambda given: back(given)[0].detach()


def _some_labels(target: Target, output: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.long, device=output.device) if target.classification else torch.ones_like(output)


def _near(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.linalg.norm(one - other) <= CLOSE * torch.linalg.norm(other))
