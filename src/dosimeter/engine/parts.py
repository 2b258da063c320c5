"""The gradient of a large batch from parts of it, one after another, in the memory of one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dosimeter.types import Gradient, Target


@dataclass(frozen=True)
class InParts:
    """A client's step that takes one gradient: the mean over parts of so many images.

    Nothing inside a part is kept; it is computed again when the gradient is differentiated. That holds where images do
    not meet, so neither under batch statistics nor for draws inside the model.
    """

    images: int

    def __call__(self, target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for x, y in zip(torch.split(images, self.images), torch.split(labels, self.images), strict=True):
            share = len(x) / len(images)
            made = _Forgotten.apply(x, partial(_gradient, target, y))  # type: ignore[no-untyped-call]
            total = {name: whole + share * g for (name, whole), g in zip(total.items(), made, strict=True)}
        return total


def _gradient(target: Target, labels: Tensor, images: Tensor) -> tuple[Tensor, ...]:
    return tuple(target.gradient(images, labels).values())


class _Forgotten(torch.autograd.Function):
    """work(x), computed anew for its slope."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, work: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x)
        ctx.work = work
        return work(x.detach())

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(ctx.work(x), x, slopes)
        return found, None
