"""Data sets in folders of images: a folder a class, below `train` and `test` or without them.

    photos/cat/1.png   photos/dog/2.jpg            all for training
    photos/train/cat/1.png   photos/test/dog/2.jpg   both splits; a `val` beside them is left out

Classes are numbered in the order of their sorted names ("10" comes before "2"), as torchvision's `ImageFolder` does.
"""

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from dosimeter.data.dataset import ARRAYS, SPLITS, UNREADABLE, Dataset, check_size
from dosimeter.data.pixels import Array, resize
from dosimeter.errors import DataError
from dosimeter.progress import bar

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""What is read. Other formats of Pillow's start programs (EPS) or are no photographs."""

MOST_BYTES = 2**32
"""Pixels of one folder that are held in memory, which is where all of them go."""

# Left out, these would be missed; whatever else is no image is not.
_NOT_READ = {".arw", ".avif", ".cr2", ".dcm", ".dng", ".eps", ".heic", ".heif", ".ico", ".jxl", ".nef", ".psd"}
_NOT_READ |= {".raw", ".svg", ".tga"}
_LAYOUT = "expected a folder of images for every class, or such folders below train/ and test/"

# The last two are of images too large to be unpacked.
_BROKEN = (*UNREADABLE, struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning)


class _Found(NamedTuple):
    """One image file of a folder."""

    path: str
    split: str
    kind: str  # the name of its class


def read_folder(path: str | Path, *, size: int | None = None, channels: int | None = None) -> Dataset:
    """The data set in a folder of images: the module says how it is laid out, `pixels.py` how images are resized.

    Images of different sizes need a `size`; without one they stay as they are. They are turned as their EXIF data says,
    laid on white where they are transparent, and are grey if all files are; of moving pictures the first is taken.
    Hidden files and files that are no images are left out. A file that cannot be read is refused, never skipped.
    """
    root = Path(os.path.abspath(path))  # not resolved: a link keeps its own name
    name = root.name or "images"
    if channels not in (None, 1, 3):
        raise DataError(f"{name} can be given with 1 channel (grey) or 3 (colours), not with {channels}.")
    check_size(size)
    files = list(_walk(root))
    if size is not None:
        _check_room(root, len(files), (size, size, channels or 1))
    numbers = {kind: number for number, kind in enumerate(sorted({file.kind for file in files}))}
    images = _read(root, files, size, channels or _channels(root, files))
    labels = np.array([numbers[file.kind] for file in files], np.int64)
    train = np.array([file.split == "train" for file in files])
    # Files are in the order of their splits, so these are views.
    first = int(train.sum())
    arrays = (images[:first], labels[:first], images[first:], labels[first:])
    return Dataset.of(dict(zip(ARRAYS, arrays, strict=True)), name=name, source=name)


def _walk(root: Path) -> Iterator[_Found]:
    """Every image by split, class and name; the depth is fixed, so that links cannot lead round in circles."""
    folders = _classes(root, root)
    splits = [split for split in SPLITS if split in folders]
    if splits and {*folders} <= {*SPLITS, "val"}:
        parts = {split: _classes(root, root / split) for split in splits}
    else:
        parts = {"train": folders}
    for split, kinds in parts.items():
        for kind, folder in kinds.items():
            inside, files = _entries(root, folder)
            if inside or not files:
                what = f"holds the folder {inside[0].name!r}" if inside else "holds no images"
                raise DataError(f"The class {_shown(root, folder)} {what}; {_LAYOUT}.")
            for file in files:
                yield _Found(str(file), split, kind)


def _classes(root: Path, folder: Path) -> dict[str, Path]:
    """The folders in one that holds nothing but folders."""
    folders, files = _entries(root, folder)
    if files and not folders:
        raise DataError(
            f"{_shown(root, folder)} holds images but no folders, so the images have no labels; {_LAYOUT}. "
            "Put them into one folder for every class."
        )
    if files:
        raise DataError(f"{_shown(root, files[0])} lies beside the folders of the classes; move it into one of them.")
    if not folders:
        raise DataError(f"{_shown(root, folder)} holds no images; {_LAYOUT}.")
    return {inside.name: inside for inside in folders}


def _entries(root: Path, folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders and the image files in a folder, by name, without what is hidden."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"Cannot open the folder {_shown(root, folder)}: {error.strerror}.") from error
    folders, files = [], []
    for path in (folder / name for name in names if not name.startswith(".") and name != "__MACOSX"):
        if os.path.isdir(path):
            folders.append(path)
        elif path.suffix.lower() in _suffixes():
            files.append(path)
        elif path.suffix.lower() in _NOT_READ:
            raise DataError(f"{_shown(root, path)} is in a format that is not read; convert it to PNG or move it away.")
    return folders, files


@cache
def _suffixes() -> frozenset[str]:
    return frozenset(suffix for suffix, format_ in Image.registered_extensions().items() if format_ in FORMATS)


def _channels(root: Path, files: list[_Found]) -> int:
    """1 if all files are grey, else 3; only their headers are read."""
    grey = True
    with bar(f"{root.name}: headers", len(files)) as advance:
        for i, file in enumerate(files):
            with _opened(root, file.path) as image:
                grey = grey and (image.mode in ("1", "L", "LA") or image.mode.startswith("I"))
            advance(i + 1)
    return 1 if grey else 3


def _read(root: Path, files: list[_Found], size: int | None, channels: int) -> Array:
    """All images (n, H, W, C), each read into its place."""
    images: Array = np.empty((0, 0, 0, channels), np.uint8)
    with bar(f"{root.name}: images", len(files)) as advance:
        for i, file in enumerate(files):
            with _opened(root, file.path) as image:
                pixels = _pixels(image, size, channels)
            if i == 0:
                _check_room(root, len(files), pixels.shape)
                images = np.empty((len(files), *pixels.shape), np.uint8)
            if pixels.shape != images.shape[1:]:
                raise DataError(
                    f"The images differ in size: {_shown(root, files[0].path)} is {_sides(images.shape[1:])}, "
                    f"{_shown(root, file.path)} is {_sides(pixels.shape)}; give one size, with size= or --size."
                )
            images[i] = pixels
            advance(i + 1)
    return images


def _check_room(root: Path, count: int, shape: tuple[int, ...]) -> None:
    needed = count * prod(shape)
    if needed > MOST_BYTES:
        raise DataError(
            f"{_shown(root, root)} has {count:,} image(s), which take {needed / 2**30:,.1f} GiB at {_sides(shape)}, "
            f"more than {MOST_BYTES / 2**30:,.1f}; use a smaller size or fewer images."
        )


@contextmanager
def _opened(root: Path, path: str) -> Iterator[Image.Image]:
    """An image whose header was read; whatever is wrong with it, then or in the block, is said in one line."""
    try:
        if not os.path.isfile(path):
            raise OSError("it is no file, or a link to none")  # opening a pipe would wait for ever
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # odd metadata, which photographs are full of
            # More pixels than Image.MAX_IMAGE_PIXELS are a mistake or an attack.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                yield image
    except _BROKEN as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            why = "it is no image, or of a format that is not read"
        raise DataError(f"{_shown(root, path)} cannot be read ({why}); repair it or move it away.") from error


def _pixels(image: Image.Image, size: int | None, channels: int) -> Array:
    """(H, W, C) bytes, or (size, size, C)."""
    image = _as_bytes(ImageOps.exif_transpose(image))
    if "transparency" in image.info or image.mode in ("LA", "PA", "RGBA"):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    pixels: Array = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    return pixels if size is None else resize(pixels[None], size)[0]


def _as_bytes(image: Image.Image) -> Image.Image:
    """16-bit grey in 8 bits, 65535 becoming 255; wider values have no white that could be known."""
    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels are 32 bits wide, so that black and white are not known; save it with 8 or 16")
    return Image.fromarray(((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8))


def _shown(root: Path, path: str | Path) -> str:
    """A path from the folder's own name on, on one line whatever its characters are."""
    return repr(str(Path(root.name, os.path.relpath(path, root))))


def _sides(shape: tuple[int, ...]) -> str:
    """Width x height, as image viewers say it."""
    return f"{shape[1]}x{shape[0]}"
