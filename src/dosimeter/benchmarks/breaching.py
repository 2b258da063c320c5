"""The public package breaching as one more way. It needs torchvision, so it lives in an environment of its own."""

import json
import math
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from dosimeter.benchmarks import worker
from dosimeter.benchmarks.cases import CLASSES, SHAPE, Case
from dosimeter.benchmarks.rounds import Burst

PATIENCE = 120.0
"""Seconds to wait for an answer."""


def find(given: Path | None) -> Path | None:
    """The python that was named, or this one when it has breaching."""
    if given is not None:
        return given
    return Path(sys.executable) if find_spec("breaching") else None


class Breaching:
    """A process that runs breaching on one case. It never raises: `why` says why there is nothing to measure."""

    def __init__(self, python: Path | None, case: Case, said: IO[str]) -> None:
        self.why = "" if python else "not installed here; --breaching names the python of an environment that has it"
        self.version = ""
        self._said = said
        self._process: subprocess.Popen[str] | None = None
        if python is None:
            return
        job: dict[str, Any] = {"model": case.model, "settings": case.settings, "batch": case.batch}
        job |= {"package": str(Path(worker.__file__).parents[1]), "shape": SHAPE, "classes": CLASSES}
        # -P: the files beside the worker must not be found in place of packages, breaching.py least of all.
        command, pipe = [str(python), "-P", worker.__file__, json.dumps(job)], subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, text=True)
        except OSError as error:
            self.why = f"cannot run the python that --breaching names: {error.strerror}"
        else:
            self.version = str(self._hear().get("version", ""))

    def burst(self, threads: int, seconds: float) -> Burst:
        """Its steps for a moment; nan once it failed."""

        def ask() -> float:
            if self.why or self._process is None or self._process.stdin is None:
                return math.nan
            with suppress(BrokenPipeError):  # it ended; its answer, none, says so
                self._process.stdin.write(json.dumps({"threads": threads, "seconds": seconds}) + "\n")
                self._process.stdin.flush()
            return float(self._hear().get("rate", math.nan))

        return ask

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _hear(self) -> dict[str, Any]:
        """The next answer; none means that the process ended or was ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        begin, late = perf_counter(), threading.Timer(PATIENCE, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        if line.startswith("{"):
            heard: dict[str, Any] = json.loads(line)
            return heard
        self._process.kill()
        self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines() or [f"it ended with code {self._process.returncode}"]
        self.why = f"no answer in {PATIENCE:.0f} s" if perf_counter() - begin > PATIENCE else said[-1]
        return {}


@contextmanager
def started(python: Path | None, case: Case) -> Iterator[Breaching]:
    """The process, ended with the block."""
    with tempfile.TemporaryFile("w+") as said:
        process = Breaching(python, case, said)
        try:
            yield process
        finally:
            process.close()
