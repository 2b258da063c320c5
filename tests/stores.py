"""Stores of sweeps beside each other."""

from pathlib import Path
from typing import Any

from dosimeter.sweeps import Store

FILES = {"audit": ("reconstructions.safetensors", "records.json"), "training": ("model.safetensors",)}
"""What is the same in every run of a trial."""


def contents(folder: Path) -> dict[str, Any]:
    """All that two stores of the same trials share: no times, and nobody's name."""
    with Store(folder, create=False) as store:
        return {
            each.digest: (
                each.kind,
                each.words,
                each.status,
                each.owner,
                each.found,
                store.records(each.digest),
                [
                    (store.place(each.digest) / name).read_bytes()
                    for name in FILES.get(each.kind, ())
                    if each.status == "done"
                ],
            )
            for each in store.entries()
        }
