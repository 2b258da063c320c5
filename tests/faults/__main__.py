"""`make faults`: kill all that writes, trouble it otherwise, and print what became of it as a table."""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from faults import others
from faults.table import Count, kills, show, undisturbed
from faults.writers import WRITERS, Writer


def main() -> int:
    given = _asked()
    torch.set_num_threads(1)
    chosen = [each for each in WRITERS if each.name in given.only]
    rows, began = dict[str, Count](), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dosimeter-faults-") as folder:
        for writer in chosen:
            place = Path(folder) / writer.name
            whole = undisturbed(writer, place)
            rows[writer.name] = kills(writer, whole, place, -(-given.kills // len(chosen)), given.seed)
            for name, found in _others(writer, whole, place, given).items():
                rows[name] = rows.get(name, Count()).plus(found)
            _tell(f"{writer.name}: {tuple(rows[writer.name][:6])}, {whole.seconds:.2f} s undisturbed", sys.stderr)
            for name in (writer.name, *others.FAULTS):
                for note in rows.get(name, Count()).notes:
                    _tell(f"  {name}: {note}", sys.stderr)
    every = Count()
    for count in rows.values():
        every = every.plus(count)
    killed = [each.name for each in chosen]
    _tell(show({**{name: rows[name] for name in killed}, **rows, "all": every}))
    _tell(f"\n{time.monotonic() - began:.0f} s on one of {os.cpu_count()} cores")
    for name, count in rows.items():
        for note in count.notes:
            _tell(f"{name}: {note}")
    return int(bool(every.lost or every.corrupt))


def _others(writer: Writer, whole: Any, place: Path, given: Any) -> dict[str, Count]:
    rows = dict[str, Count]()
    for name, fault in others.FAULTS.items():
        if name in others.MOUNTS and not others.can_mount(place):
            _tell(f"{name}: left out, since this process may not mount", sys.stderr)
            continue
        for at in range(given.faults):
            rng = random.Random(f"{writer.name} {name} {given.seed} {at}")
            found = fault(writer, whole, place / f"{name} {at}", rng)
            notes = tuple(f"{writer.name}, {note}" for note in found.notes)
            rows[name] = rows.get(name, Count()).plus(found._replace(notes=notes))
    return rows


def _asked() -> Any:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--kills", type=int, default=210, help="in all, shared among all that writes")
    asked.add_argument("--faults", type=int, default=4, help="of every other kind, for each that writes")
    asked.add_argument("--only", nargs="*", default=[each.name for each in WRITERS], help="names of what writes")
    asked.add_argument("--seed", type=int, default=0)
    return asked.parse_args()


def _tell(text: str, to: Any = sys.stdout) -> None:
    to.write(f"{text}\n")
    to.flush()


if __name__ == "__main__":
    sys.exit(main())
