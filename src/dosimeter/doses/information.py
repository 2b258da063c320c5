"""The information matrix of every tensor of an update: M = J^T W J with J = dg / d(images, draws), J not written out.

A layer's J is a product of two maps. T says how its inputs and what comes back move with the unknowns, B makes of that
the move of the gradient (see `slopes`). B and its adjoint are applied as such, so that

    M = T^T (B^T W B T)

takes as many rows as there are inputs and outputs of the layer, or as it has weights where these are fewer. Behind the
first layer all of it is done in coordinates of that layer's outputs (see `cut`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.doses.algebra import symmetric
from dosimeter.doses.cut import Cut, cut_of
from dosimeter.doses.slopes import Network, Passed, directions
from dosimeter.types import Gradient

CHUNK = 2**25
"""Bytes that the derivatives of the largest layer may take at once; larger buffers are fetched anew each time."""
ALIVE = 0.9
"""Share of columns that move, below which the others are left out of a product, which takes a copy."""


class Part(NamedTuple):
    """One tensor's information at unit noise."""

    inner: Tensor  # J^T W J, behind the cut where there is one
    cut: Cut | None
    pull: Tensor  # (N,) J^T g
    square: float  # |g|^2

    @property
    def matrix(self) -> Tensor:
        """(N, N) J^T W J, in coordinates of the network's layout."""
        return self.inner if self.cut is None else self.cut.spread(self.inner)


class _Rows:
    """Two factors of M, (N, R) each and the same where J is written out, filled direction by direction."""

    def __init__(self, network: Network, name: str, columns: int, cut: Cut | None, *, twice: bool) -> None:
        like, size = network.gradient[name], network.layout.size if cut is None else cut.size
        self.gradient, self.cut = like, cut
        self.t = like.new_empty(size, columns)
        self.z = torch.empty_like(self.t) if twice else self.t
        self.pull = like.new_empty(size)

    def part(self) -> Part:
        alive = torch.linalg.vector_norm(self.t, torch.inf, dim=0) > 0  # a unit that is off moves nothing
        t, z = (self.t[:, alive], self.z[:, alive]) if float(alive.double().mean()) < ALIVE else (self.t, self.z)
        pull = self.pull if self.cut is None else self.cut.spread_vector(self.pull)
        return Part(symmetric(t, z), self.cut, pull, float(self.gradient.square().sum()))


def information(network: Network, kept: Gradient | None = None) -> dict[str, Part]:
    """{tensor: its part}, by the forward derivatives along all unknowns.

    `kept` are 0 for entries that are not sent and 1 for others, {tensor: of its shape}, where not all are.
    """
    kept, cut = kept or {}, cut_of(network)
    rows, chunk, like = _planned(network, cut), chunk_of(network, kept), next(iter(network.gradient.values()))
    first = None if cut is None else cut.layer
    backs = None if cut is None else like.new_empty(cut.size, network.now.backs[cut.layer].numel())
    for span, unit in directions(network.layout.size if cut is None else cut.size, chunk, like):
        moved = network.moved(unit) if cut is None else network.moved_behind(cut.layer, cut.tangents(unit))
        for name in network.layers:
            if name != first:
                _fill_layer(network, name, moved, span, rows, kept)
        if backs is not None:
            backs[span] = moved.backs[first or ""].flatten(1)
        for key, slope in moved.written.items():
            _fill(rows[key], span, slope.reshape(len(slope), -1), kept.get(key))
    if cut is not None and backs is not None:
        many = len(cut.live)
        backs = torch.cat([cut.lifted(backs[:many]), backs[many:]])
        for start in range(0, network.layout.size, chunk):
            span = slice(start, min(start + chunk, network.layout.size))
            _fill_layer(network, cut.layer, cut.first(network, span, backs), span, rows, kept)
    return {name: rows.pop(name).part() for name in network.gradient}


def chunk_of(network: Network, kept: Gradient) -> int:
    """Directions at a time: fixed by the network, so that a rerun is the same run."""
    largest = max((_columns(network, name, kept) for name in network.layers), default=1)
    largest = max(largest, sum(g.numel() for g in network.now.written.values()), network.layout.size)
    return max(1, min(256, CHUNK // (8 * largest)))


def needs(network: Network) -> int:
    """Bytes that the exact matrices of a network take."""
    size, cut, many = network.layout.size, cut_of(network), len(network.gradient)
    inner = size if cut is None else cut.size
    held = {name: _pulled(network, name)[0] * (2 if _pulled(network, name)[1] else 1) for name in network.layers}
    own = 0 if cut is None else held[cut.layer]
    columns = sum(held.values()) - own + sum(g.numel() for g in network.now.written.values())
    matrices = inner**2 * many if cut is None else inner**2 * (many - 2) + 2 * size**2
    # Factors are given up one by one as matrices are made of them.
    return 8 * (max(inner * columns + size * own, matrices) + 4 * size**2)


def _planned(network: Network, cut: Cut | None) -> dict[str, _Rows]:
    rows = {key: _Rows(network, key, g.numel(), cut, twice=False) for key, g in network.now.written.items()}
    for name in network.layers:
        weight, bias = network.tensors(name)
        columns, twice = _pulled(network, name)
        at = None if cut is None or cut.layer == name else cut
        rows[weight] = _Rows(network, weight, columns, at, twice=twice)
        if bias is not None:
            rows[bias] = _Rows(network, bias, network.gradient[bias].numel(), at, twice=False)
    return rows


def _pulled(network: Network, name: str) -> tuple[int, bool]:
    """Columns of the factors of a layer's weight, and whether there are two: of inputs and outputs, or of J itself."""
    weight, _ = network.tensors(name)
    around = network.now.inputs[name].numel() + network.now.backs[name].numel()
    dense = network.gradient[weight].numel()
    return (around, True) if 2 * around < dense or around < dense / 1.5 else (dense, False)


def _columns(network: Network, name: str, kept: Gradient) -> int:
    """Numbers of a layer that one direction moves, at most."""
    a, d = network.rows(name, network.now)
    weight = network.tensors(name)[0]
    written = 0 if _few(network, name, kept) else network.gradient[weight].numel()
    return int(a.numel() + d.numel() + written)


def _few(network: Network, name: str, kept: Gradient) -> bool:
    """Whether a layer has so few positions that its slope need not be written out."""
    weight, places = network.tensors(name)[0], network.rows(name, network.now)[0].shape[1]
    g = network.gradient[weight].flatten(1)
    return _pulled(network, name)[1] and weight not in kept and places * sum(g.shape) < g.numel()


def _fill_layer(
    network: Network, name: str, moved: Passed, span: slice, rows: dict[str, _Rows], kept: Gradient
) -> None:
    layer, (weight, bias) = network.layers[name], network.tensors(name)
    a, d = network.rows(name, network.now)  # (1, P, k), (1, P, m)
    dd = layer.backs(moved.backs[name])  # (c, P, m)
    if bias is not None:
        _fill(rows[bias], span, dd.sum(1), kept.get(bias))
    own, twice = rows[weight], _pulled(network, name)[1]
    if _few(network, name, kept):
        da = layer.rows(moved.inputs[name])  # (c, P, k)
        g = own.gradient.flatten(1)  # few positions: the slope is not written out either
        own.pull[span] = (dd * (a @ g.T)).sum((1, 2)) + (da * (d @ g)).sum((1, 2))
        to_inputs = (d @ dd.transpose(1, 2)) @ a + (d @ d.transpose(1, 2)) @ da
        to_backs = (a @ a.transpose(1, 2)) @ dd + (a @ da.transpose(1, 2)) @ d
    else:
        slope = dd.transpose(1, 2) @ a[0]  # (c, m, k)
        if bool(moved.inputs[name].any()):  # which draws behind a layer do not move
            slope = slope + d.transpose(1, 2) @ layer.rows(moved.inputs[name])
        if not twice:
            _fill(own, span, slope.flatten(1), kept.get(weight))
            return
        if weight in kept:
            slope = slope * kept[weight].flatten(1)
        own.pull[span] = slope.flatten(1) @ own.gradient.flatten()
        to_inputs, to_backs = d @ slope, a @ slope.transpose(1, 2)
    own.t[span] = torch.cat([moved.inputs[name].flatten(1), dd.flatten(1)], 1)
    own.z[span] = torch.cat([layer.place(to_inputs), to_backs.flatten(1)], 1)


def _fill(own: _Rows, span: slice, slope: Tensor, kept: Tensor | None) -> None:
    slope = slope if kept is None else slope * kept.flatten()
    own.t[span] = slope
    own.pull[span] = slope @ own.gradient.flatten()
