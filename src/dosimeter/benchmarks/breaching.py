"""The public package breaching as one more way. It needs torchvision, so it lives in an environment of its own."""

import json
import math
import os
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

import torch

from dosimeter.benchmarks import worker
from dosimeter.benchmarks.rounds import FAILED, Burst, Taken
from dosimeter.benchmarks.ways import Ready, usual_loss

PATIENCE = 300.0
"""Seconds to wait for an answer; a busy machine was seen to stop it for two minutes."""
ROUNDING = 1e-5
"""How far its loss, 1 - cosine, may be from ours on the same victim."""
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""Makes glibc keep freed memory for the next step. A young process gives it back instead, and gets it page by page
again: 16,000 faults a step of the MLP, which made it half as fast as in a process whose heap has grown before."""


def find(given: Path | None) -> Path | None:
    """The python that was named, or this one when it has breaching."""
    if given is not None:
        return given
    return Path(sys.executable) if find_spec("breaching") else None


class Breaching:
    """A process that runs breaching on one case, on its first victim. It never raises: `why` says why there is nothing
    to measure, for instance that its loss is another one than that of the other ways.
    """

    def __init__(self, python: Path | None, ready: Ready, victim: Path, said: IO[str]) -> None:
        self.why = "" if python else "not installed here; --breaching names the python of an environment that has it"
        self.version = ""
        self._said = said
        self._process: subprocess.Popen[str] | None = None
        if python is None:
            return
        job: dict[str, Any] = {"model": ready.case.model, "settings": ready.case.settings, "victim": str(victim)}
        job |= {
            "package": str(Path(worker.__file__).parents[1]),
            "shape": ready.case.shape,
            "classes": ready.case.classes,
        }
        ours = _hand_over(ready, victim)
        # -P: the files beside the worker must not be found in place of packages, breaching.py least of all.
        command, pipe = [str(python), "-P", worker.__file__, json.dumps(job)], subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=said, text=True, env=KEEP | os.environ
            )
        except OSError as error:
            self.why = f"cannot run the python that --breaching names: {error.strerror}"
        else:
            heard = self._hear()
            self.version = str(heard.get("version", ""))
            if heard and not abs(heard["loss"] - ours) < ROUNDING:
                self.why = f"its loss is {heard['loss']:.6f} where that of the other ways is {ours:.6f}"

    def burst(self, threads: int, seconds: float) -> Burst:
        """Its steps for a moment; nan once it failed."""

        def ask() -> Taken:
            if self.why or self._process is None or self._process.stdin is None:
                return FAILED
            with suppress(BrokenPipeError):  # it ended; its answer, none, says so
                self._process.stdin.write(json.dumps({"threads": threads, "seconds": seconds}) + "\n")
                self._process.stdin.flush()
            heard = self._hear()
            if not heard:
                return FAILED
            return Taken(heard["rate"], heard["of_core"] if threads == 1 else math.nan, heard["steps"])

        return ask

    @property
    def processes(self) -> list[int]:
        """Those that work for us, by their numbers."""
        return [] if self._process is None else [self._process.pid]

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
        if line:
            self._process.kill()
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        # An exception ends it with 1 and stands last; after any other end the last line is a mere warning.
        self.why = said[-1] if code == 1 and said else f"it ended with code {code}"
        if perf_counter() - begin > PATIENCE:
            self.why = f"no answer in {PATIENCE:.0f} s"
        return {}


def _hand_over(ready: Ready, victim: Path) -> float:
    """Write down what breaching starts from; our loss there."""
    observed = [g[0].clone() for g in ready.observed.values()]  # a slice would be written with all victims
    images, labels = ready.images[0].clone(), ready.labels[0].clone()
    torch.save({"observed": observed, "images": images, "labels": labels}, victim)
    return usual_loss(ready.target.model, ready.target.loss, observed, images, labels).item()


@contextmanager
def started(python: Path | None, ready: Ready) -> Iterator[Breaching]:
    """The process, ended with the block."""
    with tempfile.TemporaryDirectory(prefix="dosimeter-") as folder, tempfile.TemporaryFile("w+") as said:
        process = Breaching(python, ready, Path(folder) / "victim.pt", said)
        try:
            yield process
        finally:
            process.close()
