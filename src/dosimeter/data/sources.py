"""Where public data sets are.

A source names its files with their checksums and converts them to the arrays of `files.py`. CIFAR is taken in its
binary form, because the form for Python is a pickle.
"""

import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dosimeter.data.dataset import ARRAYS, Dataset, Known
from dosimeter.data.files import Summary, read_npz
from dosimeter.data.pixels import Array
from dosimeter.errors import DataError

Bytes = NDArray[np.uint8]


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
    known: Known
    description: str
    licence: str
    papers: tuple[str, ...]
    """Who of IG, PPP, CVB, Bayes and FedKL uses it, or the set that it is taken from."""

    def dataset(self, paths: Sequence[Path]) -> Dataset:
        """The data set in downloaded files; they are in the order of `files`."""
        return Dataset.of(self.convert(paths), name=self.name, source=self.name)

    def url(self, file: Remote) -> str:
        return f"{self.base.rstrip('/')}/{file.name}{file.query}"


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


def convert_foolbox(paths: Sequence[Path]) -> dict[str, Array]:
    """Photographs in a wheel of foolbox, with the label in their names, as ImageNet's networks are tested on them.

    The shorter side becomes 256 pixels (bicubic), of which the 224x224 in the middle are kept.
    """
    (path,) = paths
    photographs, labels = [], []
    try:
        with zipfile.ZipFile(path) as wheel:
            for name in sorted(wheel.namelist()):
                if found := re.fullmatch(r"foolbox/data/imagenet_\d+_(\d+)\.jpg", name):
                    photographs.append(_read_photograph(wheel.read(name)))
                    labels.append(int(found[1]))
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{path.name} is no whole wheel ({error}); load the data set again.") from error
    if not photographs:
        raise DataError(f"{path.name} holds no photographs foolbox/data/imagenet_*.jpg; it is not foolbox 3.3.4.")
    none = np.empty((0, 224, 224, 3), np.uint8)
    arrays = (none, np.empty(0, np.int64), np.stack(photographs), np.array(labels, np.int64))
    return dict(zip(ARRAYS, arrays, strict=True))


def _read_photograph(content: bytes) -> Bytes:
    with Image.open(io.BytesIO(content), formats=("JPEG",)) as image:
        scale = 256 / min(image.size)
        sides = (round(image.width * scale), round(image.height * scale))
        resized = image.convert("RGB").resize(sides, Image.Resampling.BICUBIC)
    left, top = (sides[0] - 224) // 2, (sides[1] - 224) // 2
    return np.asarray(resized.crop((left, top, left + 224, top + 224)))


def _medmnist(name: str, md5: str, summary: Summary, classes: int, about: str, licence: str = "CC BY 4.0") -> Source:
    return Source(
        name=name,
        base="https://zenodo.org/records/10519652/files",
        files=(Remote(name=f"{name}.npz", md5=md5, query="?download=1"),),
        convert=convert_medmnist,
        summary=summary,
        known=Known(classes),
        description=f"MedMNIST v2: {about}",
        licence=licence,
        papers=("CVB",),
    )


def _cifar(classes: int, md5: str, train: tuple[str, ...], test: str, about: str, papers: tuple[str, ...]) -> Source:
    """CIFAR-10 or CIFAR-100, whose fine labels come second."""
    name = f"cifar-{classes}"
    return Source(
        name=name.replace("-", ""),
        base="https://www.cs.toronto.edu/~kriz",
        files=(Remote(name=f"{name}-binary.tar.gz", md5=md5),),
        convert=partial(convert_cifar, train=train, test=(test,), labels=1 if classes == 10 else 2),
        summary=Summary(50000, 10000, (3, 32, 32)),
        known=Known(classes),
        description=f"small photographs of {classes} kinds of things{about}",
        licence="not stated by its authors",
        papers=papers,
    )


_EVERY = ("IG", "PPP", "CVB", "Bayes", "FedKL")
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
        known=Known(10),
        description="handwritten digits",
        licence="CC BY-SA 3.0",
        papers=_EVERY,
    ),
    _cifar(
        10,
        "c32a1d4ab5d03f1284b67883e8d87530",
        tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
        "cifar-10-batches-bin/test_batch.bin",
        "",
        _EVERY,
    ),
    _cifar(
        100,
        "03b5dce01913d631647c71ecec9e9cb8",
        ("cifar-100-binary/train.bin",),
        "cifar-100-binary/test.bin",
        " (fine labels)",
        ("IG", "FedKL"),
    ),
    Source(
        name="imagenet_samples_224",
        base="https://files.pythonhosted.org/packages/9f/c4/2343e1accf8cbdba957e1f190ed860969abdd83181531a936626d4d7cfd0",
        files=(Remote(name="foolbox-3.3.4-py3-none-any.whl", md5="2bdf7d41bd4f11547ff55e6a4854de68"),),
        convert=convert_foolbox,
        summary=Summary(0, 20, (3, 224, 224)),
        known=Known(1000, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        description="photographs with ImageNet labels, in place of ILSVRC2012; for testing only",
        licence="not stated by its authors",
        papers=("IG", "FedKL"),
    ),
    _medmnist("pneumoniamnist", "28209eda62fecd6e6a2d98b1501bb15f", Summary(4708, 624, (1, 28, 28)), 2, "chest X-rays"),
    _medmnist(
        "retinamnist", "bd4c0672f1bba3e3a89f0e4e876791e4", Summary(1080, 400, (3, 28, 28)), 5, "fundus photographs"
    ),
    _medmnist("bloodmnist", "7053d0359d879ad8a5505303e11de1dc", Summary(11959, 3421, (3, 28, 28)), 8, "blood cells"),
    _medmnist(
        "dermamnist",
        "0744692d530f8e62ec473284d019b0c7",
        Summary(7007, 2005, (3, 28, 28)),
        7,
        "skin lesions",
        "CC BY-NC 4.0",
    ),
)

SOURCES: Mapping[str, Source] = {source.name: source for source in _ALL}
