"""A pass written down once and repeated: the same operations on the same memory, without the Python between them.

A step of a small network is some two hundred operations of a few microseconds each, and as many again that only look at
tensors in another shape. Recorded, the second kind is gone. What is used often runs as one TorchScript function, which
does not hold Python's lock: two tiles side by side would otherwise wait for each other at every operation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")

OFTEN = 20
"""Runs after which a program is worth the tenth of a second that TorchScript takes to read it."""


class Call(NamedTuple):
    """One operation that writes to memory; `into` is set where its result has to be copied there."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    into: Tensor | None = None

    def __call__(self) -> None:
        found = self.operation(*self.args, **self.kwargs)
        if self.into is not None:
            self.into.copy_(found)


class Program:
    """What `work` does, ready to be done again.

    Whatever changes between two runs must be written into tensors that `work` reads, and what it gives is overwritten
    by the next run. It must not look at values.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        with torch.no_grad():
            work()  # makes the memory that it keeps
            with _Recorder() as recorder:
                self.given: Any = work()
        self.calls = recorder.calls
        self._runs = 0
        self._script: Callable[[], None] | None = None

    def run(self) -> Any:
        """Do it again; gives the tensors that the first run gave, with new values."""
        self._runs += 1
        if self._runs == OFTEN:
            self._script = _script(self.calls)
        if self._script is not None:
            self._script()
        else:
            for call in self.calls:
                call()
        return self.given


class Compiled(Program):
    """The same by `torch.compile`."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = torch.compile(work)
        self.given: Any = self.run()

    def run(self) -> Any:
        return self._work()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that writes; outputs are kept, so that no two of them ever share memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = func(*args, **kwargs)
        if not isinstance(given, Tensor):
            raise RuntimeError(f"{func} gives no tensor, so it cannot be repeated")
        if func._schema.is_mutable:
            self.calls.append(Call(func, args, kwargs))
        elif not func.is_view:
            self.calls.append(_into(func, args, kwargs, given))
        return given


def _into(func: Any, args: Any, kwargs: dict[str, Any], given: Tensor) -> Call:
    """The operation with its result written to where the first one was."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        outs = [a.name for a in other._schema.arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
        if len(outs) == 1 and rest == wanted:
            return Call(other, args, {**kwargs, outs[0]: given})
    return Call(func, args, kwargs, given)


def _script(calls: list[Call]) -> Callable[[], None] | None:
    """All calls as one TorchScript function of the tensors they touch; None where TorchScript cannot take them."""
    tensors: list[Tensor] = []
    places: dict[int, int] = {}

    def written(value: Any) -> str:
        if isinstance(value, Tensor):
            if id(value) not in places:
                places[id(value)] = len(tensors)
                tensors.append(value)
            return f"t[{places[id(value)]}]"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(written, value))}]"
        return f"torch.device('{value}')" if isinstance(value, torch.device) else repr(value)

    lines = []
    for operation, args, kwargs, into in calls:
        given = ", ".join([*map(written, args), *(f"{key}={written(value)}" for key, value in kwargs.items())])
        line = f"torch.ops.{operation._schema.name.replace('::', '.')}({given})"
        lines.append(line if into is None else f"{written(into)}.copy_({line})")
    try:
        unit = torch.jit.CompilationUnit("def run(t: List[Tensor]) -> None:\n    " + "\n    ".join(lines) + "\n")
    except RuntimeError:
        return None
    return lambda: unit.run(tensors)
