"""Images and labels in memory, as every loader gives them and every draw of victims takes them."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dosimeter.data import pixels
from dosimeter.data.pixels import Array, Shape
from dosimeter.errors import DataError, SettingError, unknown

if TYPE_CHECKING:
    from torch import Tensor

    Indices = Sequence[int] | NDArray[np.integer[Any]] | Tensor

SPLITS = ("train", "test")
LARGEST = 2**12
"""Pixels a side that images may be resized to; more are a slip of the hand."""
MOST_CLASSES = 2**15
"""More than these and than there are images are no classes but numbers of something else, and would become a layer as
wide."""
MOST_HELD = 4 * 2**30
"""Bytes of images that are taken out at once."""
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
UNREADABLE = (OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, MemoryError, OverflowError)
"""What readers of all kinds are known to raise on bytes that are not theirs, or that claim petabytes."""


class Known(NamedTuple):
    """What is known of a task that the images at hand may not show: they may be few of many."""

    classes: int
    mean: tuple[float, ...] = ()  # of every channel, as networks are trained with; () where those of the images do
    std: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A data set's two splits; whoever builds one gets its arrays checked and brought to one form.

    Images are (n, H, W, C) or grey (n, H, W), uint8 or float in [0, 1]; labels are (n,) classes, or any (n, ...)
    targets of the user's own loss. One of the two splits may be empty. The arrays stay as given when the data set is
    `prepared`; `images`, `split` and `shape` speak of the prepared form.
    """

    name: str
    train_images: Array = field(repr=False)
    train_labels: Array = field(repr=False)
    test_images: Array = field(repr=False)
    test_labels: Array = field(repr=False)
    source: str = "arrays"
    """Where it came from: "package", "cache" or the base name of a file or folder."""
    size: int | None = None
    """Height and width to resize to when images are taken out; None keeps them."""
    channels: int | None = None
    """Channels to give images when they are taken out: 3 repeats grey, 1 turns colours into grey; None keeps them."""
    known: Known | None = field(default=None, repr=False)
    """What is known of the task; by default all is read off the images."""

    def __post_init__(self) -> None:
        for split in SPLITS:
            for part, brought in (("images", as_images), ("labels", as_labels)):
                name = f"{split}_{part}"
                # The only way to bring the fields of a frozen value to one form.
                object.__setattr__(self, name, brought(getattr(self, name), f"{self.source}: {name}"))
        _check_together(self)

    @classmethod
    def of(cls, arrays: Mapping[str, Array], *, name: str, source: str) -> "Dataset":
        """A data set from arrays by the names they have in files."""
        return cls(name=name, source=source, **{key: arrays[key] for key in ARRAYS})  # type: ignore[arg-type]

    @property
    def shape(self) -> Shape:
        """(C, H, W) of the images that `images` gives."""
        height, width, channels = self.train_images.shape[1:]
        return self.channels or channels, self.size or height, self.size or width

    @cached_property
    def classes(self) -> int | None:
        """The largest label of both splits + 1 or as many as are known, or None when the labels are no classes."""
        both = [labels for labels in (self.train_labels, self.test_labels) if len(labels)]
        if any(labels.ndim != 1 or labels.dtype != np.int64 for labels in both):
            return None
        return max(self.known.classes if self.known else 0, int(max(labels.max() for labels in both)) + 1)

    @cached_property
    def fingerprint(self) -> str:
        """The first 16 hex digits of a sha256 over all arrays (shape, type, bytes) and how they are prepared."""
        digest = hashlib.sha256(f"{self.size} {self.channels}".encode())
        for name in ARRAYS:
            array = np.ascontiguousarray(getattr(self, name))
            digest.update(f"{name} {array.shape} {array.dtype.str}".encode())
            digest.update(array.tobytes() if array.size == 0 else array.data)
        return digest.hexdigest()[:16]

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of every channel in [0, 1], for a model's normalisation, to 4 decimals.

        Those that are known of the task; otherwise over the stored training images, or the test images where there are
        no others. Resizing does not change them.
        """
        if self.known and len(self.known.mean) == self.shape[0]:
            return self.known.mean, self.known.std
        stored = self.train_images if len(self.train_images) else self.test_images
        scale = 255 if stored.dtype == np.uint8 else 1
        kept = min(stored.shape[3], self.shape[0])
        mean, square = (moment / power for moment, power in zip(_moments(stored, kept), (scale, scale**2), strict=True))
        std = np.sqrt(np.maximum(square - mean**2, 1e-8))
        repeats = self.shape[0] // kept
        return tuple(np.round(mean, 4).tolist()) * repeats, tuple(np.round(std, 4).tolist()) * repeats

    def count(self, split: str) -> int:
        """How many images a split has."""
        return len(self.labels(split))

    def labels(self, split: str) -> Array:
        """The labels of a split, (n,) or (n, ...)."""
        self._check_split(split)
        labels: Array = getattr(self, f"{split}_labels")
        return labels

    def split(self, name: str) -> tuple[Array, Array]:
        """All prepared images (n, H, W, C) of a split, in the type they are kept in, with its labels."""
        self._check_split(name)
        return self._prepare(getattr(self, f"{name}_images")), self.labels(name)

    def images(self, split: str, indices: "Indices") -> "Tensor":
        """The prepared images at these places, (n, C, H, W) float32 in [0, 1]; only these are resized."""
        import torch  # not before it is needed: data is listed without it

        self._check_split(split)
        places = self._check_indices(split, indices)
        claimed = 4 * len(places) * math.prod(self.shape)
        if claimed > MOST_HELD:
            form = "x".join(map(str, self.shape))
            raise DataError(
                f"{len(places):,} images of {form} take {claimed / 2**30:,.1f} GiB at once; take fewer or smaller ones."
            )
        rows = self._prepare(getattr(self, f"{split}_images")[places])
        floats = torch.from_numpy(rows.astype(np.float32)).permute(0, 3, 1, 2).contiguous()
        return floats / 255 if rows.dtype == np.uint8 else floats

    def prepared(self, size: int | None = None, channels: int | None = None) -> "Dataset":
        """The same data set with images of size x size, grey ones repeated to 3 channels, colours turned into grey.

        Bilinear: FedKL's "linear interpolation" (Sec. IV-C), and how the program of CVB makes 3x32x32 of digits and
        X-rays. `pixels.py` has the details: images that are not square are cropped, bytes stay bytes, grey is the luma
        of ITU-R 601. Nothing is computed before images are taken out, so 60,000 images at 224x224 cost nothing until
        then. Preparing again starts from the stored images.

        Deviations: the program of CVB does not round resized pixels to bytes. That of FedKL rounds twice, so that they
        are up to one of 255 levels off, and stretches photographs that are not square.
        """
        height, width, stored = self.train_images.shape[1:]
        size = self.size if size is None else size
        channels = self.channels if channels is None else channels
        return replace(
            self,
            size=None if size == height == width else size,
            channels=None if channels == stored else channels,
        )

    def _prepare(self, rows: Array) -> Array:
        return rows if self.size is None and self.channels is None else pixels.prepare(rows, self.size, self.channels)

    def _check_split(self, split: str) -> None:
        if split not in SPLITS:
            raise SettingError(unknown("split", split, SPLITS))
        if not len(getattr(self, f"{split}_images")):
            (other,) = set(SPLITS) - {split}
            raise DataError(f"{self.name} has no images in the split {split!r}; use the split {other!r}.")

    def _check_indices(self, split: str, indices: "Indices") -> NDArray[np.int64]:
        places = np.asarray(indices)
        if places.ndim != 1 or (places.size and places.dtype.kind not in "iu"):
            raise SettingError(f"Indices must be a list of integers, got {places.dtype} of shape {places.shape}.")
        count = self.count(split)
        outside = places[(places < 0) | (places >= count)]
        if outside.size:
            raise DataError(
                f"There is no image {outside[0]} in the split {split!r} of {self.name}, which has {count}; "
                f"use indices from 0 to {count - 1}."
            )
        return places.astype(np.int64)


def _moments(images: Array, channels: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and mean square of every channel, in parts so that no float copy of all images is made."""
    parts = range(0, len(images), max(1, pixels.VALUES_AT_ONCE // images[0].size))
    sums, squares = np.zeros(channels), np.zeros(channels)
    for part in (images[start : start + parts.step] for start in parts):
        part = pixels.grey(part) if channels == 1 else part
        sums += part.sum((0, 1, 2), dtype=np.float64)
        squares += np.square(part, dtype=np.float64).sum((0, 1, 2))
    count = images[..., 0].size
    return sums / count, squares / count


def as_images(array: Array, name: str) -> Array:
    """Images as uint8 or float32 (n, H, W, C)."""
    array = np.asarray(array)
    if array.dtype.kind != "f" and array.dtype != np.uint8:
        raise DataError(
            f"{name} must be uint8, or float in [0, 1], got {array.dtype}; convert it, e.g. astype('uint8')."
        )
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or not 1 <= array.shape[3] <= 4 or 0 in array.shape[1:]:
        raise DataError(
            f"{name} must be (n, H, W) or (n, H, W, C) with C of 1 to 4, got {array.shape}; put channels last."
        )
    if array.dtype == np.uint8 or not array.size:
        return array if array.dtype == np.uint8 else array.astype(np.float32)
    low, high = float(array.min()), float(array.max())  # NaN if any value is
    if not (low >= 0 and high <= 1):
        raise DataError(f"{name} must be in [0, 1] without NaN, got {low:g} to {high:g}; divide by its range first.")
    return array.astype(np.float32, copy=False)


def as_labels(array: Array, name: str) -> Array:
    """Labels as int64 classes (n,), or as int64 or float32 targets (n, ...)."""
    array = np.asarray(array)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise DataError(
            f"{name} must be integers or floats, one row an image, got {array.dtype} of shape {array.shape}."
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise DataError(f"{name} must be finite, got NaN or infinity; leave those images out.")
        return array.astype(np.float32, copy=False)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # MedMNIST's files have (n, 1)
    if array.ndim == 1 and array.size and int(array.min()) < 0:
        raise DataError(f"{name} must be classes from 0 on, got {array.min()}; make targets that are no classes float.")
    if array.ndim == 1 and array.size and int(array.max()) >= max(MOST_CLASSES, len(array)):
        raise DataError(
            f"{name} must be classes, numbered from 0 on, got {array.max()} of {len(array)} images; give the classes "
            "small numbers."
        )
    return array.astype(np.int64, copy=False)


def check_size(size: int | None) -> None:
    """Refuse a size that images cannot be resized to."""
    if size is not None and not 1 <= size <= LARGEST:
        raise SettingError(f"The size of images must be at least 1 and at most {LARGEST:,}, got {size}.")


def _check_together(data: Dataset) -> None:
    """What the four arrays owe each other, and what preparing owes them."""
    for split in SPLITS:
        images, labels = getattr(data, f"{split}_images"), getattr(data, f"{split}_labels")
        if len(images) != len(labels):
            raise DataError(f"{data.source}: {split}_images has {len(images)} rows but {split}_labels {len(labels)}.")
    for part in ("images", "labels"):
        train, test = getattr(data, f"train_{part}"), getattr(data, f"test_{part}")
        if train.shape[1:] != test.shape[1:]:
            raise DataError(
                f"{data.source}: train_{part} {train.shape} and test_{part} {test.shape} differ after the first axis."
            )
    if not len(data.train_images) + len(data.test_images):
        raise DataError(f"{data.source}: both splits are empty; at least one must have images.")
    check_size(data.size)
    stored = data.train_images.shape[3]
    if data.channels is not None and (stored, data.channels) not in ((1, 3), (3, 1), (stored, stored)):
        raise DataError(
            f"{data.name} has {stored} channel(s) and cannot be given with {data.channels}; "
            f"only grey (1) can be repeated to 3, and only 3 can be turned into grey (1)."
        )
