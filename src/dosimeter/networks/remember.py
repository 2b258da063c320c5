"""What is found of a model by running it, found once: inside a block the same question has the same answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_kept: ContextVar[dict[Any, tuple[object, Any]] | None] = ContextVar("kept", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Have functions that are `remembered` answer from memory; nothing that they are asked of may change inside."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """A function of objects that runs once for the same ones inside a `remembering` block; its errors are kept too."""

    @wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        kept = _kept.get()
        if kept is None:
            return function(*args, **kwargs)
        key = (function, *map(id, args), *((name, id(value)) for name, value in sorted(kwargs.items())))
        if key not in kept:
            held: object = (args, kwargs)  # which keeps them, and so their ids, alive
            try:
                kept[key] = held, (function(*args, **kwargs), None)
            except Exception as reason:
                kept[key] = held, (None, reason)
        found, refusal = kept[key][1]
        if refusal is not None:
            raise refusal
        answer: R = found
        return answer

    return ask
