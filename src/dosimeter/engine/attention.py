"""Attention whose backward pass can be differentiated, with each derivative written out.

    S = scale Q K^T    P = softmax(S)    O = P V

Autograd takes the second derivative of a softmax apart into a dozen passes over the (L, L) scores, which for small
heads cost more than the products. A dot marks derivatives along the direction in which `_Back` is differentiated.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


class PlainAttention(TorchFunctionMode):
    """Inside the block plain attention (no mask, no dropout, no shared heads) runs by the passes below.

    `at_once` runs them on the tensors of all candidates, where the block is in a `vmap` over these.
    """

    def __init__(self, at_once: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self._at_once = at_once

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == F.scaled_dot_product_attention.__name__:  # torch's, or one in plain operations
            given = dict(zip(_NAMES, args, strict=False)) | (kwargs or {})
            q, k, v = (given.pop(key) for key in ("query", "key", "value"))
            scale = given.pop("scale", None)
            plain = not any(isinstance(value, Tensor) or value for value in given.values())
            if plain and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
                q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
                return _attend(q, k, v) if self._at_once is None else self._at_once(_attend, q, k, v)
        return func(*args, **(kwargs or {}))


_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(..., L, E) each."""
    out: Tensor = _Attention.apply(*(x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)))  # type: ignore[no-untyped-call]
    return out.reshape(*q.shape[:-1], -1)


class _Attention(torch.autograd.Function):
    """(n, L, E) each, with Q already scaled."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        chances = torch.softmax(torch.bmm(q, k.mT), -1)
        out = torch.bmm(chances, v)
        ctx.save_for_backward(q, k, v, chances, out)
        return out

    @staticmethod
    def backward(ctx: Any, back: Tensor) -> Any:
        return _Back.apply(*ctx.saved_tensors, back)  # type: ignore[no-untyped-call]


class _Back(torch.autograd.Function):
    """What comes back to Q, K and V, as a function of them and of what came back to O.

    Sums along rows of (L, L) matrices follow from narrow ones, as sum_j P_ij (back V^T)_ij = (back * O)_i; they are
    subtracted by one more column in the product that makes the matrix.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, chances: Tensor, out: Tensor, back: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.ones_like(v[..., :1])
        excess = torch.bmm(torch.cat([back, -_rows(back, out)], -1), torch.cat([v, one], -1).mT)
        scores = excess * chances
        ctx.save_for_backward(q, k, v, chances, back, excess, scores, one)
        return torch.bmm(scores, k), torch.bmm(scores.mT, q), torch.bmm(chances.mT, back)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dot_q: Tensor, dot_k: Tensor, dot_v: Tensor) -> Any:
        q, k, v, chances, back, excess, scores, one = ctx.saved_tensors
        mean = _rows(dot_q, torch.bmm(chances, k)) + _rows(q, torch.bmm(chances, dot_k))
        dot = torch.bmm(torch.cat([dot_q, q, -mean], -1), torch.cat([k, dot_k, one], -1).mT)  # S-dot less its mean
        bent = dot * excess
        dot *= chances  # P-dot
        out = torch.bmm(chances, dot_v).baddbmm_(dot, v)  # O-dot
        bent.baddbmm_(torch.cat([back, -_rows(back, out)], -1), torch.cat([dot_v, one], -1).mT)
        bent *= chances  # the derivative of `scores`
        for_q = torch.bmm(bent, k).baddbmm_(scores, dot_k)
        for_k = torch.bmm(bent.mT, q).baddbmm_(scores.mT, dot_q)
        return for_q, for_k, torch.bmm(dot.mT, back), None, None, out


def _rows(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of every row, (n, L, 1)."""
    return (a * b).sum(-1, keepdim=True)
