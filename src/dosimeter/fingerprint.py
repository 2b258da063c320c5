"""What a value is, as a short word: the same for the same value in whatever process, another for any other value.

A kept result may stand for a new one only where all that determines it has the same fingerprint: the model, the data,
the settings, the parts, and the program itself (`code`).

    modules      their class, attributes, weights, buffers and hooks, but not whether they are in training mode
    functions    instructions, defaults, what they close over and the globals that they name
    classes      name, methods and the file they stand in; torch's and ours by name alone, since `code` tells those
    files, data  their contents
    the rest     class and contents, as a copy would have them

No address, path or hash() is in it. Python's instructions are, so that functions of the user's own have another
fingerprint under another minor version of Python.
"""

import copyreg
import hashlib
import importlib.metadata
import re
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dosimeter.errors import ModelError

DIGITS = 16
OURS = Path(__file__).parent
APART = {"benchmarks", "cli", "drafts", "errors", "files", "flower", "progress", "reports", "store"}
"""Rooms of ours on which no result depends."""
NAMED = {"dosimeter", "torch", *sys.stdlib_module_names}
_CACHED = type(cache(len))
PLAIN = (str, bytes, int, float, complex, type(None), type(...), torch.dtype, torch.device)


def of(value: object) -> str:
    """The first 16 hex digits of a sha256 over all that the value is."""
    return _Reader().read(value).hex()[:DIGITS]


def ours_in(value: object) -> set[str]:
    """Names of our modules that define classes and functions of which the value is made."""
    reader = _Reader()
    reader.read(value)
    return reader.ours


def of_file(path: Path) -> str:
    """The first 16 hex digits of a file's sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def named(value: object, words: str = "") -> str:
    """What files for people say of a value: some words, by default its settings or class, and its fingerprint."""
    words = words or (repr(value) if is_dataclass(value) else getattr(value, "__name__", type(value).__name__))
    return f"{re.sub(' at 0x[0-9a-f]+', '', words)} {of(value)}"


@cache
def code() -> str:
    """The program that computes results: our version and source, and torch's version."""
    sources = {path.relative_to(OURS).as_posix(): path for path in OURS.rglob("*.py")}
    digest = of({name: path for name, path in sources.items() if name.split("/")[0].removesuffix(".py") not in APART})
    return f"dosimeter {importlib.metadata.version('dosimeter')} {digest[:8]}, torch {_version('torch')}"


def is_installed(name: str) -> bool:
    """Whether a module is one of those that every machine of ours has, and not the user's own."""
    return bool(_installed(name))


class _Reader:
    """One pass through a value and all that it holds."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # what is being read, by how deep it lies: a value may hold itself
        self.shared: dict[int, int] = {}  # parameters in the order in which they came: tied weights train as one
        self.known: dict[int, bytes] = {}  # programs that were read
        self.ours: set[str] = set()  # modules of this program that were met
        self.held: list[object] = []  # all that was read, so that no other object takes over its id

    def read(self, value: object) -> bytes:
        if isinstance(value, PLAIN):
            return _join(type(value).__name__, repr(value))
        if id(value) in self.known:
            return self.known[id(value)]
        if id(value) in self.open:
            return _join("around", len(self.open) - self.open[id(value)])
        self.open[id(value)] = len(self.open)
        self.held.append(value)
        try:
            found = self._of(value)
        finally:
            del self.open[id(value)]
        if isinstance(value, type | FunctionType | ModuleType):
            self.known[id(value)] = found
        return found

    def all(self, *values: object) -> bytes:
        return _join(*map(self.read, values))

    def _of(self, value: Any) -> bytes:
        match value:
            case Tensor():
                return self._tensor(value)
            case np.ndarray() if value.dtype.hasobject:
                return _join("array", np.shape(value), self.read(value.tolist()))
            case np.ndarray() | np.generic():
                return _join("array", value.dtype.str, np.shape(value), np.ascontiguousarray(value).tobytes())
            case Path():
                return _join("file", of_file(value)) if value.is_file() else _join("path", str(value))
            case weakref.ref():
                return _join("weak", self.read(value()))
            case type():
                return self._class(value)
            case ModuleType():
                return self._program(value)
            case FunctionType():
                return self._function(value)
            case CodeType():
                shape = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
                names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
                return _join("code", value.co_code, shape, names, self.all(*value.co_consts))
            case MethodType():
                return _join("method", self.all(value.__func__, value.__self__))
            case BuiltinFunctionType():
                owner = None if isinstance(value.__self__, ModuleType) else value.__self__
                return _join("function", value.__module__, value.__qualname__, self.read(owner))
            case property() | cached_property():
                return _join("property", self.read(value.fget if isinstance(value, property) else value.func))
            case classmethod() | staticmethod() | _CACHED():
                return _join("wrapped", type(value).__name__, self.read(value.__wrapped__))
            case list() | tuple():
                return _join(self.read(type(value)), self.all(*value))
            case set() | frozenset():
                return _join(self.read(type(value)), *sorted(map(self.read, value)))
            case dict() | MappingProxyType():
                return _join(self.read(type(value)), *self._sorted(value))
        return self._object(value)

    def _object(self, value: Any) -> bytes:
        kind = type(value)
        if kind.__qualname__ == "OptimizedModule" and isinstance(value, nn.Module):
            return self.read(value._orig_mod)  # which torch.compile made faster
        if isinstance(value, nn.Module):
            return _join(self.read(kind), *self._sorted(_parts_of(value)))
        if isinstance(getattr(kind, "fingerprint", None), property | cached_property):
            return _join(self.read(kind), value.fingerprint)
        if is_dataclass(value):
            held = {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
            return _join(self.read(kind), *self._sorted(held))
        return self._copied(value)

    def _copied(self, value: Any) -> bytes:
        """Of the parts that a copy would be made of."""
        try:
            made = value.__reduce_ex__(4)
        except (TypeError, RuntimeError) as reason:
            raise ModelError(
                f"Expected values that can be told from others, got a {type(value).__qualname__} ({reason}); leave it "
                "out of what is trained or audited."
            ) from None
        if isinstance(made, str):
            return _join("named", made)
        make, given, *rest = made
        state, *items = [*rest, None, None, None][:3]
        if isinstance(state, dict):
            state = _settled(value, state)
        begun = None if make is copyreg.__newobj__ else make  # type: ignore[attr-defined]
        return _join("made", self.all(type(value), begun, given, state, *(list(each or ()) for each in items)))

    def _sorted(self, held: Mapping[Any, object]) -> Iterator[bytes]:
        for key, name in sorted(((self.read(name), name) for name in held), key=lambda pair: pair[0]):
            yield from (key, self.read(held[name]))

    def _tensor(self, tensor: Tensor) -> bytes:
        learned = None
        if isinstance(tensor, nn.Parameter):
            if id(tensor) in self.shared:
                return _join("shared", self.shared[id(tensor)])
            self.shared[id(tensor)] = len(self.shared)
            learned = tensor.requires_grad
        whole = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
        flat = whole.cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
        content = flat.view(torch.uint8).numpy().data
        return _join("tensor", str(tensor.dtype), tuple(tensor.shape), learned, content)

    def _class(self, kind: type) -> bytes:
        if place := self._installed(kind.__module__):
            return _join("class", *place, kind.__qualname__)
        inside = [
            (name, self._known(value))
            for name, value in sorted(vars(kind).items())
            if isinstance(value, FunctionType) or not name.startswith(("__", "_abc_"))
        ]
        file = self.read(sys.modules.get(kind.__module__))
        return _join("class", kind.__qualname__, file, self.all(*kind.__bases__), inside)

    def _function(self, function: FunctionType) -> bytes:
        home, program = str(function.__globals__.get("__name__")), function.__code__
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]  # an empty one
        held += [function.__defaults__, function.__kwdefaults__]
        if place := self._installed(home):
            line = program.co_firstlineno if "<" in function.__qualname__ else None
            return _join("function", *place, function.__qualname__, line, self.all(*held))
        names = _names(program) & function.__globals__.keys()
        named = [(name, self._known(function.__globals__[name])) for name in sorted(names)]
        own = self.all(function.__qualname__, sys.modules.get(home), program, *held)
        return _join("function", own, named)

    def _installed(self, name: str) -> tuple[str, ...]:
        if name.startswith("dosimeter."):
            self.ours.add(name)
        return _installed(name)

    def _known(self, value: object) -> bytes:
        """Of a global or an attribute of a class, which may be a lock or a stream that no result depends on."""
        try:
            return self.read(value)
        except ModelError:
            return self.read(type(value))

    def _program(self, module: ModuleType) -> bytes:
        """A file of the user's with those that it imports; of the script that runs only what is used of it counts."""
        if place := _installed(module.__name__):
            return _join("program", *place)
        file = getattr(module, "__file__", None)
        if module.__name__ == "__main__" or not file:
            return _join("program")
        used = [value if isinstance(value, ModuleType) else _home(value) for value in vars(module).values()]
        others = {id(each): each for each in used if each is not None and not _installed(each.__name__)}
        return _join("program", Path(file).read_bytes(), *sorted({self.read(each) for each in others.values()}))


def _parts_of(module: nn.Module) -> dict[str, object]:
    """What a module computes with, by name. Its layers and weights have an order, and hooks are named by a counter."""
    held = _settled(module, vars(module))
    hooks = [name for name in vars(nn.Module()) if "hooks" in name]
    held |= {name: list(held[name].items()) for name in ("_parameters", "_buffers", "_modules")}
    held |= {name: list(held[name].values()) for name in hooks}
    left_out = {"training", *(name for name in hooks if "state_dict" in name)}
    return {name: value for name, value in held.items() if name not in left_out}


def _settled(value: object, held: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes without those that were computed from the others and kept."""
    return {name: held[name] for name in held if not isinstance(getattr(type(value), name, None), cached_property)}


def _installed(name: str) -> tuple[str, ...]:
    """What tells an installed program from another one; nothing for the user's own."""
    if name.partition(".")[0] in NAMED:
        return (name,)
    file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    if not {"site-packages", "dist-packages"} & set(file.parts):
        return ()
    return name, _version(name), of_file(file) if file.suffix == ".py" else ""


def _version(name: str) -> str:
    """Without what tells builds of a release apart."""
    return str(getattr(sys.modules.get(name.partition(".")[0]), "__version__", "")).partition("+")[0]


def _home(value: object) -> ModuleType | None:
    return sys.modules.get(str(getattr(value, "__module__", None)))


def _names(program: CodeType) -> set[str]:
    inner = [_names(each) for each in program.co_consts if isinstance(each, CodeType)]
    return {*program.co_names}.union(*inner)


def _join(*parts: object) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        content = part if isinstance(part, bytes | memoryview) else repr(part).encode()
        digest.update(f"{len(content)}:".encode())
        digest.update(content)
    return digest.digest()
