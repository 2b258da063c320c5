"""How large a file becomes, seen before it is read: a few megabytes may claim more than the machine has."""

import math
import re
import tokenize
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

SMALL, RATIO = 2**28, 100
"""What any file may unpack to, and a larger one by its size; arrays and weights are packed to a fifth at best."""

_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
_ALLOCATES = re.compile(rb"c[\w.]*\nbytearray\n")
"""The one word of a pickle that takes memory by a number alone, which torch allows though no weights have it."""


class TooLargeError(ValueError):
    """A file that would take more memory than its size justifies."""


def check(path: Path, archive: zipfile.ZipFile, names: Collection[str] | None = None) -> None:
    """Refuse an archive that unpacks to far more than it is, or whose members of these names do."""
    held = [each for each in archive.infolist() if names is None or each.filename in names]
    claimed, size = sum(each.file_size for each in held), path.stat().st_size
    if claimed > max(SMALL, RATIO * size):
        raise TooLargeError(
            f"its {size / 2**20:,.1f} MiB unpack to {claimed / 2**30:,.1f} GiB, more than {RATIO} times as much; save "
            "it without compression"
        )


def check_pickle(path: Path) -> None:
    """Refuse a file of torch that unpacks to far more than it is, or that asks for memory by a number alone."""
    if not zipfile.is_zipfile(path):
        pickles = [path.read_bytes()]
    else:
        with zipfile.ZipFile(path) as archive:
            check(path, archive)
            pickles = [archive.read(each) for each in archive.namelist() if each.endswith(".pkl")]
    if any(_ALLOCATES.search(each) for each in pickles):
        raise TooLargeError("it holds a bytearray, which could take all memory; save tensors alone")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array in numpy's format, after which the file stands at its values."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"its format {version} is none of numpy's for plain arrays")
    try:
        shape, _, dtype = _HEADERS[version](file)
    except tokenize.TokenError as error:  # which numpy lets pass of headers of Python 2
        raise ValueError(f"its header is none of numpy's ({error.args[0]})") from None
    return shape, dtype


def read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of an npz file, which claims no more than there is; nothing is unpickled."""
    with archive.open(name) as file:
        shape, dtype = read_header(file)
        claimed, there = math.prod(shape) * dtype.itemsize, archive.getinfo(name).file_size - file.tell()
        if claimed != there and not dtype.hasobject:  # an object's pickle is refused below
            raise ValueError(f"its header claims {claimed:,} bytes, but {there:,} follow")
    with archive.open(name) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
        if file.read(1):  # reading to the end is also what makes zipfile compare the checksum
            raise ValueError("there are bytes after the array")
        return array
