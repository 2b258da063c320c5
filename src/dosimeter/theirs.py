"""Programs that are not ours: models, losses, defenses and metrics of the user's own, and what they raise.

They run deep inside ours, where the engine has its own use for errors, so nobody catches these on their way up. At the
end the traceback tells whose code raised: the user's is said in one line, and a mistake of ours is not disguised.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dosimeter.errors import DosimeterError

PREFIX = "dosimeter_user_"
"""How the modules of users' files are called."""
LONGEST = 300
"""Letters of a foreign message that are told."""


@contextmanager
def running(what: str, error: type[DosimeterError], then: str = "") -> Iterator[None]:
    """Run what is not ours and nothing else: whatever it raises, it is refused by `what`, the reason and `then`."""
    try:
        yield
    except (DosimeterError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as reason:
        raise error(f"{what}: {words(reason).rstrip('.')}. {then}".rstrip()) from reason


def blamed(error: BaseException) -> str | None:
    """Where a user's program raised an error, and which, in one line; None where it was no such program."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(PREFIX):
            where = f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}"
            return f"{where}: {words(error)}; correct that program."
        if module.partition(".")[0] == "dosimeter":
            return None
    return None


def words(error: BaseException) -> str:
    """An error's kind and what it says, in one line."""
    said = ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
    return said if len(said) <= LONGEST else said[:LONGEST] + " ..."
