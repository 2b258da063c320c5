"""From a name or a path to a data set: files and folders of the user, the installation, the cache, the network."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from dosimeter import files
from dosimeter.data.dataset import Dataset
from dosimeter.data.download import download
from dosimeter.data.embedded import EMBEDDED, EMBEDDED_DESCRIPTION, EMBEDDED_PAPERS, EMBEDDED_SUMMARY, read_embedded
from dosimeter.data.files import LAYOUT, peek, read_npz, write_npz
from dosimeter.data.folder import read_folder
from dosimeter.data.pixels import Shape
from dosimeter.data.sources import SOURCES, Source
from dosimeter.errors import DataError, unknown

Where = Literal["in the package", "folder", "cache", "to download"]


class Row(NamedTuple):
    """One data set that can be loaded by its name."""

    name: str
    train: int | None  # images, None where the file cannot be read
    test: int | None
    shape: Shape | None  # (C, H, W)
    description: str
    where: Where
    papers: str  # which of the five papers use it, "-" where that is not known


def load(
    name_or_path: str | Path,
    *,
    folder: str | Path | None = None,
    size: int | None = None,
    channels: int | None = None,
    sources: Mapping[str, Source] = SOURCES,
) -> Dataset:
    """A data set by its npz file, its folder of images or its name, in the size and with the channels asked for.

    A name is looked for as NAME.npz in `folder` (by default what DOSIMETER_DATA says), then in the package, then in the
    cache (what DOSIMETER_CACHE says, by default ~/.cache/dosimeter), and is then downloaded into the cache.
    A name that none of them knows may be a folder of images here.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, Path) or name.endswith(".npz") or any(s in name for s in (os.sep, os.altsep) if s):
        return _read_path(name, size, channels)
    own = _own_folder(folder)
    found = _find(name, own, sources)
    if found is not None:
        known = sources[name].known if name in sources else None
        return replace(found, known=known).prepared(size, channels)
    if os.path.isdir(name):
        return read_folder(name, size=size, channels=channels)
    hint = "Or give the path of an npz file or of a folder of images."
    raise DataError(unknown("data set", name, {EMBEDDED, *sources, *_names(own)}, hint))


def available(*, folder: str | Path | None = None, sources: Mapping[str, Source] = SOURCES) -> list[Row]:
    """Every data set that `load` knows by name, and where it would come from; by name, the package's first."""
    own, cache = _own_folder(folder), cache_folder()
    # From the last place looked in to the first, so that the first wins.
    rows = {
        name: Row(name, *source.summary, _describe(source), "to download", _cite(source.papers))
        for name, source in sources.items()
    }
    rows |= {name: _row(cache / f"{name}.npz", "cache", sources) for name in _names(cache)}
    cited = _cite(EMBEDDED_PAPERS)
    rows[EMBEDDED] = Row(EMBEDDED, *EMBEDDED_SUMMARY, EMBEDDED_DESCRIPTION, "in the package", cited)
    if own:
        rows |= {name: _row(own / f"{name}.npz", "folder", sources) for name in _names(own)}
    return sorted(rows.values(), key=lambda row: (row.name != EMBEDDED, row.name))


def _read_path(path: str, size: int | None, channels: int | None) -> Dataset:
    place = os.path.expanduser(path)
    if os.path.isdir(place):
        return read_folder(place, size=size, channels=channels)
    if not os.path.exists(place):
        raise DataError(
            f"There is no file or folder {path!r}; expected an npz file with {LAYOUT}, a folder of images, or a name "
            "without '.npz'."
        )
    return read_npz(place).prepared(size, channels)


def _find(name: str, own: Path | None, sources: Mapping[str, Source]) -> Dataset | None:
    """The data set of a name; None where nobody knows the name."""
    if own and os.path.isfile(own / f"{name}.npz"):
        return read_npz(own / f"{name}.npz")
    if name == EMBEDDED:
        return read_embedded()
    path = cache_folder() / f"{name}.npz"
    if not os.path.isfile(path):
        if name not in sources:
            return None
        _fetch(sources[name], path)
    return _from_cache(path)


def _from_cache(path: Path) -> Dataset:
    try:
        return replace(read_npz(path), source="cache")
    except DataError as error:
        raise DataError(f"{error} It is in the cache: delete {path} and it will be fetched anew.") from error


def _fetch(source: Source, path: Path) -> None:
    """Download and convert; the downloads stay until the result is written, so that a stopped run can go on."""
    downloads = path.with_name(f"{source.name}.downloads")
    with files.alone(path.parent, instead="folder: set DOSIMETER_CACHE"):  # two would write the same partial file
        if path.is_file():  # somebody else fetched it while we waited
            return
        for file in source.files:
            download(source.url(file), downloads / file.name, file.md5, title=source.name)
        write_npz(path, source.dataset([downloads / file.name for file in source.files]))
        shutil.rmtree(downloads, ignore_errors=True)


def _own_folder(folder: str | Path | None) -> Path | None:
    asked = folder or os.environ.get("DOSIMETER_DATA")
    if not asked:
        return None
    path = Path(asked).expanduser()
    if not path.is_dir():
        origin = "the argument folder" if folder else "DOSIMETER_DATA"
        raise DataError(
            f"There is no folder {path}, which {origin} names; create it, or name the one with your npz files."
        )
    return path


def _names(folder: Path | None) -> list[str]:
    return [path.stem for path in folder.glob("*.npz")] if folder else []


def cache_folder() -> Path:
    return Path(os.environ.get("DOSIMETER_CACHE") or "~/.cache/dosimeter").expanduser()


def _row(path: Path, where: Where, sources: Mapping[str, Source]) -> Row:
    source = sources.get(path.stem)
    cited = _cite(source.papers if source else ())
    try:
        summary = peek(path)
    except DataError as error:
        return Row(path.stem, None, None, None, f"unreadable: {error}", where, cited)
    description = f"the file {path.name}"
    if source is not None:
        # A result on part of a set must not be quoted as one on the set.
        description = _describe(source) + ("" if summary == source.summary else "; other images than the public set")
    return Row(path.stem, *summary, description, where, cited)


def _describe(source: Source) -> str:
    return f"{source.description}; licence: {source.licence}"


def _cite(papers: Sequence[str]) -> str:
    return ", ".join(papers) or "-"
