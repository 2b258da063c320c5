"""The database of a store, whose every failure is one line: it may be a stranger's, damaged, or on a full disk."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dosimeter import files
from dosimeter.errors import DataError, OutputError

FORMAT = 1
PATIENCE = 30.0
"""Seconds that a process waits for another one's writing, which takes milliseconds."""

_TABLES = """
CREATE TABLE IF NOT EXISTS about (format INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    digest TEXT PRIMARY KEY, kind TEXT NOT NULL, words TEXT NOT NULL, status TEXT NOT NULL, owner TEXT,
    began REAL, seconds REAL, found TEXT, why TEXT, uses TEXT);
CREATE TABLE IF NOT EXISTS records (
    digest TEXT NOT NULL REFERENCES trials, place INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (digest, place));
CREATE INDEX IF NOT EXISTS by_status ON trials (status);
"""

_OURS = {("table", "about"), ("table", "trials"), ("table", "records"), ("index", "by_status")}
"""All that a database of ours consists of: views and triggers would do as a stranger wants when it is looked into."""

_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class Database:
    """One that is open in this process, and whose tables are ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._asking():
            self._base = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        try:
            with self._asking():
                self._open()
        except BaseException:
            self._base.close()
            raise

    def close(self) -> None:
        self._base.close()

    def rows(self, asked: str, given: tuple[Any, ...] = ()) -> list[Any]:
        """What it answers."""
        with self._asking():
            return self._base.execute(asked, given).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A change that is there as a whole or not at all, after those of other processes."""
        with self._asking():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
                self._base.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have done so by itself, as where the disk is full
                    self._base.execute("ROLLBACK")
                raise

    def damaged(self, error: Exception) -> DataError:
        """The sentence for a database with other rows than ours."""
        return DataError(
            f"{str(self.path)!r} is no store of trials, or is damaged ({files.reason(error)}); choose another --out."
        )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK:
                raise OutputError(
                    f"Cannot write {str(self.path)!r}: {files.reason(error)}; make room, or choose another --out."
                ) from None
            raise self.damaged(error) from None

    def _open(self) -> None:
        """Make the tables where there are none, and refuse what is no database of this version."""
        self._base.execute("PRAGMA trusted_schema = OFF")
        self._share()
        self._base.execute("PRAGMA synchronous = NORMAL")
        there = self._base.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        if strange := sorted(set(there) - _OURS):
            raise self.damaged(ValueError(f"it has the {' '.join(map(str, strange[0]))}"))
        with self.writing():
            for line in _TABLES.split(";"):
                self._base.execute(line)
            if not self._base.execute("SELECT 1 FROM about").fetchone():
                self._base.execute("INSERT INTO about VALUES (?)", (FORMAT,))
        (known,) = self._base.execute("SELECT format FROM about").fetchone()
        if known != FORMAT:
            raise DataError(f"{str(self.path)!r}: expected a store of format {FORMAT}, got {known}; update dosimeter.")

    def _share(self) -> None:
        """Let others read while one writes; SQLite does not wait by itself for others that say so at the same time."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._base.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not busy or time.monotonic() > end:
                    raise
                time.sleep(0.01)
