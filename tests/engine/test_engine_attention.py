"""Attention by hand equals torch's, up to the second derivative."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dosimeter.engine.attention import PlainAttention, _Attention


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def twice(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> list[Tensor]:
    """The output, what comes back, and the slope of a mixture of what comes back."""
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, **options)
        first = torch.autograd.grad(out.sin().sum(), (q, k, v), create_graph=True)
        second = torch.autograd.grad(sum((g.cos() * g).sum() for g in first), (q, k, v))
    return [out, *first, *second]


@settings(max_examples=10, deadline=None)
@given(
    heads=st.integers(1, 3),
    long=st.integers(1, 6),
    across=st.integers(1, 6),
    wide=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_second_derivatives_agree_with_finite_differences(
    heads: int, long: int, across: int, wide: int, seed: int
) -> None:
    inputs = draw(seed, (heads, long, wide), (heads, across, wide), (heads, across, 2))
    assert torch.autograd.gradcheck(_Attention.apply, inputs)
    assert torch.autograd.gradgradcheck(_Attention.apply, inputs)


@pytest.mark.parametrize(
    "options",
    [{}, {"scale": 0.3}, {"is_causal": True}, {"attn_mask": torch.eye(5, dtype=torch.bool)}],
    ids=["plain", "scale", "causal", "mask"],
)
def test_every_call_gives_torchs_numbers(options: dict[str, Any]) -> None:
    inputs = draw(0, (2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4))
    wanted = twice(*inputs, **options)
    with PlainAttention():
        found = twice(*inputs, **options)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    by_hand = "_Attention" in str(_root(found[0]))
    assert by_hand == (not {"is_causal", "attn_mask"} & set(options))


def _root(out: Tensor) -> object:
    """The operation that made it, below a change of shape."""
    node = out.grad_fn
    while node is not None and "View" in type(node).__name__:
        node = node.next_functions[0][0]
    return node
