"""What the explorer asks of a store, by SQL, so that a store of any size opens at once.

The database is opened for reading alone and for one question at a time. Whatever other programs or mishaps have put
into it is taken as it comes: a row whose words or numbers are no JSON is `damaged`, and stays a row.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from dosimeter.app import places
from dosimeter.errors import DataError

USUAL = {"model": "cnn", "data": "mnist-5k", "defense": "none", "attack": "auto", "seed": 0}
"""What a trial's words leave out; a test holds it against `sweeps.Trial`."""

DAMAGED = "damaged"
STATUSES = ("done", "running", "failed", DAMAGED)


def _document(column: str) -> str:
    """A column's JSON object, or NULL where it is none; NaN and infinities, which Python writes, are no numbers."""
    text = again = f"CAST({column} AS TEXT)"
    for word in ("-Infinity", "Infinity", "NaN"):
        again = f"replace({again}, '{word}', 'null')"
    return f"""CASE WHEN substr({text}, 1, 1) != '{{' THEN NULL WHEN json_valid({text}) THEN {text}
        WHEN json_valid({again}) THEN {again} END"""


_W, _F, _A = (_document(column) for column in ("t.words", "t.found", "u.found"))


def _word(name: str) -> str:
    """A setting of a trial, the usual one where its words do not say it."""
    usual = f"'{value}'" if isinstance(value := USUAL[name], str) else value
    return f"COALESCE(json_extract({_W}, '$.{name}'), {usual})"


def _number(name: str, of: str = _F) -> str:
    return f"json_extract({of}, '$.{name}')"


COLUMNS = {
    "digest": "t.digest",
    "kind": "t.kind",
    "status": f"CASE WHEN t.status NOT IN ('done', 'running', 'failed') OR {_W} IS NULL "
    f"OR (t.found IS NOT NULL AND {_F} IS NULL) OR t.digest GLOB '*[^0-9a-f]*' THEN '{DAMAGED}' ELSE t.status END",
    "model": _word("model"),
    "data": _word("data"),
    "defense": _word("defense"),
    "attack": f"CASE t.kind WHEN 'training' THEN '' ELSE {_word('attack')} END",
    "seed": _word("seed"),
    "verdict": _number("verdict"),
    "read": _number("read"),
    "of": _number("of"),
    "ssim": _number("ssim"),
    "psnr": _number("psnr"),
    "lpips": _number("lpips"),
    "blind_ssim": _number("blind_ssim"),
    "identified": _number("identified"),
    "labels": _number("labels"),
    "accuracy": f"COALESCE({_number('accuracy')}, {_number('accuracy', _A)})",
    "seconds": "t.seconds",
    "began": "t.began",
}
"""Every column as an expression over a trial `t` and the training `u` that it attacks."""

CHOICES = ("status", "kind", "model", "data", "defense", "attack", "verdict")
"""Columns that trials are filtered by."""

_FROM = "FROM trials t LEFT JOIN trials u ON u.digest = t.uses"
_EXPOSED = (
    "max(COALESCE(json_extract(record, '$.ssim'), -1), COALESCE(json_extract(record, '$.transformed.scores.ssim'), -1))"
)
_SAID = "CASE json_extract(record, '$.read') WHEN 1 THEN 'read' ELSE json_extract(record, '$.explained') END"
ORDERS = {"most exposed first": f"{_EXPOSED} DESC", "least exposed first": _EXPOSED, "in order": "place"}


class Asked(NamedTuple):
    """Which trials, and how they are sorted."""

    text: str = ""
    chosen: Mapping[str, str] = {}
    sort: str = "began"
    down: bool = True


class Trials:
    """A store, looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        path = places.inside(self.folder, places.FILE)
        try:
            base = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)
            try:
                base.text_factory = lambda raw: raw.decode("utf-8", "replace")
                base.row_factory = sqlite3.Row
                yield base
            finally:
                base.close()
        except sqlite3.Error as error:
            raise DataError(f"{places.FILE} cannot be read, or is damaged ({error}).") from None

    @property
    def empty(self) -> bool:
        """Whether nothing was ever kept here."""
        return not (self.folder / places.FILE).exists()

    @property
    def trained(self) -> bool:
        """Whether there are accuracies: of models that were trained."""
        return bool(self._all("SELECT 1 FROM trials WHERE kind = 'training' AND status = 'done' LIMIT 1"))

    def _with_accuracy(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Give audits of untrained models the accuracy that these reach with their defense, as in `compare`.

        It is the mean over seeds; where trainings differ in more than their seed none is taken.
        """
        lacking = [row for row in rows if row.get("accuracy", 0) is None and row.get("kind") != "training"]
        if not lacking:
            return rows
        words = _columns(("model", "data", "defense", "accuracy"))
        how = f"count(DISTINCT {_but_seed('t.words')}) AS ways"
        where = "WHERE t.kind = 'training' AND t.status = 'done'"
        found = self._all(f"SELECT {words}, avg({COLUMNS['accuracy']}) AS mean, {how} {_FROM} {where} GROUP BY 1, 2, 3")
        known = {(row["model"], row["data"], row["defense"]): row["mean"] for row in found if row["ways"] == 1}
        for row in lacking:
            row["accuracy"] = known.get((row["model"], row["data"], row["defense"]))
        return rows

    def _all(self, question: str, given: Sequence[Any] = ()) -> list[dict[str, Any]]:
        if self.empty:
            return []
        with self._open() as base:
            return [dict(row) for row in base.execute(question, given)]

    def counts(self) -> dict[str, int]:
        """Trials by what became of them."""
        rows = self._all("SELECT status, count(*) AS many FROM trials GROUP BY status")
        return {str(row["status"]): row["many"] for row in rows}

    def choices(self) -> dict[str, list[str]]:
        """What trials can be filtered by: every value that is there."""
        found: dict[str, dict[str, None]] = {name: {} for name in CHOICES}
        for row in self._all(f"SELECT DISTINCT {_columns(CHOICES)} {_FROM}"):
            for name in CHOICES:
                if row[name] not in (None, ""):
                    found[name].setdefault(str(row[name]))
        return {name: sorted(values) for name, values in found.items()}

    def many(self, asked: Asked) -> int:
        where, given = _where(asked)
        rows = self._all(f"SELECT count(*) AS many {_FROM} {where}", given)
        return int(rows[0]["many"]) if rows else 0

    def page(self, asked: Asked, *, most: int, skip: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Trials in their order, and how many there are in all, in one pass over the store."""
        where, given = _where(asked)
        which = f"SELECT t.rowid AS row, count(*) OVER () AS many {_FROM} {where} {_order(asked)} LIMIT ? OFFSET ?"
        found = self._all(which, (*given, most, max(0, skip)))
        if not found:
            return [], self.many(asked) if skip else 0
        marks = ", ".join(str(int(each["row"])) for each in found)
        rows = self._all(f"SELECT {_columns()} {_FROM} WHERE t.rowid IN ({marks}) {_order(asked)}")
        return self._with_accuracy(rows), int(found[0]["many"])

    def rows(self, asked: Asked, *, most: int, names: Iterable[str] = COLUMNS) -> list[dict[str, Any]]:
        """The first trials in their order; columns are made of those alone that are given."""
        where, given = _where(asked)
        which = f"SELECT t.rowid {_FROM} {where} {_order(asked)} LIMIT ?"
        question = f"SELECT {_columns(names)} {_FROM} WHERE t.rowid IN ({which}) {_order(asked)}"
        return self._with_accuracy(self._all(question, (*given, most)))

    def some(self, digests: Sequence[str]) -> list[dict[str, Any]]:
        """Trials by their digests, in that order."""
        marks = ", ".join("?" * len(digests))
        found = self._all(f"SELECT {_columns()}, t.words, t.found {_FROM} WHERE t.digest IN ({marks})", tuple(digests))
        by = {row["digest"]: row for row in self._with_accuracy(found)}
        return [by[digest] for digest in digests if digest in by]

    def export(self, asked: Asked, only: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """All that is asked for, or only these, as rows of plain values: a trial's words and its numbers."""
        where, given = _where(asked)
        names = _columns(("digest", "kind", "status", "accuracy", "seconds"))
        question = f"SELECT {names}, t.words, t.found {_FROM} {where} ORDER BY t.digest"
        rows = self._all(question, given) if only is None else self.some(only)
        made = []
        for row in rows:
            words, found = values(row.pop("words")), values(row.pop("found"))
            made.append({**USUAL, **(words or {}), **(found or {}), **row})
        return made

    def trial(self, digest: str) -> dict[str, Any] | None:
        """All of one trial; `words` and `found` as values, or None where they are damaged."""
        rows = self._all(f"SELECT {_columns()}, t.words, t.found, t.why {_FROM} WHERE t.digest = ?", (digest,))
        return (
            self._with_accuracy(rows)[0] | {key: values(rows[0][key]) for key in ("words", "found")} if rows else None
        )

    def running(self) -> list[dict[str, Any]]:
        """Trials that are claimed, by living processes or by dead ones, with the time that others like them took."""
        names = _columns(("digest", "kind", "status", *USUAL, "began"))
        alike = f"o.kind = t.kind AND {_but_seed('o.words')} = {_but_seed('t.words')}"
        usual = f"(SELECT avg(o.seconds) FROM trials o WHERE o.status = 'done' AND {alike})"
        return self._all(f"SELECT {names}, t.owner, {usual} AS usual {_FROM} WHERE t.status = 'running' LIMIT 20")

    def images(self, digest: str, *, said: str | None = None) -> int:
        """How many records a trial has, or those of which the evidence says so."""
        rows = self._all(f"SELECT count(*) AS many FROM ({_records(said)})", (digest, *([said] if said else [])))
        return int(rows[0]["many"]) if rows else 0

    def records(
        self, digest: str, *, most: int, skip: int = 0, order: str = "in order", said: str | None = None
    ) -> list[dict[str, Any] | None]:
        """Records of a trial, one an image; None in place of a damaged one."""
        given = (digest, *([said] if said else []), most, max(0, skip))
        by = ORDERS.get(order, "place")
        rows = self._all(f"SELECT raw FROM ({_records(said)}) ORDER BY {by}, place LIMIT ? OFFSET ?", given)
        return [values(row["raw"]) for row in rows]


def _columns(names: Iterable[str] = COLUMNS) -> str:
    return ", ".join(f"{COLUMNS[name]} AS {name}" for name in names)


def _but_seed(column: str) -> str:
    return f"json_remove({_document(column)}, '$.seed')"


def _records(said: str | None) -> str:
    whole = f"SELECT place, record AS raw, {_document('record')} AS record FROM records WHERE digest = ?"
    return f"SELECT * FROM ({whole}) WHERE {_SAID} = ?" if said else whole


def _order(asked: Asked) -> str:
    return f"ORDER BY {COLUMNS.get(asked.sort, 't.began')} {'DESC' if asked.down else 'ASC'} NULLS LAST, t.digest"


def _where(asked: Asked) -> tuple[str, list[Any]]:
    """The condition and its values. Words are searched for in a trial's own, as they are written, and in its digest."""
    told = [(f"{COLUMNS[name]} = ?", [value]) for name, value in asked.chosen.items() if name in CHOICES and value]
    for word in asked.text.lower().split():
        kept = json.dumps(word)[1:-1]
        ways = [("instr(lower(CAST(t.words AS TEXT)), ?) > 0", kept), ("instr(t.digest, ?) > 0", word)]
        # What is usual is not among the words.
        ways += [
            ("instr(t.words, ?) = 0", f'"{name}":')
            for name, usual in USUAL.items()
            if isinstance(usual, str) and word in usual
        ]
        told.append((f"({' OR '.join(way for way, _ in ways)})", [value for _, value in ways]))
    where = " AND ".join(part for part, _ in told)
    return f"WHERE {where}" if told else "", [value for _, given in told for value in given]


def values(text: Any) -> dict[str, Any] | None:
    """A JSON object, or None where it is none."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def number(value: Any) -> float | None:
    """A number that can be shown, whatever stands in its place."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
