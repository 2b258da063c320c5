"""Attention as it is found in a model: by torch's function, or by products around a softmax."""

from typing import Any, NamedTuple

import torch

from dosimeter.engine.heads import Columns, Heads
from dosimeter.engine.nodes import parted
from dosimeter.engine.reading import NotStraight
from dosimeter.engine.views import IMAGES, Values, View, numbers
from dosimeter.networks.trace import arguments


class Scores(NamedTuple):
    """Q K^T times a number, before or after the softmax."""

    q: View
    k: View
    factor: float
    chances: bool


def softmax(known: object, ndim: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scores:
    dim, _, kind = arguments(args, kwargs, dim=None, _stacklevel=3, dtype=None)
    if not isinstance(known, Scores) or known.chances or kind is not None or dim not in (-1, ndim - 1):
        raise NotStraight("a softmax is over something else than the scores of attention")
    return known._replace(chances=True)


def product(values: Values, left: object, right: object) -> Scores | View:
    if isinstance(left, View) and isinstance(right, View):
        return Scores(left, right._replace(entries=right.entries.mT), 1.0, chances=False)
    if isinstance(left, Scores) and left.chances and isinstance(right, View):
        return attend(values, left.q, left.k, right, left.factor)
    raise NotStraight("a product of two tensors is not that of attention")


def by_function(values: Values, q: View, k: View, v: View, settings: list[Any]) -> View:
    """`F.scaled_dot_product_attention`; settings are its mask, dropout, whether it is causal, and its scale."""
    mask, dropout, causal, scale = settings
    if mask is not None or dropout or causal:
        raise NotStraight("attention is masked or draws numbers")
    return attend(values, q, k, v, q.entries.shape[-1] ** -0.5 if scale is None else scale)


def attend(values: Values, q: View, k: View, v: View, scale: float) -> View:
    """Of (B, heads, T, width) each, or (B * heads, T, width)."""
    if not q.entries.ndim == k.entries.ndim == v.entries.ndim or q.entries.ndim not in (3, 4) or v.factor != 1:
        raise NotStraight("attention is over other shapes than images, heads, tokens and columns")
    shape = (*q.entries.shape[:-1], v.entries.shape[-1])
    views = [view.entries.reshape(IMAGES, -1, *view.entries.shape[-2:]) for view in (q, k, v)]
    heads, width, rows = views[0].shape[1], shape[-1], shape[-2]
    if any(view.shape[1] != heads for view in views):
        raise NotStraight("heads of attention share keys and values")
    query, key, value = (
        _columns(values, View(view.value, entries.transpose(1, 2).flatten(2)))
        for view, entries in zip((q, k, v), views, strict=True)
    )
    found = values.add(
        Heads(
            values.new((rows, heads * width)),
            values.memory,
            places=(query, key, value),
            heads=heads,
            widths=(q.entries.shape[-1], width),
            scale=scale * q.factor * k.factor,
        )
    )
    by_heads = parted(found.entries, 2, (heads, width)).transpose(1, 2)
    return found._replace(entries=by_heads.reshape(shape))


def _columns(values: Values, view: View) -> Columns:
    """Where (B, T, heads * width) are columns of a value as they are, there; else in a value of their own."""
    shape, entries = values.shapes[view.value], view.entries
    if len(shape) == 2 and entries.shape[1] == shape[0]:
        first = int(entries[0, 0, 0])
        whole = numbers((IMAGES, *shape))
        if first < shape[1] and torch.equal(entries, whole[:, :, first : first + entries.shape[2]]):
            return Columns(view.value, first)
    return Columns(values.plain(view), 0)
