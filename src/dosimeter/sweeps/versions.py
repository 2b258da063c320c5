"""Which of our sources a result depends on, so that a change in a part makes anew what used it, and only that."""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

from dosimeter import fingerprint
from dosimeter.fingerprint import APART, DIGITS, OURS

PARTS = ("attacks", "data", "defenses", "models", "servers")
"""Rooms of parts, of which a result depends on those that it was made with."""

ABOVE = {"app", "papers", "studies", "sweeps", "tuning"}
"""Rooms that only ask for results."""


def of(*values: object) -> str:
    """The version of all parts that values are made of and of what runs every audit, as 16 hex digits."""
    found = hashlib.sha256(f"torch {version('torch')}".encode())
    for name in sorted(_core() | _closure(fingerprint.ours_in(values))):
        found.update(f"{name} {_digest(name)};".encode())
    return found.hexdigest()[:DIGITS]


@cache
def _files() -> dict[str, Path]:
    """Our modules by their dotted names."""
    found = {}
    for path in OURS.rglob("*.py"):
        parts = path.relative_to(OURS.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _digest(name: str) -> str:
    return fingerprint.of_file(_files()[name])


@cache
def _core() -> frozenset[str]:
    """What every result depends on: all that is no part, and nothing that only looks or asks."""
    rooms = {name: name.split(".")[1] for name in _files() if "." in name}
    return frozenset(name for name, room in rooms.items() if room not in {*PARTS, *APART, *ABOVE})


def _closure(names: Iterable[str]) -> set[str]:
    """These modules and all parts whose definitions they name, and so on."""
    found, left = set[str](), [name for name in names if _is_part(name)]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [each for each in _named(name) if _is_part(each)]
    return found


def _is_part(name: str) -> bool:
    return name in _files() and name.partition(".")[2].split(".")[0] in PARTS


@cache
def _named(name: str) -> frozenset[str]:
    """The modules that a module's import statements come down to."""
    found = set()
    for node in ast.walk(ast.parse(_files()[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {_home(node.module, alias.name) for alias in node.names}
    return frozenset(found & _files().keys())


def _home(module: str, name: str) -> str:
    """Where a name that is imported from a module stands: packages hand on what their modules define."""
    if f"{module}.{name}" in _files():
        return f"{module}.{name}"
    path = _files().get(module)
    if path is None or path.name != "__init__.py":
        return module
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module != module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _home(node.module, alias.name)
    return module
