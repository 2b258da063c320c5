"""Names and files to data sets: where they are looked for, and what can be had."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dosimeter.cli import app
from dosimeter.data import SOURCES, available, load, pick
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
    assert load("mnist-5k").source == "package"
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
    with pytest.raises(DataError, match=f"There is no file or folder {name!r}"):
        load(name)


@pytest.mark.parametrize("name", ["", "a" * 400, "a\0b", "~nobody here/x", "a\nb/c", "b/" + "a" * 400, "x/a\0b"])
def test_odd_names_are_refused_in_one_line(name):
    with pytest.raises(DataError, match=r"Unknown data set|There is no file or folder") as caught:
        load(name)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


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
    assert rows["mine"] == ("mine", 30, 12, (3, 6, 6), "the file mine.npz", "folder", "-")
    assert (rows["broken"].train, rows["broken"].shape) == (None, None)
    assert rows["broken"].description.startswith("unreadable: broken.npz is no npz file")
    assert (rows["broken"].where, rows["broken"].papers) == ("folder", "-")


def test_rows_name_the_papers_that_use_a_set(tmp_path, tiny):
    write_npz(tmp_path / "cifar100.npz", tiny)
    (tmp_path / "bloodmnist.npz").write_bytes(b"x")
    papers = {row.name: row.papers for row in available(folder=tmp_path)}
    everybody = "IG, PPP, CVB, Bayes, FedKL"
    assert papers == {
        **dict.fromkeys(("mnist-5k", "mnist", "cifar10"), everybody),
        **dict.fromkeys(("cifar100", "imagenet_samples_224"), "IG, FedKL"),
        **dict.fromkeys(("pneumoniamnist", "retinamnist", "bloodmnist", "dermamnist"), "CVB"),
    }


def test_what_is_known_of_a_task_goes_with_its_name(tmp_path, tiny):
    """Four of 100 classes are there; a network for the task has 100 outputs all the same."""
    write_npz(tmp_path / "cifar100.npz", tiny)
    write_npz(tmp_path / "imagenet_samples_224.npz", tiny)
    write_npz(tmp_path / "mine.npz", tiny)
    assert load("cifar100", folder=tmp_path).classes == 100
    assert load("cifar100", folder=tmp_path).statistics() == tiny.statistics()
    assert load("mine", folder=tmp_path).classes == 4
    assert load(tmp_path / "cifar100.npz").classes == 4  # a path promises nothing
    photographs = load("imagenet_samples_224", folder=tmp_path)
    assert photographs.statistics() == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert photographs.prepared(channels=1).statistics() == tiny.prepared(channels=1).statistics()
    assert photographs.fingerprint == tiny.fingerprint
    many = replace(tiny, test_labels=np.full(12, 120))
    write_npz(tmp_path / "cifar100.npz", many)
    assert load("cifar100", folder=tmp_path).classes == 121


def test_every_real_file_is_available_and_loads(real):
    for row in available(folder=real):
        if row.where == "folder":
            data = load(row.name, folder=real)
            assert (data.count("test"), data.shape) == (row.test, row.shape)
            assert data.classes == SOURCES[row.name].known.classes


def test_photographs_of_224x224(real):
    data = load("imagenet_samples_224", folder=real)
    assert (data.count("test"), data.shape, data.classes) == (36, (3, 224, 224), 1000)
    assert data.labels("test")[:4].tolist() == [243, 559, 438, 990]
    assert data.statistics()[0] == (0.485, 0.456, 0.406)
    victims = pick(data, 2, batch=2, split="test")
    assert victims.images.shape == (2, 2, 3, 224, 224)
    assert data.prepared(256).images("test", [0]).shape == (1, 3, 256, 256)
    with pytest.raises(
        DataError, match="imagenet_samples_224 has no images in the split 'train'; use the split 'test'"
    ):
        pick(data, 2)


def test_photographs_of_224x224_are_audited_in_one_command(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOSIMETER_DATA", str(real))
    words = ["audit", "--data", "imagenet_samples_224", "--model", "lenet", "--victims", "1", "--steps", "2"]
    done = CliRunner().invoke(app, [*words, "--decoys", "2", "--split", "test", "--out", "run"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.stderr == "dosimeter: imagenet_samples_224 has no images in the split 'train'; use the split 'test'.\n"
