"""Weights from a file into a model: all of them or none."""

import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dosimeter import unpacking
from dosimeter.errors import ModelError
from dosimeter.models.names import Dialect, complete, dialect_of

NAMED = 3
"""How many tensors a message names before it counts the rest."""

BROKEN = (
    *(AssertionError, AttributeError, EOFError, ImportError, IndexError, KeyError, OverflowError, RecursionError),
    *(RuntimeError, TypeError, ValueError, MemoryError, struct.error, pickle.UnpicklingError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What the readers of torch and numpy raise on bytes that are not theirs, seen by feeding them damaged ones."""

KINDS = (".safetensors", ".npz", ".pt", ".pth")
"""How files of tensors end."""


def load_checkpoint(model: nn.Module, path: str | Path) -> None:
    """Load a `state_dict` into the model, in place; on any error the model stays as it was.

    Args:
        model: its `state_dict` must have the same names and shapes as the file. Normalisation and running statistics
            are part of it; a file of torchvision or timm has no normalisation, and the model keeps its own.
        path: a file as for `read_tensors`.
    """
    model.load_state_dict(read_state(model, path))


def read_state(model: nn.Module, path: str | Path) -> dict[str, Tensor]:
    """The `state_dict` in a file, which has the names and shapes of the model's; the model itself stays as it is."""
    path = Path(path)
    expected = model.state_dict()
    found, dialect = _in_our_words(_without_prefix(_read(path, "checkpoint"), model), model)
    if dialect is not None:
        found = complete(found, model)
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
    return found


def read_tensors(path: str | Path, model: nn.Module, noun: str = "checkpoint") -> dict[str, Tensor]:
    """The tensors of a file by name, whether they fit the model or not; no code in the file is run.

    It is a `.safetensors` file, an `.npz` file with an array for every tensor, or a `.pt` or `.pth` file, in which they
    may lie under "state_dict" or "model". Names may begin with "module." as `DataParallel` writes them, and may be
    those of torchvision or timm for residual networks and vision transformers (`names`).
    """
    return _in_our_words(_without_prefix(_read(Path(path), noun), model), model)[0]


def _read(path: Path, noun: str) -> Mapping[str, Tensor]:
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise ModelError(f"A {noun} ends in {', '.join(KINDS[:-1])} or {KINDS[-1]}; got {path}.")
    if not path.is_file():
        raise ModelError(f"There is no {noun} {path}.")
    content: object
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch wonders about is an error below, or loaded
            if kind == ".npz":
                content = _read_npz(path)
            else:
                content = load_file(path) if kind == ".safetensors" else _read_pickle(path)
    except OSError as reason:
        raise ModelError(f"{path} cannot be read: {reason.strerror or reason}.") from None
    except SafetensorError as reason:
        raise ModelError(f"{path} is not a whole safetensors file: {_line(reason)}.") from None
    except unpacking.TooLargeError as reason:
        raise ModelError(f"{path} is refused: {reason}.") from None
    except BROKEN as reason:
        if "Weights only load failed" in str(reason) or "allow_pickle" in str(reason):
            raise ModelError(
                f"{path} is damaged or holds Python objects, which could run code; save model.state_dict() instead."
            ) from None
        raise ModelError(f"{path} is damaged or no {noun}: {_line(reason)}.") from None
    for inside in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(inside), Mapping):
            content = content[inside]
    if not isinstance(content, Mapping) or not content:
        raise ModelError(f"{path} holds a {type(content).__name__}, expected tensors by name as in model.state_dict().")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ModelError(f"{path} holds {name!r}: {type(value).__name__}, expected tensors by name alone.")
        if value.layout != torch.strided or value.is_nested or value.is_quantized or value.device.type != "cpu":
            raise ModelError(f"{path} holds {name!r} in a form without plain numbers; save model.state_dict().")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():  # one number read a billion times
            raise ModelError(f"{path} holds less of {name!r} than its shape {_form(value)} says; save it anew.")
    return content


def _read_pickle(path: Path) -> object:
    unpacking.check_pickle(path)
    return torch.load(path, "cpu", weights_only=True)


def _read_npz(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        unpacking.check(path, archive)
        arrays = {name.removesuffix(".npy"): unpacking.read_array(archive, name) for name in archive.namelist()}
    # torch takes only the byte order of this machine, and the memory is its own from here on.
    native = {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}
    return {name: torch.from_numpy(array) for name, array in native.items()}


def _without_prefix(found: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """The names without the "module." of `DataParallel`, unless the model has it too."""
    prefix = "module."
    wrapped = all(name.startswith(prefix) for name in found)
    if not wrapped or any(name.startswith(prefix) for name in model.state_dict()):
        return found
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


def _in_our_words(found: Mapping[str, Tensor], model: nn.Module) -> tuple[dict[str, Tensor], Dialect | None]:
    """The tensors by the model's own names, and whose names they had where these were others."""
    dialect = dialect_of(found.keys(), model.state_dict().keys())
    if dialect is None:
        return dict(found), None
    return {dialect.ours(name): tensor for name, tensor in found.items()}, dialect


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
