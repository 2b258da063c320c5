"""Windows are those of F.unfold, and putting them back is the adjoint."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dosimeter.engine.patches import Window, unfold

few = settings(max_examples=40, deadline=None)
pair = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def windows(draw: st.DrawFn) -> tuple[Window, tuple[int, int, int, int]]:
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    window = Window(
        kernel,
        draw(pair),
        (draw(st.integers(0, 2)), draw(st.integers(0, 2))),
        (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
    )
    height, width = (max(1, window.span(axis) - 2 * window.padding[axis]) + draw(st.integers(0, 4)) for axis in (0, 1))
    return window, (draw(st.integers(1, 3)), height, width, draw(st.integers(1, 3)))


def plain(images: Tensor, window: Window) -> Tensor:
    """F.unfold in the order (window, kernel, kernel, channel)."""
    rows = F.unfold(images.permute(0, 3, 1, 2), window.kernel, window.dilation, window.padding, window.stride)
    return rows.unflatten(1, (images.shape[3], -1)).permute(0, 3, 2, 1).flatten(2)


@few
@given(windows())
def test_windows_are_those_of_torch(drawn: tuple[Window, tuple[int, int, int, int]]) -> None:
    window, shape = drawn
    images = torch.randn(shape, dtype=torch.float64)
    found = unfold(images, window)
    assert found.shape[1] == window.output(*shape[1:3])[0] * window.output(*shape[1:3])[1]
    assert torch.equal(found, plain(images, window))


@few
@given(windows())
def test_putting_windows_back_is_the_adjoint(drawn: tuple[Window, tuple[int, int, int, int]]) -> None:
    window, shape = drawn
    images = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    rows = unfold(images, window)
    weights = torch.randn_like(rows)
    (back,) = torch.autograd.grad(rows, images, weights)
    assert torch.allclose((rows * weights).sum(), (images * back).sum(), rtol=1e-10, atol=1e-10)
    (wanted,) = torch.autograd.grad(plain(images, window), images, weights)
    assert torch.allclose(back, wanted, rtol=1e-12, atol=1e-12)


@settings(few, max_examples=10)
@given(windows())
def test_both_can_be_differentiated_again(drawn: tuple[Window, tuple[int, int, int, int]]) -> None:
    window, (_, height, width, _) = drawn
    images = torch.randn(1, min(height, 6), min(width, 6), 1, dtype=torch.float64, requires_grad=True)
    if min(window.output(*images.shape[1:3])) < 1:
        return

    def squared(x: Tensor) -> Tensor:
        return unfold(x, window).square().sum(2)

    assert torch.autograd.gradcheck(squared, (images,))
    assert torch.autograd.gradgradcheck(squared, (images,))


@pytest.mark.parametrize("layout", ["strided", "channels in front", "every other", "expanded"])
def test_windows_of_images_that_lie_otherwise_in_memory(layout: str) -> None:
    base = torch.randn(4, 6, 5, 2, dtype=torch.float64)
    images = {
        "strided": base[:, :, :, :1],
        "channels in front": base.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
        "every other": base[::2],
        "expanded": base[:1].expand(3, -1, -1, -1),
    }[layout]
    for padding in ((0, 0), (1, 2)):
        window = Window((2, 3), (1, 2), padding, (1, 1))
        x = images.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        assert torch.equal(unfold(images, window), plain(images, window))
        weights = torch.randn_like(plain(images, window)).transpose(0, 2).contiguous().transpose(0, 2)
        (found,), (wanted,) = (torch.autograd.grad(f(x, window), x, weights) for f in (unfold, plain))
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)
