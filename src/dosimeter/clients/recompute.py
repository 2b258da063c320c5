"""Long local training in little memory: only the weights between stretches of steps are kept.

`torch.utils.checkpoint` does the same for plain autograd, but not inside `torch.func`, which local training is made of.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import vjp
from torch.utils import _pytree as pytree

S = TypeVar("S")
Given = TypeVar("Given")


def recomputed(work: Callable[[S, Given], S], state: S, given: Given) -> S:
    """work(state, given), whose inside is forgotten and computed again when it is differentiated.

    Args:
        work: pure, and of nothing but its arguments: `torch.func` does not see a tensor that it takes from elsewhere.
        state: a tree of tensors; the result is one of the same structure.
        given: another tree of tensors.
    """
    leaves, tree = pytree.tree_flatten((state, given))
    known = pytree.tree_structure(state)

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        made = pytree.tree_leaves(work(*pytree.tree_unflatten(tensors, tree)))
        # What is handed through as it came would be an input and an output of one function.
        return tuple(t.clone() if any(t is one for one in tensors) else t for t in made)

    done: S = pytree.tree_unflatten(_Forgetful.apply(flat, *leaves), known)  # type: ignore[no-untyped-call]
    return done


class _Forgetful(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(work: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        return work(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.work, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
        smooth = [t.is_floating_point() for t in tensors]

        def work(*changed: Tensor) -> tuple[Tensor, ...]:
            new = iter(changed)
            return tuple(
                ctx.work(*(next(new) if is_smooth else t for t, is_smooth in zip(tensors, smooth, strict=True)))
            )

        pull: Any = vjp(work, *(t for t, is_smooth in zip(tensors, smooth, strict=True) if is_smooth))[1]
        found = iter(pull(slopes))
        return None, *(next(found) if is_smooth else None for is_smooth in smooth)
