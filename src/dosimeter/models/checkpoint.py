"""Weights from a file into a model: all of them or none."""

import pickle
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dosimeter.errors import ModelError

NAMED = 3
"""How many tensors a message names before it counts the rest."""

BROKEN = (
    *(AssertionError, AttributeError, EOFError, ImportError, IndexError, KeyError, OverflowError, RecursionError),
    *(RuntimeError, TypeError, ValueError, MemoryError, struct.error, pickle.UnpicklingError),
)
"""What torch's reader raises on bytes that are not a checkpoint, seen by feeding it damaged ones."""


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Load a `state_dict` into the model, in place; on any error the model stays as it was.

    Args:
        model: its `state_dict` must have the same names and shapes as the file. Normalisation and running statistics
            are part of it.
        path: a `.safetensors` file, or a `.pt` or `.pth` file, which is read without running any code in it. There the
            tensors may lie under "state_dict", and names may begin with "module." as `DataParallel` writes them.
    """
    path = Path(path)
    found = _without_prefix(_read(path), model)
    expected = model.state_dict()
    shared = expected.keys() & found.keys()
    complaints = {
        "missing": [name for name in expected if name not in found],
        "extra": [name for name in found if name not in expected],
        "misshaped": [
            f"{name} {_form(found[name])} instead of {_form(tensor)}"
            for name, tensor in expected.items()
            if name in shared and _form(found[name]) != _form(tensor)
        ],
    }
    if any(complaints.values()):
        reasons = "; ".join(f"{what}: {_first(names)}" for what, names in complaints.items() if names)
        raise ModelError(f"{path} does not fit {type(model).__name__}: {reasons}; give the model it was saved from.")
    model.load_state_dict(dict(found))


def _read(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file by name."""
    kind = path.suffix.lower()
    if kind not in (".safetensors", ".pt", ".pth"):
        raise ModelError(f"A checkpoint ends in .safetensors, .pt or .pth; got {path}.")
    if not path.is_file():
        raise ModelError(f"There is no checkpoint {path}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch wonders about is an error below, or loaded
            content = load_file(path) if kind == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except OSError as reason:
        raise ModelError(f"{path} cannot be read: {reason.strerror or reason}.") from None
    except SafetensorError as reason:
        raise ModelError(f"{path} is not a whole safetensors file: {_line(reason)}.") from None
    except BROKEN as reason:
        if isinstance(reason, pickle.UnpicklingError) and "Weights only load failed" in str(reason):
            raise ModelError(
                f"{path} is damaged or holds Python objects, which could run code; save model.state_dict() instead."
            ) from None
        raise ModelError(f"{path} is damaged or not a checkpoint of torch: {_line(reason)}.") from None
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not content:
        raise ModelError(f"{path} holds a {type(content).__name__}, expected tensors by name as in model.state_dict().")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ModelError(f"{path} holds {name!r}: {type(value).__name__}, expected tensors by name alone.")
    return content


def _without_prefix(found: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """The names without the "module." of `DataParallel`, unless the model has it too."""
    prefix = "module."
    wrapped = all(name.startswith(prefix) for name in found)
    if not wrapped or any(name.startswith(prefix) for name in model.state_dict()):
        return found
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


def _form(tensor: Tensor) -> str:
    """Shape, and what kind of number where it is not real."""
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return shape if tensor.is_floating_point() else f"{shape} of {str(tensor.dtype).removeprefix('torch.')}"


def _first(names: list[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(name if name.isprintable() else repr(name) for name in names[:NAMED]) + (
        f" and {rest} more" if rest > 0 else ""
    )


def _line(reason: BaseException) -> str:
    """An error's first line, or its name where it says nothing."""
    lines = str(reason).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(reason).__name__
