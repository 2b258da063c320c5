"""The public surface."""

import importlib
import inspect
import pkgutil
import types

import dosimeter

MOST = 12
SETTINGS = {"bayes", "inverting_gradients"}
"""Presets, whose parameters are the settings of an attack by name, `ig:tv=0.01`."""


def test_exports_are_exactly_what_all_says() -> None:
    public = {
        name
        for name, value in vars(dosimeter).items()
        if not name.startswith("_")
        and not (isinstance(value, types.ModuleType) and name not in dosimeter.__all__)
        and name != "version"
    }
    assert public == set(dosimeter.__all__)
    assert dosimeter.__all__ == sorted(dosimeter.__all__)


def test_every_export_says_what_it_is() -> None:
    for name in dosimeter.__all__:
        assert getattr(dosimeter, name).__doc__, name


def test_no_public_function_takes_more_than_twelve_parameters() -> None:
    rooms = [importlib.import_module(room.name) for room in pkgutil.walk_packages(dosimeter.__path__, "dosimeter.")]
    for room in (dosimeter, *rooms):
        for name in getattr(room, "__all__", ()):
            public = getattr(room, name)
            if inspect.isfunction(public) and name not in SETTINGS:
                assert len(inspect.signature(public).parameters) <= MOST, f"{room.__name__}.{name}"
