"""What wheel and source archive hold: all that the program needs, and no data but the digits of the package."""

import sys
import tarfile
import zipfile
from pathlib import Path

DATA = (".csv.gz", ".gz", ".h5", ".npy", ".npz", ".parquet", ".pt", ".pth", ".safetensors", ".sqlite", ".tar", ".zip")
OURS = "dosimeter/data/mnist-5k.npz"
NEEDED = (OURS, "dosimeter/data/mnist-5k.md", "dosimeter/py.typed", "dosimeter/cli/lists.json")
LARGEST = 1_000_000
"""Bytes that a single file may have."""


def wrong(names: dict[str, int]) -> list[str]:
    """What is missing of an archive's {name: size}, and what should not be in it."""
    found = [f"{name} is missing" for name in NEEDED if not any(each.endswith(name) for each in names)]
    for name, size in names.items():
        if name.endswith(DATA) and not name.endswith(OURS):
            found.append(f"{name} is data")
        if size > LARGEST:
            found.append(f"{name} has {size:,} bytes")
    return found


def contents(path: Path) -> dict[str, int]:
    """{name: size} of a wheel's or a source archive's files."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {each.filename: each.file_size for each in archive.infolist()}
    with tarfile.open(path) as archive:
        return {each.name: each.size for each in archive if each.isfile()}


def main(folder: Path) -> None:
    """Print what each archive holds, and end with 1 where one is wrong."""
    found = []
    for path in sorted(folder.iterdir()):
        names = contents(path)
        sys.stdout.write(f"{path.name}: {len(names):,} files, {path.stat().st_size / 1e6:.1f} MB\n")
        found += [f"{path.name}: {each}" for each in wrong(names)]
    sys.exit("\n".join(found) if found else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
