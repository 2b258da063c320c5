"""The engine's peak memory, a fresh process a case: a process's peak cannot be set back, and other ways would hide it.

    python -m dosimeter.benchmarks.memory < cases.json > bytes.json

imports torch once and then forks for every case, before torch has started any thread.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from dosimeter.benchmarks.cases import Case
from dosimeter.benchmarks.ways import Ready, tiled


def peaks(cases: Sequence[Case], cores: int) -> list[int | None]:
    """Bytes that observations, factors and steps take at most, above the program itself; None where nobody counts.

    A process holds as many tiles as run side by side on so many cores, which is what an audit of any number of victims
    holds.
    """
    if not cases or not hasattr(os, "fork"):
        return [None for _ in cases]
    command, asked = [sys.executable, "-m", __name__], json.dumps([[asdict(case), cores] for case in cases])
    answer = subprocess.run(command, input=asked, capture_output=True, text=True, check=False).stdout
    found: list[int | None] = json.loads(answer) if answer else [None for _ in cases]
    return found


def apart(work: Callable[[], object]) -> str:
    """What the work in a process of its own gives, as words; none when that did not live to tell."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(work()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)  # without what the parent would do at its own end
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def _grown(case: Case, cores: int) -> int:
    _step(Case(name="warm", model="lenet", victims=1), 1)  # loads what torch loads at first use
    before = highest()
    _step(case, cores)
    return highest() - before


def _step(case: Case, cores: int) -> None:
    ready = Ready(case, lean=True, workers=cores)
    with tiled(ready.tiles, ready.plan.workers, 0.0, warm=False) as burst:
        burst()


def highest() -> int:
    """The most bytes that this process ever held."""
    with suppress(OSError):  # where Linux counts for a program that was started what its parent held
        said = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        if said:
            return 1024 * int(said[1])
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def forget_highest() -> None:
    """Have `highest` begin anew, where the system lets a process do that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def resident() -> int:
    """The bytes that this process holds now, or ever held where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return highest()


def _peak(case: Case, cores: int) -> int | None:
    said = apart(lambda: _grown(case, cores))
    return int(said) if said else None


if __name__ == "__main__":
    importlib.import_module("torch._dynamo")  # torch.func does at its first use: here once, not once a case
    json.dump([_peak(Case(**given), cores) for given, cores in json.load(sys.stdin)], sys.stdout)
