"""The dose of models that are too large for matrices: products M v alone, and what a few of them say of the spectrum.

    M v = J^T (S^-1 (J v))    one forward and one backward derivative of the update

Stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017, Sec. 3): for a random start z with E z z^T = I,
E z^T f(A) z = tr f(A), and the tridiagonal matrix of m Lanczos steps from z gives z^T f(A) z. How many eigenvalues of
A = F^T M F lie above 1, its log-determinant and the trace of (I + A)^-1 are such traces. Their error is the spread over
starts, and what half of the steps would have said otherwise.

What is of no interest, u (draws and other images of the batch), is eliminated without a solve. With x the image, all in
units of the prior and A the information on both,

    bits         1/2 (log2 det(I + A) - log2 det(I + A_uu))            what is told of both, less what of u given x
    determined   eigenvalues above 0 of A + diag(-I_x, I_u), less u    by the inertia of a Schur complement
    error        F_x (I + A)^-1 F_x^T                                  a block of the posterior's covariance
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from dosimeter.doses.channels import Seen
from dosimeter.doses.priors import STD, Known, White
from dosimeter.doses.slopes import FORWARD, IMAGES, Network
from dosimeter.rng import stream

STARTS, STEPS = 6, 48
"""Random starts, and Lanczos steps from each."""


class Estimate(NamedTuple):
    """A trace and how far it may be off (one deviation)."""

    value: float
    error: float


class Products:
    """Products with the information of an update as it is seen, on its images and draws."""

    def __init__(self, network: Network, how: Seen) -> None:
        self.network, self.how = network, how
        self.norm = math.sqrt(sum(float(g.square().sum()) for g in network.gradient.values()))
        self._pull: Callable[..., tuple[dict[str, Tensor]]] = vjp(network.update, network.point)[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """M v for rows v (K, N)."""
        layout, point = self.network.layout, self.network.point

        def one(tangent: dict[str, Tensor]) -> dict[str, Tensor]:
            moved = dict(jvp(self.network.update, (point,), (tangent,))[1])
            return self._pull(self._clipped(self._weighted(self._clipped(moved))))[0]

        with FORWARD, warnings.catch_warnings():
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
        found = [(weights * function(nodes)).sum(1) for nodes, weights in zip(*self, strict=True)]
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


class Whitened(NamedTuple):
    """The information on an image x and the rest u, in units of their priors."""

    product: Callable[[Tensor], Tensor]  # M v of rows (K, N)
    factor: Callable[[Tensor], Tensor]  # F v, and its transpose
    gather: Callable[[Tensor], Tensor]
    image: Tensor  # (N,) 1 on the image

    def both(self, rows: Tensor) -> Tensor:
        """A."""
        return self.gather(self.product(self.factor(rows)))

    def inertia(self, rows: Tensor) -> Tensor:
        """A + diag(-I_x, I_u)."""
        return self.both(rows) + (1 - 2 * self.image) * rows

    def rest(self, rows: Tensor) -> Tensor:
        """A_uu, and 0 on the image."""
        return (1 - self.image) * self.both((1 - self.image) * rows)


def whitened(network: Network, product: Callable[[Tensor], Tensor], prior: Known, place: int, own: Known) -> Whitened:
    """Of the image at a place, by a prior of its own; other images have theirs, and draws a standard normal one."""
    size, span = network.point[IMAGES][0].numel(), network.layout.spans[IMAGES]
    image = torch.zeros(network.layout.size, dtype=torch.float64)
    image[place * size : (place + 1) * size] = 1

    def by(rows: Tensor, one: Callable[[Known, Tensor], Tensor]) -> Tensor:
        images = [
            one(own if at == place else prior, rows[:, at * size : (at + 1) * size]) for at in range(span.stop // size)
        ]
        return torch.cat([*images, rows[:, span.stop :]], 1)

    return Whitened(product, lambda v: by(v, Known.spread), lambda v: by(v, Known.gather), image)


def estimated(
    network: Network, how: Seen, prior: Known, seed: int, *, place: int = 0, starts: int = STARTS, steps: int = STEPS
) -> Estimated:
    """The figures of one image of n numbers, all else in the update unknown."""
    product, size = Products(network, how), network.point[IMAGES][0].numel()
    at = whitened(network, product, prior, place, prior)
    rows = torch.randint(0, 2, (starts, network.layout.size), generator=stream(seed, "dose", "starts")).double() * 2 - 1
    rest = 1 - at.image
    others = int(rest.sum())

    def bits(x: Tensor) -> Tensor:
        return torch.log2(1 + x.clamp_min(0)) / 2

    def above(x: Tensor) -> Tensor:
        return (x > 0).double()

    def inverse(x: Tensor) -> Tensor:
        return 1 / (1 + x.clamp_min(0))

    whole = lanczos(at.both, rows, steps)
    told = whole.trace(bits)
    even = prior.factor.ndim == 1
    if not others:
        determined = whole.trace(lambda x: above(x - 1))
    else:
        told = _less(told, lanczos(at.rest, rest * rows, steps).trace(bits))
        determined = _less(lanczos(at.inertia, rows, steps).trace(above), Estimate(others, 0.0))
    if even and not others:
        std = float(prior.factor[0])
        error = whole.trace(lambda x: std**2 * inverse(x))
        plain = whole.trace(lambda x: above(x * (STD / std) ** 2 - 1))
    else:
        error = lanczos(at.both, at.gather(at.image * rows), steps).trace(inverse)
        white = whitened(network, product, prior, place, White().known(size))
        plain = _less(lanczos(white.inertia, rows, steps).trace(above), Estimate(others, 0.0))
    return Estimated(determined, told, Estimate(error.value / size, error.error / size), plain)


def _less(whole: Estimate, part: Estimate) -> Estimate:
    return Estimate(max(0.0, whole.value - part.value), math.hypot(whole.error, part.error))
