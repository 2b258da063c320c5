"""Paths of a store: none of them leads out of it, by dots, by links or by what a record says."""

import json
import re
from pathlib import Path

from dosimeter.errors import DataError

FILE, TRIALS, OWNERS = "trials.sqlite", "trials", "owners"
DIGEST = re.compile(r"[0-9a-f]{4,64}")
PICTURE = re.compile(r"victim-\d{1,9}-\d{1,9}-(original|transformed|reconstruction)\.png")


def inside(folder: Path, *names: str) -> Path:
    """What lies at these names in a folder, with all links followed; refused where that is elsewhere or not there."""
    try:
        root = folder.resolve(strict=True)
        found = root.joinpath(*names).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # a null byte is a ValueError, a loop of links a RuntimeError
        raise DataError(f"Expected {'/'.join(names)!r} in the store, found nothing.") from None
    if not found.is_relative_to(root):
        raise DataError(f"Expected a path inside the store, but {'/'.join(names)!r} leads out of it.")
    return found


def trial(store: Path, digest: str) -> Path:
    """The folder of a trial."""
    if not DIGEST.fullmatch(digest):
        raise DataError(f"Expected the digest of a trial, got {digest!r}.")
    return inside(store / TRIALS, digest)


def picture(store: Path, digest: str, name: str) -> Path:
    """A picture of a trial."""
    if not PICTURE.fullmatch(name):
        raise DataError(f"Expected the name of a picture, got {name!r}.")
    found = inside(trial(store, digest), "images", name)
    if not found.is_file():
        raise DataError(f"Expected a picture at {name!r}, found none.")
    return found


def check_run(folder: Path) -> None:
    """Refuse a run whose files, or whose records, name places outside of it, before it is read."""
    for path in folder.rglob("*"):
        inside(folder, str(path.relative_to(folder)))
    for path in folder.rglob("records.json"):
        try:
            rows = json.loads(path.read_bytes()).get("panel", [])
            names = [str(row["attack"]) for row in rows]
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
            raise DataError(f"{path.name}: expected records, but they are damaged ({error}).") from None
        if wrong := [name for name in names if "/" in name or "\\" in name or "\0" in name]:
            raise DataError(f"{path.name}: expected the name of an attack, got {wrong[0]!r}.")
