"""Values as JSON has them and back again, dataclasses by the types of their fields."""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that spreadsheets take for a formula."""


def cell(value: Any) -> Any:
    """A value for CSV: what is no number or word as JSON, and ' before text that a spreadsheet would run."""
    flat = json.dumps(value) if isinstance(value, dict | list | tuple) else value
    return f"'{flat}" if isinstance(flat, str) and flat.startswith(FORMULA) else flat


def of(value: object) -> Any:
    """A value as JSON has it: no infinities, which become null, and of foreign types only their text.

    Of a dataclass what is None by default is left out.
    """
    if is_dataclass(value) and not isinstance(value, type):
        held = {field: getattr(value, field.name) for field in fields(value)}
        return {field.name: of(each) for field, each in held.items() if each is not None or field.default is not None}
    if isinstance(value, Mapping):
        return {str(key): of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [of(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def read(kind: Any, value: Any, where: str = "it") -> Any:
    """The value of a kind that `of` has made this of; ValueError where it is none."""
    held = get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _dataclass(kind, _checked(value, dict, where), where)
    if get_origin(kind) in (Union, UnionType):
        if value is None and type(None) in held:
            return None
        return read(next(each for each in held if each is not type(None)), value, where)
    if get_origin(kind) is Literal:
        if value not in held:
            raise ValueError(f"{where} is none of {', '.join(map(str, held))}")
        return value
    if get_origin(kind) in (list, tuple):
        items = [read(held[0], item, where) for item in _checked(value, list, where)]
        return items if get_origin(kind) is list else tuple(items)
    if get_origin(kind) in (dict, Mapping):
        return {key: read(held[1], item, f"{where}.{key}") for key, item in _checked(value, dict, where).items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return kind(_checked(value, str if issubclass(kind, str) else kind, where))


def _checked(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} is no {kind.__name__}")
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _dataclass(kind: Any, found: dict[str, Any], where: str) -> Any:
    """What is computed from the rest is computed anew."""
    known = {field.name: field for field in fields(kind)}
    if strange := found.keys() - known.keys():
        raise ValueError(f"{where} has a strange {min(strange)!r}")
    given = {}
    for name, field in known.items():
        if field.init and name in found:
            given[name] = read(_hints(kind)[name], found[name], f"{where}.{name}")
        elif field.init and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where} has no {name}")
    return kind(**given)
