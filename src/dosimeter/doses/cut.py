"""The first layer as a cut: all that an update owes to its images passes through what this layer gives.

Behind the cut the network is differentiated by the layer's outputs instead of by pixels, and only by those that
anything depends on: a unit that its ReLU turned off moves nothing. With C the layer's own matrix,

    J = J_behind C    for all that the layer itself does not see

so that M = C^T M_behind C. Nothing of it is supposed: each part is tried along random directions, and where it does not
hold, as where a shortcut passes the first layer by, there is no cut.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vjp

from dosimeter.doses.slopes import IMAGES, Network, Passed, Point, directions
from dosimeter.rng import stream

WORTH = 0.8
"""Of the pixels' number, which the outputs that matter have to be below for a cut."""
EXACT = 1e-9
"""Relative error up to which two derivatives are the same."""
SPARSE = 0.1
"""Share of a layer's matrix that is not 0, up to which only that is kept: a convolution sees few pixels."""
CHUNK = 128


class Cut(NamedTuple):
    """Coordinates behind the first layer: its live outputs, then draws."""

    layer: str
    scale: Tensor  # (B n,) by which the layer's input moves with each pixel
    live: Tensor  # (q,) which of its outputs anything depends on
    matrix: Tensor  # (q, B n) C: how these move with pixels, sparse or dense
    shapes: dict[str, tuple[int, ...]]  # of draws
    outputs: tuple[int, ...]  # the shape of all outputs

    @property
    def size(self) -> int:
        return len(self.live) + self.draws

    @property
    def draws(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def tangents(self, rows: Tensor) -> Point:
        """Directions (c, q + draws) as values of all outputs and of the draws."""
        many = len(self.live)
        given = rows.new_zeros(len(rows), torch.Size(self.outputs).numel())
        given[:, self.live] = rows[:, :many]
        found, start = {self.layer: given.reshape(-1, *self.outputs)}, many
        for name, shape in self.shapes.items():
            size = torch.Size(shape).numel()
            found[name] = rows[:, start : start + size].reshape(-1, *shape)
            start += size
        return found

    def lifted(self, rows: Tensor) -> Tensor:
        """C^T v of (q, k)."""
        found: Tensor = self.matrix.T @ rows
        return found

    def spread(self, inner: Tensor) -> Tensor:
        """(N, N) of pixels and draws, from a symmetric (q + draws, q + draws)."""
        many, pixels = self.matrix.shape
        whole = inner.new_empty(pixels + self.draws, pixels + self.draws)
        left = self.lifted(inner[:many])  # (B n, q + draws)
        whole[:pixels, :pixels] = self.lifted(left[:, :many].T.contiguous())
        whole[pixels:, :pixels] = left[:, many:].T
        whole[:pixels, pixels:] = left[:, many:]
        whole[pixels:, pixels:] = inner[many:, many:]
        return whole

    def spread_vector(self, inner: Tensor) -> Tensor:
        """(N,) of (q + draws,)."""
        many = len(self.live)
        return torch.cat([self.lifted(inner[:many, None])[:, 0], inner[many:]])

    def first(self, network: Network, span: slice, backs: Tensor) -> Passed:
        """How inputs and backs of the layer itself move along the unit directions of a span.

        Args:
            backs: (N, outputs) how these move, of all directions.
        """
        pixels = self.matrix.shape[1]
        inputs = backs.new_zeros(span.stop - span.start, pixels)
        at = torch.arange(max(0, min(span.stop, pixels) - span.start))
        inputs[at, at + span.start] = self.scale[at + span.start]
        shape = network.now.inputs[self.layer].shape
        return Passed(
            {self.layer: inputs.reshape(-1, *shape)}, {self.layer: backs[span].reshape(-1, *self.outputs)}, {}
        )


def cut_of(network: Network) -> Cut | None:
    """The cut at the layer that is called first, where there is one and it is worth while."""
    layer = next(iter(network.layers), None)
    if layer is None:
        return None
    images = network.point[IMAGES]
    scale = _scale(network, layer)
    live = None if scale is None else _live(network, layer)
    if scale is None or live is None or not 0 < len(live) < WORTH * images.numel():
        return None
    shapes = {name: tuple(value.shape) for name, value in network.point.items() if name != IMAGES}
    outputs = tuple(network.now.backs[layer].shape)
    matrix = images.new_empty(len(live), images.numel())
    for span, rows in directions(images.numel(), CHUNK, images):
        moved = network.applied(layer, (rows * scale).reshape(-1, *network.now.inputs[layer].shape))
        matrix[:, span] = moved.flatten(1)[:, live].T
    dense = float((matrix != 0).double().mean()) > SPARSE
    cut = Cut(layer, scale, live, matrix if dense else matrix.to_sparse(), shapes, outputs)
    return cut if _holds(network, cut) else None


def _scale(network: Network, layer: str) -> Tensor | None:
    """By how much the layer's input moves with each pixel, where it moves with no other."""
    images = network.point[IMAGES]
    if network.now.inputs[layer].numel() != images.numel():
        return None
    ones = network.moved(_only_images(network, torch.ones_like(images).flatten()))
    scale = ones.inputs[layer].flatten()
    random = _random(images.numel(), images)
    found = network.moved(_only_images(network, random)).inputs[layer].flatten()
    return scale if _same(found, scale * random) else None


def _only_images(network: Network, flat: Tensor) -> Tensor:
    rows = flat.new_zeros(1, network.layout.size)
    rows[0, network.layout.spans[IMAGES]] = flat
    return rows


def _live(network: Network, layer: str) -> Tensor | None:
    """(q,) the outputs that anything depends on: by a random sum of all that moves, whose slope is exactly 0 else."""
    passed, point = network.behind(layer)

    def weighed(given: Tensor) -> Tensor:
        found = passed({**point, layer: given})
        tensors = [
            t for each in (found.inputs, found.backs, found.written) for name, t in each.items()
            if not (each is found.inputs and name == layer)
        ]  # fmt: skip
        return torch.stack([(t.flatten() * _random(t.numel(), t, k)).sum() for k, t in enumerate(tensors)]).sum()

    try:
        (slope,) = vjp(weighed, point[layer])[1](point[layer].new_ones(()))
    except RuntimeError:
        return None  # no second derivative by the backward way
    live: Tensor = slope.flatten().nonzero()[:, 0]
    return live


def _holds(network: Network, cut: Cut) -> bool:
    """Whether the network moves along a random direction as it does behind the cut."""
    images, rows = network.point[IMAGES], _random(network.layout.size, network.point[IMAGES])[None]
    pixels = images.numel()
    inner = torch.cat([(cut.matrix @ rows[0, :pixels, None])[:, 0], rows[0, pixels:]])[None]
    whole, behind = network.moved(rows), network.moved_behind(cut.layer, cut.tangents(inner))
    pairs = [(whole.inputs[name], behind.inputs[name]) for name in network.layers if name != cut.layer]
    pairs += [(whole.backs[name], behind.backs[name]) for name in network.layers]
    pairs += [(whole.written[name], behind.written[name]) for name in whole.written]
    return all(_same(a, b) for a, b in pairs)


def _random(size: int, like: Tensor, which: int = 0) -> Tensor:
    return torch.randn(size, generator=stream(0, "dose", "cut", str(which)), dtype=torch.float64).to(like)


def _same(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= EXACT * b.norm().clamp_min(torch.finfo(b.dtype).tiny))
