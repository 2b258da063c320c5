"""Values as bytes for other machines: what is large once and apart, and programs of the user's own by value."""

import hashlib
import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor, nn

from dosimeter.fingerprint import is_installed

LARGE = 2**12
"""Bytes from which tensors are sent apart; models always are."""

KEPT = 2**30
"""Bytes of what is sent apart that are kept for the next item, where they are put and where they are used."""


class Packed(NamedTuple):
    """A value without what is large in it."""

    body: bytes
    apart: Mapping[str, Any]  # where the rest was put, by the digest of its bytes


class Packer:
    """Packs values that share models, data and weights, of which each is put where others get it once.

    Args:
        put: puts bytes somewhere and says where.
    """

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self._put = put
        self._places = _Recent()
        self._known: OrderedDict[int, tuple[object, str]] = OrderedDict()  # held, or another might have its id

    def pack(self, value: object) -> Packed:
        used: dict[str, Any] = {}

        def apart(each: object) -> str:
            key = self._known[id(each)][1] if id(each) in self._known else ""
            if not key or self._places.get(key) is None:
                content = dumps(each)
                key = hashlib.sha256(content).hexdigest()
                if self._places.get(key) is None:
                    self._places.add(key, self._put(content), len(content))
            self._known[id(each)] = (each, key)
            used[key] = self._places.get(key)
            return key

        packed = Packed(dumps(value, apart), used)
        while len(self._known) > 2 * len(used) + 16:
            self._known.popitem(last=False)
        return packed


class _Recent:
    """Values that were used last, up to so many bytes."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def get(self, key: str) -> Any:
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def add(self, key: str, value: Any, size: int) -> None:
        self._held[key] = (value, size)
        while sum(many for _, many in self._held.values()) > KEPT and len(self._held) > 1:
            self._held.popitem(last=False)


_came = _Recent()
"""What this process got of values before."""


def unpack(packed: Packed, get: Callable[[Any], bytes]) -> Any:
    """The value again; what is apart is got only where this process has not had it lately."""
    return _Unpickler(packed, get).load()


def dumps(value: object, apart: Callable[[object], str] | None = None) -> bytes:
    """A value as bytes; `apart` sends what is large and says by what name it is found again."""
    file = io.BytesIO()
    pickler = _Pickler(file, apart)
    try:
        pickler.dump(value)
    finally:
        for name in pickler.registered:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])
    return file.getvalue()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, apart: Callable[[object], str] | None) -> None:
        super().__init__(file)
        self._apart, self.registered = apart, set[str]()

    def persistent_id(self, value: object) -> str | None:
        large = isinstance(value, nn.Module) or _bytes(value) >= LARGE
        return self._apart(value) if self._apart and large else None

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and value.layout is torch.strided and value.device.type == "cpu":
            return _tensor, _told(value)
        if isinstance(value, type | FunctionType | ModuleType):
            self._by_value(value.__name__ if isinstance(value, ModuleType) else value.__module__)
        return super().reducer_override(value)

    def _by_value(self, name: str) -> None:
        """Have a module of the user's own go along with what is used of it."""
        if name in sys.modules and name != "__main__" and name not in self.registered and not is_installed(name):
            cloudpickle.register_pickle_by_value(sys.modules[name])
            self.registered.add(name)


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: Packed, get: Callable[[Any], bytes]) -> None:
        super().__init__(io.BytesIO(packed.body))
        self._apart, self._get, self._had = packed.apart, get, dict[str, Any]()

    def persistent_load(self, key: str) -> Any:
        if key not in self._had:
            found = _came.get(key)
            if found is None:
                content = self._get(self._apart[key])
                found = pickle.loads(content)
                _came.add(key, found, len(content))
            self._had[key] = found
        return self._had[key]


def _told(tensor: Tensor) -> tuple[Any, ...]:
    """A tensor in bytes that are the same for the same values, without the rest of what it is a part of."""
    whole = tensor.detach().resolve_conj().resolve_neg().clone()
    flat = whole.as_strided((whole.numel(),), (1,))  # a copy is dense, in whatever order
    content = flat.view(torch.uint8).numpy().tobytes()
    return content, whole.dtype, tuple(whole.shape), whole.stride(), tensor.requires_grad


def _tensor(content: bytes, dtype: torch.dtype, shape: Any, stride: Any, learned: bool) -> Tensor:
    if not content:
        return torch.empty_strided(shape, stride, dtype=dtype).requires_grad_(learned)
    flat = torch.frombuffer(bytearray(content), dtype=dtype)
    return flat.as_strided(shape, stride).requires_grad_(learned)


def _bytes(value: object) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return value.nbytes if isinstance(value, np.ndarray) else 0
