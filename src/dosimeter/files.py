"""Files that are there as a whole or not at all, whenever the program is stopped."""

import json
import os
from pathlib import Path
from typing import Any

from dosimeter.errors import OutputError


def replace(path: Path, content: bytes | str, *, instead: str = "--out") -> None:
    """Put a file in its place in one go, with the folders above it; an older one gives way only then.

    Args:
        instead: what the user can choose where this place cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot write {str(path)!r}: {error.strerror or error}; choose another {instead}.") from None


def replace_json(path: Path, value: dict[str, Any], *, instead: str = "--out") -> None:
    """The same of a value, as JSON."""
    replace(path, json.dumps(value, indent=1) + "\n", instead=instead)
