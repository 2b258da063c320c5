"""The 5,000 MNIST images of the package: data without a download."""

from dataclasses import replace
from pathlib import Path

from dosimeter.data.dataset import Dataset
from dosimeter.data.files import Summary, read_npz
from dosimeter.errors import DataError

EMBEDDED = "mnist-5k"
EMBEDDED_SUMMARY = Summary(4000, 1000, (1, 28, 28))
EMBEDDED_DESCRIPTION = "5,000 MNIST digits that come with the installation; no download; licence: CC BY-SA 3.0"
EMBEDDED_PAPERS = ("IG", "PPP", "CVB", "Bayes", "FedKL")
EMBEDDED_FILE = Path(__file__).with_name("mnist-5k.npz")  # mnist-5k.md says whose images they are


def read_embedded() -> Dataset:
    """The data set `mnist-5k`: 500 images of every class, 400 of them for training and 100 for testing."""
    try:
        return replace(read_npz(EMBEDDED_FILE), source="package")
    except DataError as error:
        raise DataError(f"{error} It is part of the installation: install dosimeter again.") from error
