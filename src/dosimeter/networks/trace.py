"""One run of a model as a list of calls, parts of which can be run again with other numbers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

BATCH_NORM = {
    **dict.fromkeys(("running_mean", "running_var", "weight", "bias")),
    "training": False,
    "momentum": 0.1,
    "eps": 1e-5,
}
CONV = {"weight": None, "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
"""What torch's functions take after the first argument, with their defaults; see `arguments`."""


class Call(NamedTuple):
    """A torch function that was called, and what it gave."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    @property
    def name(self) -> str:
        return str(self.func.__name__).strip("_")

    @property
    def inputs(self) -> list[Tensor]:
        return list(_tensors((self.args, tuple(self.kwargs.values()))))

    @property
    def outputs(self) -> list[Tensor]:
        return list(_tensors(self.out))


class Trace:
    """What a model did with a batch. Shapes are those of that batch, so a part is run again on as many images.

    `hear` is told the name of every torch function when it was called, and may raise.
    """

    def __init__(self, model: nn.Module, images: Tensor, hear: Callable[[str], None] | None = None) -> None:
        self.model, self.images = model, images
        with torch.no_grad(), _Recorder(hear) as recorder:
            self.output: Tensor = model(images)
        self.calls = recorder.calls
        self.maker = {id(out): call for call in self.calls for out in call.outputs}
        self._ids = [({id(t) for t in call.inputs}, {id(t) for t in call.outputs}) for call in self.calls]

    def users(self, tensor: Tensor) -> list[Call]:
        """The calls that take a tensor."""
        return [call for call, (inputs, _) in zip(self.calls, self._ids, strict=True) if id(tensor) in inputs]

    def after(self, sources: Iterable[Tensor], *, without: Iterable[Tensor] = ()) -> set[int]:
        """The ids of all tensors that depend on the sources by a way that avoids those `without`."""
        barred = {id(t) for t in without}
        found = {id(t) for t in sources} - barred
        for inputs, outputs in self._ids:
            if not found.isdisjoint(inputs):
                found |= outputs - barred
        return found

    def between(self, sources: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Call]:
        """The calls that lead from the sources to what is wanted."""
        needed = {id(t) for t in wanted}
        start = {id(t) for t in sources}
        reached = self.after(sources) - start
        kept = []
        for call in reversed(self.calls):
            made = {id(t) for t in call.outputs}
            if made & needed and made & reached:
                kept.append(call)
                needed |= {id(t) for t in call.inputs} - start
        return kept[::-1]


def replay(calls: Sequence[Call], given: dict[int, Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
    """What the wanted tensors become where those given, by the ids of the old ones, are others."""
    now = dict(given)
    for call in calls:
        out = call.func(*_swap(call.args, now), **{key: _swap(value, now) for key, value in call.kwargs.items()})
        now |= {id(old): new for old, new in zip(call.outputs, _tensors(out), strict=True)}
    return [now.get(id(t), t) for t in wanted]


class Section(nn.Module):
    """A part of a model as a model of its own, from one tensor of a trace to another; parameters keep their names."""

    def __init__(self, trace: Trace, source: Tensor, wanted: Tensor) -> None:
        super().__init__()
        self._trace = (trace,)  # in a tuple, so that the whole model is no part of this one
        self._source, self._wanted = source, wanted
        self._calls = trace.between([source], [wanted])

    def forward(self, x: Tensor) -> Tensor:
        return replay(self._calls, {id(self._source): x}, [self._wanted])[0]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        return self._trace[0].model.named_parameters(prefix, recurse, remove_duplicate)


class _Recorder(TorchFunctionMode):
    """Writes down every call of a torch function that gives tensors; on this thread alone, unlike a tracer."""

    def __init__(self, hear: Callable[[str], None] | None) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._hear = hear

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._hear is not None:
            self._hear(func.__name__)
        if any(True for _ in _tensors(out)):
            self.calls.append(Call(func, args, kwargs or {}, out))
        return out


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any], **defaults: Any) -> list[Any]:
    """A call's arguments after the first, by position or name, with their defaults."""
    given = dict(zip(defaults, args, strict=False)) | kwargs
    return [given.get(key, default) for key, default in defaults.items()]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _swap(value: Any, now: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return now.get(id(value), value)
    return type(value)(_swap(each, now) for each in value) if type(value) in (list, tuple) else value
