"""Files that are there as a whole or not at all, whenever the program is stopped."""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from dosimeter.errors import OutputError


def replace(path: str | Path, content: bytes | str, *, instead: str = "--out", mode: int = 0o666) -> None:
    """Put a file in its place in one go, with the folders above it; an older one gives way only then.

    Args:
        instead: what the user can choose where this place cannot be written.
        mode: who may read it, less what the process masks.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.touch(mode)  # before there is anything to read
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, error, instead) from None


def replace_json(path: str | Path, value: dict[str, Any], *, instead: str = "--out", mode: int = 0o666) -> None:
    """The same of a value, as JSON."""
    replace(path, json.dumps(value, indent=1) + "\n", instead=instead, mode=mode)


def check_writable(folder: str | Path, *, instead: str = "--out") -> None:
    """Refuse a folder that cannot be written, before work is lost to it, by writing there; nothing of that stays."""
    missing: list[Path] = []
    try:
        place = Path(folder).resolve()
        missing = [each for each in (place, *place.parents) if not each.exists()]
        if missing:
            place.mkdir(parents=True)
        tempfile.TemporaryFile(dir=place).close()
    except (OSError, ValueError, RuntimeError) as error:  # a null byte is a ValueError, a loop of links a RuntimeError
        raise _refused(folder, error, instead) from None
    finally:
        with suppress(OSError):
            for each in missing:
                each.rmdir()


def _refused(path: str | Path, error: Exception, instead: str) -> OutputError:
    why = getattr(error, "strerror", None) or error
    return OutputError(f"Cannot write {str(path)!r}: {why}; choose another {instead}.")
