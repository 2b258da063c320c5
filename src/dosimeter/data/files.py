"""Data sets in npz files: train_images, train_labels, test_images, test_labels; other arrays are ignored.

Nothing is ever unpickled, so a file from a stranger can be wrong but cannot run code.
"""

import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dosimeter import unpacking
from dosimeter.data.dataset import ARRAYS, SPLITS, UNREADABLE, Dataset, as_images, as_labels
from dosimeter.data.pixels import Array, Shape
from dosimeter.errors import DataError, OutputError

if TYPE_CHECKING:
    from dosimeter.types import Victims

LAYOUT = "train_images, train_labels, test_images, test_labels"
BATCH = "images (B, H, W, C) and labels (B,)"

# RuntimeError is an encrypted member; NotImplementedError, an unknown compression, is one too.
_CUT = (struct.error, tokenize.TokenError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
_BROKEN = (*UNREADABLE, RuntimeError, *_CUT)


class Summary(NamedTuple):
    """What the headers of a file tell: images of each split and their shape (C, H, W)."""

    train: int
    test: int
    shape: Shape


def read_npz(path: str | Path) -> Dataset:
    """The data set in an npz file; a split whose two arrays are both absent is empty."""
    path = Path(path)
    with _open(path) as archive:
        splits = _splits(path, archive)
        _check_room(path, archive)
        found = {name: _read(path, archive, name) for name in ARRAYS if name.split("_")[0] in splits}
    for name in ARRAYS:
        split, part = name.split("_")
        if split not in splits:
            (other,) = splits
            present = found[f"{other}_{part}"]
            found[name] = np.empty((0, *present.shape[1:]), present.dtype)
    return Dataset.of(found, name=path.stem, source=path.name)


def read_batch(path: str | Path) -> "Victims":
    """The one private batch in an npz file: `images` (B, H, W, C) or (B, H, W) and `labels` (B,).

    `transformed`, where it is there, is what the client trained on, which its defense made of the images.
    """
    import torch  # not before it is needed: data is listed without it

    from dosimeter.types import Victims

    path = Path(path)
    with _open(path, BATCH) as archive:
        present = {name.removesuffix(".npy") for name in archive.namelist()}
        if missing := [name for name in ("images", "labels") if name not in present]:
            raise DataError(f"{path.name} lacks {', '.join(missing)}; expected {BATCH}, got {sorted(present)}.")
        kinds = ("images", "transformed") if "transformed" in present else ("images",)
        _check_room(path, archive, (*kinds, "labels"))
        images, *made = (as_images(_read(path, archive, kind), f"{path.name}: {kind}") for kind in kinds)
        labels = as_labels(_read(path, archive, "labels"), f"{path.name}: labels")
    if len(images) != len(labels) or not len(images):
        raise DataError(
            f"{path.name}: expected a label for each image, got {len(images)} images, {len(labels)} labels."
        )
    if made and made[0].shape != images.shape:
        raise DataError(
            f"{path.name}: expected transformed images of the form of the images, {images.shape}, got {made[0].shape}."
        )
    pixels, *others = (
        torch.from_numpy(each.astype(np.float32) / (255 if each.dtype == np.uint8 else 1)).permute(0, 3, 1, 2)[None]
        for each in (images, *made)
    )
    places = torch.arange(len(images))[None]
    trained_on = others[0].contiguous() if others else None
    return Victims(pixels.contiguous(), torch.from_numpy(labels)[None], places, (path.stem,), trained_on)


def write_npz(path: Path, data: Dataset) -> None:
    """Write a data set's arrays so that the file either does not exist or is whole, whenever the program is stopped."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            # Not compressed: CIFAR-10 would take ten seconds here and a second at every load.
            np.savez(file, **{name: getattr(data, name) for name in ARRAYS})
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror or error}; set DOSIMETER_CACHE elsewhere.") from error
    finally:
        part.unlink(missing_ok=True)


def peek(path: Path) -> Summary:
    """What a file holds, from its headers alone."""
    counts, shape = dict.fromkeys(SPLITS, 0), (0, 0, 0)
    with _open(path) as archive:
        for split in _splits(path, archive):
            name = f"{split}_images"
            try:
                with archive.open(f"{name}.npy") as file:
                    (count, height, width, *last), _ = unpacking.read_header(file)
                    (channels,) = last or [1]
                    counts[split], shape = count, (channels, height, width)
                    if count < 0 or min(shape) < 1:
                        raise ValueError(f"its shape is {(count, height, width, *last)}")
            except _BROKEN as error:
                raise _corrupt(path, name, error) from error
    return Summary(counts["train"], counts["test"], shape)


def _open(path: Path, layout: str = LAYOUT) -> zipfile.ZipFile:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"Cannot open {path.name}: it is no regular file.")  # opening a pipe would wait for ever
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise DataError(
                    f"{path.name} is no npz file, or was cut short; expected what numpy.savez writes, with {layout}."
                )
        return zipfile.ZipFile(path)
    except _BROKEN as error:
        raise DataError(f"Cannot open {path.name}: {getattr(error, 'strerror', None) or error}.") from error


def _splits(path: Path, archive: zipfile.ZipFile) -> list[str]:
    """The splits a file has; one array without its partner is refused."""
    present = {name.removesuffix(".npy") for name in archive.namelist()}
    splits = [split for split in SPLITS if {f"{split}_images", f"{split}_labels"} & present]
    missing = [f"{split}_{part}" for split in splits or SPLITS for part in ("images", "labels")]
    missing = [name for name in missing if name not in present]
    if missing:
        # As a list, because Python then escapes whatever a damaged name holds.
        raise DataError(f"{path.name} lacks {', '.join(missing)}; expected {LAYOUT}, got {sorted(present)}.")
    return splits


def _check_room(path: Path, archive: zipfile.ZipFile, names: Sequence[str] = ARRAYS) -> None:
    """A file of a few megabytes may unpack to more than the machine has."""
    held = [f"{name}.npy" for name in names if f"{name}.npy" in archive.NameToInfo]
    claimed = sum(archive.getinfo(name).file_size for name in held)
    memory = _memory()
    if claimed > memory:
        raise DataError(
            f"{path.name} unpacks to {claimed / 2**30:,.1f} GiB, more than the {memory / 2**30:,.1f} GiB of memory "
            "here; use fewer or smaller images."
        )
    try:
        unpacking.check(path, archive, held)
    except unpacking.TooLargeError as error:
        raise DataError(f"{path.name} is refused: {error} (numpy.savez).") from None


def _memory() -> float:
    """Bytes of memory, infinity where the system does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _read(path: Path, archive: zipfile.ZipFile, name: str) -> Array:
    try:
        return unpacking.read_array(archive, f"{name}.npy")
    except _BROKEN as error:
        raise _corrupt(path, name, error) from error


def _corrupt(path: Path, name: str, error: BaseException) -> DataError:
    if "allow_pickle" in str(error):
        return DataError(
            f"{path.name}: {name} holds Python objects (a pickle), which are never loaded; save plain numeric arrays."
        )
    why = " ".join(str(error).split()) or type(error).__name__
    return DataError(f"{path.name}: {name} cannot be read, the file is corrupt or cut short ({why}); get it again.")
