"""Which layers a run calls, with what, and what they give."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn


class Call(NamedTuple):
    """One call of a layer."""

    name: str
    layer: nn.Module
    inputs: Any  # its first argument
    output: Any


def watch(model: nn.Module, run: Callable[[], object], which: Callable[[str, nn.Module], bool]) -> list[Call]:
    """The calls of the layers that are asked for, in the order in which they end."""
    calls: list[Call] = []

    def note(name: str) -> Callable[..., None]:
        return lambda layer, inputs, output: calls.append(Call(name, layer, inputs[0] if inputs else None, output))

    hooks = [layer.register_forward_hook(note(name)) for name, layer in model.named_modules() if which(name, layer)]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def is_leaf(_name: str, layer: nn.Module) -> bool:
    """Whether a layer has none inside it."""
    return not any(layer.children())


def activations(model: nn.Module, run: Callable[[], object]) -> int:
    """Numbers that a run leaves in the outputs of the model's layers."""
    calls = watch(model, run, is_leaf)
    return sum(call.output.numel() for call in calls if isinstance(call.output, Tensor))
