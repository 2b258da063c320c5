"""The public surface."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dosimeter
from dosimeter import clients, data
from dosimeter.attacks import presets

MOST = 12
SETTINGS = {*presets.BY_NAME.values(), *clients.BY_NAME.values()}
"""Those whose parameters are settings by name, `ig:tv=0.01`, `local:lr=0.1`."""


@pytest.mark.parametrize("package", [dosimeter, data])
def test_exports_are_exactly_what_all_says(package: types.ModuleType) -> None:
    """Those under `if TYPE_CHECKING`, which are imported when they are asked for."""
    tree = ast.parse(Path(package.__file__ or "").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    public = {each.name for node in block.body if isinstance(node, ast.ImportFrom) for each in node.names}
    assert public == set(package.__all__)
    assert package.__all__ == sorted(package.__all__, key=lambda name: (not name.isupper(), name))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
    code = f"import {package.__name__} as it; it.{package.__all__[0]}; it.__name__"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_export_says_what_it_is() -> None:
    for name in dosimeter.__all__:
        assert getattr(dosimeter, name).__doc__, name


def test_no_public_function_takes_more_than_twelve_parameters() -> None:
    rooms = [importlib.import_module(room.name) for room in pkgutil.walk_packages(dosimeter.__path__, "dosimeter.")]
    for room in (dosimeter, *rooms):
        for name in getattr(room, "__all__", ()):
            public = getattr(room, name)
            if inspect.isfunction(public) and public not in SETTINGS:
                assert len(inspect.signature(public).parameters) <= MOST, f"{room.__name__}.{name}"
