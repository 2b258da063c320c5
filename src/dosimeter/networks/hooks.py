"""Which layers a run calls, with what, and what they give."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Call(NamedTuple):
    """One call of a layer."""

    name: str
    layer: nn.Module
    inputs: Any  # its first argument
    output: Any


Which = Callable[[str, nn.Module], bool]


@contextmanager
def hooked(
    model: nn.Module, see: Callable[..., Any], which: Which, *, before: bool = False, **how: Any
) -> Iterator[None]:
    """Have `see` called inside the block with name, layer, inputs and, unless it comes before, output of every call.

    What it gives takes the place of what it saw, as torch's hooks have it; `how` are their settings.
    """
    layers = [(name, layer) for name, layer in model.named_modules() if which(name, layer)]
    place = nn.Module.register_forward_pre_hook if before else nn.Module.register_forward_hook
    hooks = [place(layer, partial(see, name), **how) for name, layer in layers]
    try:
        with _as_written(model):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _as_written(model: nn.Module) -> AbstractContextManager[object]:
    """Layers as they are written: what torch.compile made of them before does not call hooks that came later."""
    compiled = any(type(layer).__name__ == "OptimizedModule" for layer in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def watch(model: nn.Module, run: Callable[[], object], which: Which) -> list[Call]:
    """The calls of the layers that are asked for, in the order in which they end."""
    calls: list[Call] = []

    def note(name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        calls.append(Call(name, layer, inputs[0] if inputs else None, output))

    with hooked(model, note, which):
        run()
    return calls


def is_leaf(_name: str, layer: nn.Module) -> bool:
    """Whether a layer has none inside it."""
    return not any(layer.children())


def activations(model: nn.Module, run: Callable[[], object]) -> int:
    """Numbers that a run leaves in the outputs of the model's layers."""
    calls = watch(model, run, is_leaf)
    return sum(call.output.numel() for call in calls if isinstance(call.output, Tensor))
