"""Audits that were started from the form: one after another, each in a process of its own that ends with the app."""

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dosimeter.errors import SettingError

MOST = 8
"""Audits that may wait at a time."""

PATIENCE = 10.0
"""Seconds that a process has to give its trial back when it is stopped."""

WAITING, RUNNING, DONE, FAILED, STOPPED = "waiting", "running", "done", "failed", "stopped"


@dataclass
class Job:
    """An audit that somebody asked for."""

    key: int
    words: tuple[str, ...]  # as on the command line
    status: str = WAITING
    said: str = ""  # why it failed, in a line
    digests: tuple[str, ...] = ()  # of the trials that it was, once it is done
    asked: float = field(default_factory=time.time)
    began: float | None = None
    process: "subprocess.Popen[str] | None" = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        return self.status in (DONE, FAILED, STOPPED)


class Jobs:
    """A queue, worked off by one thread.

    The command gets the store and the words as arguments, never through a shell. It reads its standard input to the
    end, which comes when this process is gone, however that ended.
    """

    def __init__(self, command: Sequence[str], store: Path) -> None:
        self.command, self.store = tuple(command), store
        self._jobs: list[Job] = []
        self._changed, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._work, daemon=True)

    def add(self, words: Sequence[str]) -> Job:
        with self._changed:
            if sum(job.status == WAITING for job in self._jobs) >= MOST:
                raise SettingError(f"Expected at most {MOST} audits that wait, got one more; stop one or wait for one.")
            job = Job(key=len(self._jobs) + 1, words=tuple(words))
            self._jobs.append(job)
            if not self._thread.is_alive():
                self._thread.start()
            self._changed.notify()
        return job

    def all(self) -> list[Job]:
        with self._changed:
            return list(self._jobs)

    def get(self, key: int | None) -> Job | None:
        with self._changed:
            return next((job for job in self._jobs if job.key == key), None)

    def stop(self, key: int) -> None:
        """End one that waits or runs; its trial is given back."""
        with self._changed:
            job = next((job for job in self._jobs if job.key == key), None)
            if job is None or job.over:
                return
            job.status = STOPPED
            if job.process is not None:
                _end(job.process)

    def close(self) -> None:
        """End all of them, and wait for the one that runs."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                if not job.over:
                    job.status = STOPPED
                    if job.process is not None:
                        _end(job.process)
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(2 * PATIENCE)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or any(job.status == WAITING for job in self._jobs))
                if self._closed:
                    return
                job = next(job for job in self._jobs if job.status == WAITING)
                try:
                    job.process = subprocess.Popen(
                        [*self.command, str(self.store), *job.words],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    )  # fmt: skip
                except OSError as error:
                    job.status, job.said = FAILED, f"The audit cannot be started: {error}."
                    continue
                job.status, job.began = RUNNING, time.time()
            self._watch(job, job.process)

    def _watch(self, job: Job, process: "subprocess.Popen[str]") -> None:
        """Wait for a process, and keep what it said: the trials it ran, or the line of a refusal."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=lambda pipe: errors.extend(pipe), args=(process.stderr,), daemon=True)
        reader.start()
        told = process.stdout.read()  # without `communicate`, which would close its standard input
        process.wait()
        reader.join(PATIENCE)
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        with self._changed:
            if job.status == STOPPED:
                return
            rows = _rows(told)
            failed = [str(row.get("why", "it failed")) for row in rows if row.get("status") == "failed"]
            lines = [line.strip() for line in errors if line.strip()]
            job.digests = tuple(str(row["digest"]) for row in rows if row.get("status") == "done")
            if process.returncode == 0 and rows and not failed:
                job.status = DONE
            else:
                last = lines[-1] if lines else f"The audit ended with exit code {process.returncode}."
                job.status, job.said = FAILED, failed[0] if failed else last.removeprefix("dosimeter: ")


def _end(process: "subprocess.Popen[str]") -> None:
    """Have a process stop, and kill it where it does not."""
    process.terminate()
    late = threading.Timer(PATIENCE, process.kill)
    late.daemon = True
    late.start()


def _rows(text: str) -> list[dict[str, object]]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else []
