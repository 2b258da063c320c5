"""Errors that a user can act on.

    DosimeterError            anything below; the command line prints it as one line and exits with 2
    ├── SettingError          a setting, name or combination that cannot work
    ├── DataError             a data set that is missing, corrupt or of the wrong shape
    ├── ModelError            a model or loss that cannot be audited
    ├── UpdateError           an update that does not fit the model
    └── OutputError           a place that cannot be written

Every message says what was expected, what was found and what to do.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class DosimeterError(Exception):
    """The root of all errors that are the input's fault, not the program's."""


class SettingError(DosimeterError):
    """A setting, name or combination of parts that cannot work."""


class DataError(DosimeterError):
    """A data set that is missing, corrupt or of the wrong shape."""


class ModelError(DosimeterError):
    """A model or loss that cannot be audited."""


class UpdateError(DosimeterError):
    """An update whose tensors do not fit the model."""


class OutputError(DosimeterError):
    """A place that cannot be written."""


DAMAGED = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError, AssertionError)
"""What comes of values that are not what was written: whoever reads a file of ours says so in one line instead."""


@contextmanager
def looking(place: object) -> Iterator[None]:
    """Whoever looks at what lies in a place, and finds that it is not what was written there, says so in one line."""
    try:
        yield
    except DAMAGED as error:
        why = " ".join(f"{type(error).__name__} {error}".split())
        said = "expected what dosimeter wrote, but it is damaged or of another version"
        raise DataError(f"{place}: {said} ({why}).") from error


def unknown(kind: str, name: str, valid: Iterable[str], hint: str = "") -> str:
    """The sentence for a name that is not in a list, with the nearest name that is."""
    valid = sorted(valid)
    near = get_close_matches(name, valid, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return f"Unknown {kind} {name!r}; expected one of {', '.join(valid)}.{guess}{' ' + hint if hint else ''}"
