"""Make hostile calls and print how they ended: `make fuzz`."""

import argparse
import importlib
import pkgutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fuzz import cases, files
from fuzz.calling import ROOM, SECONDS, Ending, Seen, attempt


def prepare() -> None:
    """Import now, once, what calls would import each on its own."""
    import torch

    import dosimeter.cli

    torch.set_num_threads(1)
    for module in (
        *(f"dosimeter.cli.{each.name}" for each in pkgutil.iter_modules(dosimeter.cli.__path__)),
        "torch._dynamo",
    ):
        importlib.import_module(module)


def table(seen: Sequence[Seen]) -> Table:
    """How calls of every kind ended."""
    shown = Table("calls", "tried", *(ending.value for ending in Ending), title="Hostile calls", box=None)
    counts = {
        kind: Counter(each.ending for each in seen if each.call.kind == kind)
        for kind in dict.fromkeys(each.call.kind for each in seen)
    }
    counts["all"] = sum(counts.values(), Counter())
    for kind, found in counts.items():
        shown.add_row(kind, str(found.total()), *(str(found[ending]) for ending in Ending))
    return shown


def told(found: Seen) -> str:
    """A call and its end in one line."""
    last = (found.said.strip().splitlines() or [""])[-1]
    words = " ".join(word[:120] for word in found.call.words)
    facts = (found.ending, found.code, f"{found.seconds:.2f} s", _mib(found.bytes), found.call.kind, words, last[:300])
    return "\t".join(map(str, facts))


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def main() -> None:
    reader = argparse.ArgumentParser(prog="make fuzz")
    reader.add_argument("--calls", type=int, default=0, help="make so many; all by default")
    reader.add_argument("--seed", type=int, default=0, help="which of them")
    reader.add_argument("--kind", help="only those of a kind")
    reader.add_argument("--log", type=Path, help="write what came of every call there, line by line")
    asked, out = reader.parse_args(), Console()
    prepare()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dosimeter-fuzz-files-") as place:
        files.build(Path(place))
        calls = [call for call in cases.all_calls(Path(place)) if asked.kind in (None, call.kind)]
        calls = cases.sample(calls, asked.calls or len(calls), asked.seed)
        seen = []
        for call in calls:
            seen.append(found := attempt(call))
            line = told(found).replace(place, "")
            if asked.log:
                with asked.log.open("a") as log:
                    log.write(line + "\n")
            if found.ending.bad:
                out.print(escape(line.replace("\t", "  ")), soft_wrap=True, highlight=False)
    out.print(table(seen))
    took, longest = time.monotonic() - began, max(each.seconds for each in seen)
    most = max(each.bytes for each in seen)
    out.print(
        f"{len(seen)} calls in {took:.0f} s, at most {longest:.1f} s and {_mib(most)} each; "
        f"a call hangs after {SECONDS:.0f} s and is over budget beyond {_mib(ROOM)}."
    )
    sys.exit(any(each.ending.bad for each in seen))


if __name__ == "__main__":
    main()
