"""Trials and what came of them, in one folder that several processes may write to.

    trials.sqlite      every trial: its words, digest and status, who runs it, what it found in a few numbers or why it
                       failed; and one record an image
    trials/DIGEST/     its run folder (`dosimeter.store`) or its training; what any run's folder has
    owners/NAME.lock   held by a living process for as long as it works here

A folder takes its place by renaming before the database says that its trial is done, so that a process that is killed
at any moment leaves a trial that is not done, or one whose folder is whole and only has to be entered.
"""

import json
import os
import re
import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Real
from pathlib import Path
from typing import Any, Self

from dosimeter import files
from dosimeter import store as runs
from dosimeter.auditing import Result
from dosimeter.auditing.verdict import weigh
from dosimeter.errors import DAMAGED, DataError, OutputError
from dosimeter.files import locked
from dosimeter.sweeps.database import Database

FILE, TRIALS, OWNERS, DRAFTS = "trials.sqlite", "trials", "owners", "drafts"
_DIGEST = re.compile(r"[0-9A-Za-z_-]+")
_ALL = "digest, kind, words, status, owner, began, seconds, found, why, uses"


class Status(StrEnum):
    RUNNING, DONE, FAILED = "running", "done", "failed"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A trial as the store has it."""

    digest: str
    kind: str  # audit or training
    words: dict[str, Any]
    status: Status
    owner: str | None = None
    began: float | None = None
    seconds: float | None = None
    found: dict[str, Any] | None = None  # the numbers that tables show
    why: str | None = None  # a failed one's traceback
    uses: str | None = None  # the digest of the training that it attacks or goes on from

    @property
    def reason(self) -> str:
        """Why it failed, in a line."""
        return (self.why or "").strip().rpartition("\n")[2]


def check_folder(folder: Path) -> None:
    """Refuse one that holds other files and no trials."""
    ours, found = (TRIALS, OWNERS, DRAFTS, "run.toml"), sorted(path.name for path in folder.glob("[!.]*"))
    others = [name for name in found if name not in ours]
    if others and FILE not in others:
        raise DataError(
            f"Expected a store of trials or an empty folder in {str(folder)!r}, found {others[0]!r}; choose another "
            "--out."
        )


class Store:
    """A folder of trials, open in this process; use it as a context manager."""

    def __init__(self, folder: str | Path, *, create: bool = True) -> None:
        self.folder, self._held, self.owner = Path(folder), ExitStack(), ""
        if not create and not (self.folder / FILE).is_file():
            raise DataError(f"Expected a store of trials in {str(folder)!r}, found none; name the --out of a sweep.")
        check_folder(self.folder)
        if create:
            files.make_private(self.folder)
            try:
                (self.folder / TRIALS).mkdir(exist_ok=True)
            except OSError as error:
                raise files.refused(folder, error) from None
        self._base = Database(self.folder / FILE)
        if create:
            self._clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        if self.owner:
            (self.folder / OWNERS / f"{self.owner}.lock").unlink(missing_ok=True)
            shutil.rmtree(self.folder / DRAFTS / self.owner, ignore_errors=True)
        self._base.close()

    def entries(self, status: Status | None = None) -> list[Entry]:
        """All trials, or those of a status, in the order of their digests."""
        where, given = ("WHERE status = ?", (status,)) if status else ("", ())
        rows = self._base.rows(f"SELECT {_ALL} FROM trials {where} ORDER BY digest", given)
        return [self._entry(row) for row in rows]

    def standing(self) -> dict[str, tuple[Status, float | None]]:
        """Status and seconds of all trials by their digests, for those who look often."""
        rows = self._base.rows("SELECT digest, status, seconds FROM trials")
        try:
            return {digest: (Status(status), seconds) for digest, status, seconds in rows}
        except DAMAGED as error:
            raise self._base.damaged(error) from None

    def entry(self, digest: str) -> Entry | None:
        """A trial by its digest or by the beginning of it, where that is the only one with it."""
        rows = self._base.rows(
            f"SELECT {_ALL} FROM trials WHERE digest >= ? AND digest < ? LIMIT 2", (digest, digest + "g")
        )
        return self._entry(rows[0]) if len(rows) == 1 else None

    def _entry(self, row: tuple[Any, ...]) -> Entry:
        try:
            return _entry(row)
        except DAMAGED as error:
            raise self._base.damaged(error) from None

    def records(self, digest: str) -> list[dict[str, Any]]:
        """A trial's records, one an image."""
        rows = self._base.rows("SELECT record FROM records WHERE digest = ? ORDER BY place", (digest,))
        try:
            return [json.loads(row) for (row,) in rows]
        except DAMAGED as error:
            raise self._base.damaged(error) from None

    def place(self, digest: str) -> Path:
        """The folder of a trial, which is never one elsewhere."""
        if not _DIGEST.fullmatch(digest):
            raise self._base.damaged(ValueError(f"a trial is called {digest!r:.40}"))
        return self.folder / TRIALS / digest

    def result(self, digest: str) -> Result:
        """A done audit, with its images."""
        found = runs.read(self.place(digest))
        if not isinstance(found, Result):
            raise DataError(f"{self.place(digest)}: expected an audit of a model, found another run; remove it.")
        return found

    def claim(
        self, digest: str, kind: str, words: Mapping[str, Any], *, uses: str | None = None, again: bool = False
    ) -> bool:
        """Take a trial to run it, unless it is done, has failed (`again` takes that up) or another process runs it."""
        self._become()
        with self._base.writing() as base:
            row = base.execute("SELECT status, owner FROM trials WHERE digest = ?", (digest,)).fetchone()
            if row:
                status, owner = row
                if status == Status.DONE or (status == Status.FAILED and not again):
                    return False
                if status == Status.RUNNING and owner != self.owner and self._lives(owner):
                    return False
            base.execute(
                "INSERT OR REPLACE INTO trials (digest, kind, words, status, owner, began, uses) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (digest, kind, json.dumps(words, sort_keys=True), Status.RUNNING, self.owner, time.time(), uses),
            )
        if kind == "audit" and (whole := self._left_whole(digest)) is not None:
            self._enter(digest, whole)
            return False
        return True

    def _left_whole(self, digest: str) -> Result | None:
        """What a killed process had finished and not entered."""
        with suppress(DataError):
            found = runs.read(self.place(digest))
            if isinstance(found, Result) and found.status == "complete" and found.made == digest:
                return found
        return None

    def finish(self, digest: str, result: Result) -> None:
        """Keep a result: its folder first, then its entry."""
        with files.undisturbed():
            draft = self._draft(digest)
            try:
                draft.mkdir()
                runs.write_run(replace(result, made=digest), draft)
                place = self.place(digest)
                if place.exists():  # of a run that failed, or of a process that was taken for dead
                    shutil.rmtree(place)
                os.rename(draft, place)
            except OSError as error:
                raise files.refused(place, error) from None
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            self._enter(digest, result)

    def _enter(self, digest: str, result: Result) -> None:
        records = [(digest, at, json.dumps(each.document())) for at, each in enumerate(result.records)]
        with self._base.writing() as base:
            self._done(base, digest, numbers(result), result.seconds)
            base.execute("DELETE FROM records WHERE digest = ?", (digest,))
            base.executemany("INSERT INTO records VALUES (?, ?, ?)", records)

    def trained(self, digest: str, found: Mapping[str, Any], seconds: float) -> None:
        """Say that a training is done, whose folder it has written itself."""
        with self._base.writing() as base:
            self._done(base, digest, found, seconds)

    def note(self, digest: str, found: Mapping[str, Any]) -> None:
        """Keep more numbers of a done trial."""
        with self._base.writing() as base:
            said = json.dumps(found, sort_keys=True)
            base.execute("UPDATE trials SET found = ? WHERE digest = ?", (said, digest))

    def _done(self, base: sqlite3.Connection, digest: str, found: Mapping[str, Any], seconds: float) -> None:
        base.execute(
            "UPDATE trials SET status = ?, owner = NULL, seconds = ?, found = ?, why = NULL WHERE digest = ?",
            (Status.DONE, seconds, json.dumps(found, sort_keys=True), digest),
        )

    def fail(self, digest: str, why: str) -> None:
        """Keep why a trial failed, for people; it is not tried again unless that is asked for."""
        with self._base.writing() as base:
            base.execute(
                "UPDATE trials SET status = ?, owner = NULL, why = ? WHERE digest = ?", (Status.FAILED, why, digest)
            )

    def release(self, digest: str) -> None:
        """Give back a trial that was stopped; what a training had by then stays in its folder."""
        with self._base.writing() as base:
            base.execute("DELETE FROM trials WHERE digest = ? AND status = ?", (digest, Status.RUNNING))

    def prune(self, digests: Iterable[str]) -> int:
        """Forget trials and remove their folders; says how many there were."""
        many = 0
        for digest in digests:
            with self._base.writing() as base:
                base.execute("DELETE FROM records WHERE digest = ?", (digest,))
                many += base.execute("DELETE FROM trials WHERE digest = ?", (digest,)).rowcount
            shutil.rmtree(self.place(digest), ignore_errors=True)
        return many

    def merge(self, other: "Store") -> int:
        """Take over all done trials of another store that are missing here; says how many."""
        mine, many = {each.digest for each in self.entries(Status.DONE)}, 0
        for each in other.entries(Status.DONE):
            if each.digest in mine:
                continue
            draft = self._draft(each.digest)
            _copy(other.place(each.digest), draft)
            shutil.rmtree(self.place(each.digest), ignore_errors=True)
            os.rename(draft, self.place(each.digest))
            row = (each.digest, each.kind, json.dumps(each.words, sort_keys=True), each.status, None, each.began)
            told = (each.seconds, json.dumps(each.found, sort_keys=True), None, each.uses)
            records = [(each.digest, at, json.dumps(one)) for at, one in enumerate(other.records(each.digest))]
            with self._base.writing() as base:
                base.execute("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row + told)
                base.execute("DELETE FROM records WHERE digest = ?", (each.digest,))
                base.executemany("INSERT INTO records VALUES (?, ?, ?)", records)
            many += 1
        return many

    def _draft(self, digest: str) -> Path:
        """Where this process writes what is to take its place; nobody else looks into it."""
        self._become()
        mine = self.folder / DRAFTS / self.owner
        for folder in (mine.parent, mine):
            files.make_private(folder)
        return mine / digest

    def _become(self) -> None:
        """Be known as a living process, before the first trial is taken."""
        if self.owner:
            return
        self.owner = f"{os.uname().nodename if hasattr(os, 'uname') else 'here'}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            (self.folder / OWNERS).mkdir(exist_ok=True)
        except OSError as error:
            raise files.refused(self.folder, error) from None
        # Where files have no locks, all owners count as dead.
        self._held.enter_context(files.holding(self.folder / OWNERS / f"{self.owner}.lock"))

    def _clear(self) -> None:
        """Remove what dead processes left half-written."""
        for path in (self.folder / DRAFTS).glob("*"):
            if not self._lives(path.name):
                shutil.rmtree(path, ignore_errors=True)
        for path in (self.folder / OWNERS).glob("*.lock"):
            self._lives(path.stem)

    def _lives(self, owner: str | None) -> bool:
        """Whether a process holds its lock; what is left of a dead one is removed."""
        if not owner:
            return False
        path = self.folder / OWNERS / f"{owner}.lock"
        try:
            with locked(path):
                path.unlink(missing_ok=True)
            return False
        except FileNotFoundError:
            return False
        except (ImportError, OSError):
            return True


def _copy(found: Path, to: Path) -> None:
    """A trial's folder from another store, which may be a stranger's: what a link in it leads to is not copied."""
    if linked := next((path for path in (found, *found.rglob("*")) if path.is_symlink()), None):
        raise DataError(f"{str(linked)!r} is a link, expected the files of a trial; remove it from the store.")
    try:
        shutil.copytree(found, to)
    except OSError as error:  # which shutil.Error is too
        shutil.rmtree(to, ignore_errors=True)
        raise OutputError(f"Cannot copy {str(found)!r}: {files.reason(error)}; make room, or repair it.") from None


def numbers(result: Result) -> dict[str, Any]:
    """What tables show of an audit."""
    scores, near = result.scores, result.scores.nearest
    found: dict[str, Any] = {name: each.mean for name, each in near.scores.items()}
    found |= {f"blind_{name}": each.mean for name, each in near.baseline.items() if name in ("ssim", "psnr")}
    found |= {"read": scores.success.hits, "of": scores.success.of, "attack_name": result.settings["attack_name"]}
    if scores.labels:
        found["labels"] = scores.labels.rate
    if scores.identification:
        found["identified"] = scores.identification.rate
    return found | {"verdict": weigh(result).kind.value, "evidence": dict(scores.evidence)}


_FOUND: dict[str, dict[str, Any]] = {
    "audit": {"ssim": Real, "psnr": Real, "read": int, "of": int, "attack_name": str, "verdict": str, "evidence": dict},
    "training": {"accuracy": Real, "last_accuracy": Real, "rounds": int},
}
"""What is found of trials of a kind, and in which form."""


def _entry(row: tuple[Any, ...]) -> Entry:
    """ValueError and its like where the row is none that was written here."""
    digest, kind, words, status, owner, began, seconds, found, why, uses = row
    made = Entry(
        digest=digest, kind=kind, words=json.loads(words), status=Status(status), owner=owner, began=began,
        seconds=seconds, found=json.loads(found) if found else None, why=why, uses=uses,
    )  # fmt: skip
    texts = (digest, kind, owner or "", why or "", uses or "")
    if not all(isinstance(text, str) for text in texts) or not isinstance(made.words, dict):
        raise ValueError("a trial's words are none")
    if not all(isinstance(each, Real | None) for each in (began, seconds)):
        raise ValueError(f"the time of {digest:.40} is none")
    if not isinstance(made.found, dict | None):
        raise ValueError(f"what was found of {digest:.40} is not told")
    for key, form in _FOUND.get(kind, {}).items():  # which older versions may lack
        if made.found and key in made.found and not isinstance(made.found[key], form):
            raise ValueError(f"the {key} of {digest:.40} is none")
    return made
