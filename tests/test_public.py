"""The public surface."""

import types

import dosimeter


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
