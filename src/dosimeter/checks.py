"""Numbers that settings take, refused in one way: who needs what, and what it got.

Not a number and infinity are in no range. A setting that is None was not set and is left alone.
"""

import math

from dosimeter.errors import SettingError


def finite(owner: str, key: str, value: float | None) -> None:
    """Any number but not a number and infinity."""
    _require(owner, key, value, "that is finite")


def positive(owner: str, key: str, value: float | None) -> None:
    """Above 0."""
    _require(owner, key, value, "above 0", value is None or value > 0)


def at_least(owner: str, key: str, value: float | None, least: float) -> None:
    """From `least` on."""
    _require(owner, key, value, f"of at least {least:g}", value is None or value >= least)


def share(owner: str, key: str, value: float | None, *, zero: bool = True, one: bool = True) -> None:
    """In [0, 1], or without one of its ends."""
    span = f"in {'[' if zero else '('}0, 1{']' if one else ')'}"
    inside = value is None or (0 <= value <= 1 and (zero or value != 0) and (one or value != 1))
    _require(owner, key, value, span, inside)


def count(owner: str, key: str, value: int | None, least: int = 1, most: float = math.inf) -> None:
    """A whole number from `least` on, or up to `most`."""
    whole = value is None or (hasattr(value, "__index__") and least <= value <= most)
    _require(owner, key, value, f"of at least {least}" if most == math.inf else f"of {least} to {most}", whole)


def _require(owner: str, key: str, value: float | None, span: str, inside: bool = True) -> None:
    if value is not None and not (inside and math.isfinite(value)):
        raise SettingError(f"{owner} needs {key} {span}, got {value}.")
