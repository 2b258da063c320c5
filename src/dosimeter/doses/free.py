"""The dose of models that are too large for matrices: products M v alone, and what a few of them say of the spectrum.

    M v = J^T (S^-1 (J v))    one forward and one backward derivative of the update

Stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017, Sec. 3): for a random start z with E z z^T = I,
E z^T f(A) z = tr f(A), and the tridiagonal matrix of m Lanczos steps from z gives z^T f(A) z. How many eigenvalues of
A = F^T M F lie above 1, its log-determinant and the trace of (I + A)^-1 are such traces. Their error is the spread over
starts, and what half of the steps would have said otherwise.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from dosimeter.doses.channels import Seen
from dosimeter.doses.priors import STD, Known
from dosimeter.doses.slopes import Network
from dosimeter.errors import ModelError
from dosimeter.rng import stream

STARTS, STEPS = 6, 48
"""Random starts, and Lanczos steps from each."""


class Estimate(NamedTuple):
    """A trace and how far it may be off (one deviation)."""

    value: float
    error: float


class Products:
    """Products with the information of an update as it is seen, on images alone."""

    def __init__(self, network: Network, how: Seen) -> None:
        if len(network.point) > 1:
            raise ModelError(
                "What a client draws inside its model is eliminated by matrices, which this model is too large for; "
                "allow more memory (--budget) or choose a smaller model."
            )
        self.network, self.how = network, how
        self.norm = math.sqrt(sum(float(g.square().sum()) for g in network.gradient.values()))
        self._pull: Callable[..., tuple[dict[str, Tensor]]] = vjp(network.update, network.point)[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """M v for rows v (K, N)."""
        layout, point = self.network.layout, self.network.point

        def one(tangent: dict[str, Tensor]) -> dict[str, Tensor]:
            moved = dict(jvp(self.network.update, (point,), (tangent,))[1])
            return self._pull(self._clipped(self._weighted(self._clipped(moved))))[0]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, on its first forward derivative
            return layout.flat(vmap(one)(layout.tangents(rows)))

    def _weighted(self, moved: dict[str, Tensor]) -> dict[str, Tensor]:
        how = self.how
        return {
            name: g * (how.share[name] / how.variance[name]) * how.kept.get(name, 1.0)
            if name in how.variance
            else torch.zeros_like(g)
            for name, g in moved.items()
        }

    def _clipped(self, moved: dict[str, Tensor]) -> dict[str, Tensor]:
        """Behind the slope of clipping, c / |g| (I - g g^T / |g|^2), which is its own transpose."""
        clip, gradient = self.how.clip, self.network.gradient
        if clip is None:
            return moved
        along = {name: (gradient[name] * g).sum() for name, g in moved.items()}
        total, found = torch.stack(list(along.values())).sum(), {}
        for name, g in moved.items():
            own = clip.of == "tensor"
            norm = float(gradient[name].norm()) if own else self.norm
            inner = along[name] if own else total
            scale = clip.bound / max(norm, 1e-300)
            found[name] = g if scale >= 1 else scale * (g - gradient[name] * inner / norm**2)
        return found


class Spectrum(NamedTuple):
    """Nodes and weights of the quadrature from every start, by all steps and by half of them."""

    nodes: tuple[Tensor, ...]  # (K, m)
    weights: tuple[Tensor, ...]

    def trace(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """tr f(A), or the sum of quadratic forms at the starts."""
        found = [(weights * function(nodes.clamp_min(0))).sum(1) for nodes, weights in zip(*self, strict=True)]
        full, half = (float(each.mean()) for each in found)
        return Estimate(full, math.hypot(float(found[0].std()) / math.sqrt(len(found[0])), full - half))


def lanczos(product: Callable[[Tensor], Tensor], starts: Tensor, steps: int) -> Spectrum:
    """The quadrature of starts (K, n), all at once, each step made orthogonal to all before."""
    sizes = starts.norm(dim=1)
    basis = [starts / sizes[:, None]]
    diagonal, beside = list[Tensor](), list[Tensor]()
    for at in range(min(steps, starts.shape[1])):
        moved = product(basis[-1])
        diagonal.append((moved * basis[-1]).sum(1))
        held = torch.stack(basis, 1)  # (K, at + 1, n)
        for _ in range(2):
            moved = moved - torch.einsum("kb,kbn->kn", torch.einsum("kbn,kn->kb", held, moved), held)
        beside.append(moved.norm(dim=1))
        if float((beside[-1] / diagonal[0].abs().clamp_min(1e-300)).max()) < 1e-13 or at + 1 == starts.shape[1]:
            break
        basis.append(moved / beside[-1].clamp_min(1e-300)[:, None])

    def quadrature(many: int) -> tuple[Tensor, Tensor]:
        inner = torch.diag_embed(torch.stack(diagonal[:many], 1))
        if many > 1:
            side = torch.diag_embed(torch.stack(beside[: many - 1], 1), offset=1)
            inner = inner + side + side.transpose(1, 2)
        nodes, vectors = torch.linalg.eigh(inner)
        return nodes, vectors[:, 0].square() * sizes[:, None] ** 2

    full, half = quadrature(len(diagonal)), quadrature(max(1, len(diagonal) // 2))
    return Spectrum((full[0], half[0]), (full[1], half[1]))


class Estimated(NamedTuple):
    """What is estimated of one image."""

    determined: Estimate
    bits: Estimate
    error: Estimate  # the mean posterior variance
    white: Estimate


def estimated(network: Network, how: Seen, prior: Known, seed: int, *, starts: int = STARTS) -> Estimated:
    """The figures of one image of n numbers."""
    product, size = Products(network, how), network.layout.size
    rows = torch.randint(0, 2, (starts, size), generator=stream(seed, "dose", "starts")).double() * 2 - 1
    inside = lanczos(lambda v: prior.gather(product(prior.spread(v))), rows, STEPS)
    determined = inside.trace(lambda x: (x > 1).double())
    bits = inside.trace(lambda x: torch.log2(1 + x) / 2)
    if prior.factor.ndim == 1:
        std = float(prior.factor[0])
        error = inside.trace(lambda x: std**2 / (1 + x))
        plain = inside.trace(lambda x: (x * (STD / std) ** 2 > 1).double())
    else:
        behind = lanczos(lambda v: prior.gather(product(prior.spread(v))), prior.gather(rows), STEPS)
        error = behind.trace(lambda x: 1 / (1 + x))
        plain = lanczos(lambda v: STD**2 * product(v), rows, STEPS).trace(lambda x: (x > 1).double())
    return Estimated(determined, bits, Estimate(error.value / size, error.error / size), plain)
