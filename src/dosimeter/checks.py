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
    far = most == math.inf or (
        most >= MANY and (value or 0) < least
    )  # a limit that nobody comes near is said to who is beyond it
    span = f"of at least {least}" if far else f"of {least} to {most:,}"
    _require(owner, key, value, span, whole)


MANY = 1000
MOST_STEPS = 10_000_000
"""A search of more would take weeks."""
MOST = 2**31 - 1
"""No whole number of steps, images or channels is larger; random streams are named by larger ones."""
FURTHEST = 1.8e19
"""No number is further from 0: its square, which norms and losses take, would be infinite in float32."""

NEAREST = 1.2e-38
"""No number but 0 is nearer to 0: in float32 it would be 0, or as good as that."""


def reasonable(key: str, value: object) -> None:
    """Refuse a number in words that nothing can be counted or computed with, whatever it is for."""
    if isinstance(value, tuple | list):
        for each in value:
            reasonable(key, each)
    elif isinstance(value, float) and 0 < abs(value) < NEAREST:
        raise SettingError(f"{key} needs 0, or a number that 32 bits tell from 0, {NEAREST:g} or more, got {value:g}.")
    elif isinstance(value, float) and not abs(value) <= FURTHEST:
        raise SettingError(
            f"{key} needs a number whose square is finite in 32 bits, at most {FURTHEST:g}, got {value:g}."
        )
    elif isinstance(value, int) and abs(value) > MOST:
        raise SettingError(f"{key} needs a whole number of at most {MOST:,}, got {str(value)[:20]}.")


def _require(owner: str, key: str, value: float | None, span: str, inside: bool = True) -> None:
    if value is not None and not (inside and math.isfinite(value)):
        raise SettingError(f"{owner} needs {key} {span}, got {value}.")
