"""Kill what writes at random moments, have it go on, and count what became of it.

tried        how often
whole        times that all which says that it is finished could be read after the fault
resumed      times that the same command then ended with what an undisturbed one gives, to the byte
lost         finished rounds, attacks, trials and replies that were gone or made again
corrupt      times that something could not be read, or came out other than without a fault
left behind  files and folders too many in the end
"""

import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

from faults import children
from faults.writers import Writer, prepare

BY = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
"""Two of three are of the kind that no program hears."""


class Whole(NamedTuple):
    """An undisturbed run: what it gives and how long it takes."""

    contents: dict[str, bytes]
    names: frozenset[str]
    seconds: float


class Count(NamedTuple):
    """A row of the table."""

    tried: int = 0
    whole: int = 0
    resumed: int = 0
    lost: int = 0
    corrupt: int = 0
    left: int = 0
    notes: tuple[str, ...] = ()

    def plus(self, other: "Count") -> "Count":
        return Count(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def undisturbed(writer: Writer, place: Path) -> Whole:
    """Once in this process, and then in a child, as all that follow."""
    children.warm(writer.work, prepare(place / "warm" / "here"))
    shutil.rmtree(place / "warm")
    here = prepare(place / "whole" / "here")
    began = time.monotonic()
    code = children.run(writer.work, here)
    assert code == 0, (place / "whole" / "said.txt").read_text()
    seconds = time.monotonic() - began
    return Whole(contents(writer, here), names(here), seconds)


def contents(writer: Writer, here: Path) -> dict[str, bytes]:
    found = [path for pattern in writer.same for path in here.glob(pattern)]

    def lasting(path: Path) -> bytes:
        return re.sub(writer.times, b"", path.read_bytes()) if writer.times else path.read_bytes()

    return {str(path.relative_to(here)): lasting(path) for path in found}


def names(here: Path) -> frozenset[str]:
    """All below a folder, and what lies in its temporary one."""
    beside = here.parent / "tmp"
    inside = [str(path.relative_to(here)) for path in here.rglob("*") if "__pycache__" not in path.parts]
    return frozenset([*inside, *(str(path.relative_to(here.parent)) for path in beside.rglob("*"))])


def judged(writer: Writer, whole: Whole, here: Path, what: str) -> Count:
    """What became of a folder after a fault, once the same was asked for again."""
    try:
        before = writer.finished(here / "out")
    except Exception as error:
        return Count(1, corrupt=1, notes=(f"{what}: {type(error).__name__} {error}",))
    code = children.run(writer.again(here / "out"), here)
    said = (here.parent / "said.txt").read_text()
    notes = [f"{what}: exit {code}"] if code not in (0, 2) or "Traceback" in said else []
    try:
        after = writer.finished(here / "out")
    except Exception as error:
        return Count(1, 1, corrupt=1, notes=(f"{what}: {type(error).__name__} {error}",))
    lost = [key for key, mark in before.items() if after.get(key) != mark]
    notes += [f"{what}: {lost[0]} was lost"] if lost else []
    same = contents(writer, here) == whole.contents
    notes += [] if same else [f"{what}: other contents, exit {code}: {said.splitlines()[-1:]}"]
    left = sorted(names(here) - whole.names)
    notes += [f"{what}: left {left[0]}"] if left else []
    wrong = not same or code not in (0, 2) or "Traceback" in said
    return Count(1, 1, int(not wrong), len(lost), int(wrong), len(left), tuple(notes))


def kill_once(writer: Writer, whole: Whole, place: Path, rng: random.Random) -> Count:
    """Kill at a random moment, sometimes several times, then go on to the end."""
    here = prepare(place / "here")
    moments = []
    for _ in range(rng.choice((1, 1, 2))):
        after, by = rng.uniform(0.0, 1.05) * whole.seconds, rng.choice(BY)
        moments.append(f"{signal.Signals(by).name} after {after:.3f} s")
        work = writer.work if len(moments) == 1 else writer.again(here / "out")
        children.killed(work, here, after, by)
    found = judged(writer, whole, here, " and ".join(moments))
    if not found.notes:
        shutil.rmtree(place)
    return found


def kills(writer: Writer, whole: Whole, place: Path, many: int, seed: int) -> Count:
    """So many kills of a writer."""
    count, rng = Count(), random.Random(f"{writer.name} {seed}")
    for at in range(many):
        count = count.plus(kill_once(writer, whole, place / str(at), rng))
    return count


def show(rows: dict[str, Count]) -> str:
    """As a table of Markdown."""
    head = ("", "tried", "whole", "resumed", "lost", "corrupt", "left behind")
    lines = [head, tuple("-" * len(each) or "-" for each in head)]
    lines += [(name, *map(str, count[:6])) for name, count in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
