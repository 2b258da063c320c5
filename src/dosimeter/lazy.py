"""Packages whose parts are imported when they are first asked for: `dosimeter --help` does not wait for torch."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def importer(package: str, file: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package: the imports that its file has under `if TYPE_CHECKING`, each when it is used.

    Any module of the package is an attribute, too.
    """
    block = next(node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If))
    homes = {each.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for each in node.names}

    def find(name: str) -> Any:
        home = homes.get(name)
        if home not in (None, package):
            value = getattr(import_module(str(home)), name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}"):
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return find
