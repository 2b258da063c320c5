"""`dosimeter store`: the folder that keeps the trials of sweeps."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from rich.markup import escape

from dosimeter import files
from dosimeter.cli import options
from dosimeter.cli.console import hint, out
from dosimeter.cli.parts import print_json
from dosimeter.errors import DataError, DosimeterError, SettingError, looking, unknown
from dosimeter.lines import Grid, say
from dosimeter.progress import duration
from dosimeter.sweeps import Course, Entry, Status, Store, Trial
from dosimeter.sweeps import Table as Found

ENDINGS: dict[str, Callable[[Found], bytes | str]] = {
    ".csv": Found.csv,
    ".jsonl": Found.json_lines,
    ".parquet": Found.parquet,
}
ASKED = "_asked"
"""What is added to the name of a setting where a record has a number of that name."""


def show_all(asked: options.StoreList) -> None:
    """A line a trial, in the order in which they were begun."""
    if asked.status is not None and asked.status not in list(Status):
        raise SettingError(unknown("status", asked.status, [each.value for each in Status]))
    with Store(asked.store, create=False) as store:
        found = store.entries(Status(asked.status) if asked.status else None)
    lines: list[tuple[str, ...]] = [("trial", "kind", "status", "verdict", "read", "time", "words")]
    lines += [_line(each) for each in sorted(found, key=lambda entry: entry.began or 0)]
    if found:
        _print(lines)
    say(out, _counted(found))
    if found:
        hint(f"dosimeter store show {asked.store} {found[0].digest[:8]}, or any other trial")


def _print(lines: list[tuple[str, ...]]) -> None:
    """A table that fits the terminal; elsewhere a line each, however long, which can be searched and sorted."""
    if out.is_terminal:
        table = Grid(*lines[0])
        for line in lines[1:]:
            table.add_row(*line)
        table.print(out)
        return
    *wide, _ = (max(map(len, column)) for column in zip(*lines, strict=True))
    for *cells, words in lines:
        padded = [f"{cell:{width}}" for cell, width in zip(cells, wide, strict=True)]
        out.print(escape("  ".join([*padded, words])), highlight=False, soft_wrap=True)


def _line(each: Entry) -> tuple[str, ...]:
    """What one was and found, its words last."""
    found = each.found or {}
    read = f"{found['read']} of {found['of']}" if "read" in found else ""
    words = " ".join(f"{key}={value}" for key, value in each.words.items()) or "all by default"
    why = "".join(f" ({line})" for line in (each.why or "").strip().splitlines()[-1:])
    took = "" if each.seconds is None else duration(each.seconds)
    return each.digest[:8], each.kind, each.status.value, found.get("verdict", ""), read, took, words + why


def _counted(found: list[Entry]) -> str:
    counts = [(status, sum(each.status is status for each in found)) for status in Status]
    return ", ".join(f"{many:,} {status}" for status, many in counts if many) or "no trials"


def show(asked: options.StoreShow) -> None:
    """All that is kept of one, as JSON, and where its folder is."""
    with Store(asked.store, create=False) as store:
        each = store.entry(asked.trial) if asked.trial else None
        if each is None:
            raise DataError(
                f"Expected the digest of one trial or a beginning that only it has, got {asked.trial!r}; "
                f"see dosimeter store list {asked.store}."
            )
        told: dict[str, Any] = {
            "digest": each.digest,
            "kind": each.kind,
            "status": each.status.value,
            "words": each.words,
        }
        told |= {"found": each.found, "seconds": each.seconds, "uses": each.uses, "why": each.why}
        print_json(told | {"folder": str(store.place(each.digest)), "records": store.records(each.digest)})


def export(asked: options.StoreExport) -> None:
    """Done trials as a file."""
    ending = asked.file.suffix
    if ending not in ENDINGS:
        raise SettingError(f"Expected a file that ends in .csv, .jsonl or .parquet, got {str(asked.file)!r}.")
    with Store(asked.store, create=False) as store, looking(asked.store):
        done = {each.digest: each for each in store.entries(Status.DONE)}
        rows = list(_rows(store, done) if not asked.records else _records(store, done.values()))
    files.replace(asked.file, ENDINGS[ending](Found(rows)), instead="FILE")
    out.print(escape(f"{len(rows):,} rows  {asked.file}"), highlight=False, soft_wrap=True)
    hint("open the file with any program of tables")


def _rows(store: Store, done: dict[str, Entry]) -> Iterator[dict[str, Any]]:
    """What each trial was and found, with the accuracy of the model that it attacked."""
    for each in done.values():
        training = done.get(each.uses or "")
        found = {"seconds": each.seconds, "uses": each.uses} | (each.found or {})
        accuracy = {"accuracy": (training.found or {}).get("accuracy")} if training else {}
        yield _settings(each) | found | accuracy


def _records(store: Store, done: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """A row an image; a record's own number comes before a setting of the same name."""
    for each in done:
        for record in store.records(each.digest):
            settings = {f"{name}{ASKED}" if name in record else name: value for name, value in _settings(each).items()}
            yield settings | record


def _settings(each: Entry) -> dict[str, Any]:
    """A trial's words; an audit's with all that was by default, so that rows can be told by any of them."""
    words = asdict(Trial(**each.words)) if each.kind == "audit" else each.words
    return {"digest": each.digest, "kind": each.kind, **words}


def merge(asked: options.StoreMerge) -> None:
    """Say how many were taken over."""
    for each in asked.others:  # before anything is made
        Store(each, create=False).__exit__()
    with Store(asked.store) as store:
        for each in asked.others:
            with Store(each, create=False) as other:
                out.print(escape(f"{store.merge(other):,} trials from {each}"), highlight=False, soft_wrap=True)
    hint(f"dosimeter store list {asked.store}")


def prune(asked: options.StorePrune) -> None:
    """Say how many were removed."""
    if not (asked.failed or asked.stale):
        raise SettingError("Expected what to remove, got nothing; say --failed, --stale or both.")
    with Store(asked.store, create=False) as store:
        gone = [each.digest for each in store.entries(Status.FAILED)] if asked.failed else []
        if asked.stale:
            gone += _stale(store)
        out.print(f"{store.prune(gone):,} trials removed", highlight=False)
    hint(f"dosimeter store list {asked.store}")


def _stale(store: Store) -> list[str]:
    """Trials that asking again would not find, and shards of those that it would."""
    done = store.entries(Status.DONE)
    old = [each.digest for each in done if each.kind != "shard" and _today(each) != each.digest]
    kept = {each.digest for each in done if each.kind != "shard"}
    return old + [each.digest for each in done if each.kind == "shard" and _today(each) in kept]


def _today(each: Entry) -> str:
    """The digest that it would have; its own where that cannot be said, since a file may only be elsewhere for now."""
    try:
        words = {key: value for key, value in each.words.items() if key != "shard"}
        if any(".py:" in str(value) for value in words.values()):  # a store may be a stranger's
            raise SettingError("it names a file of code, which runs only where you name it yourself")
        return (Course if each.kind == "training" else Trial)(**words).prepare().digest
    except (DosimeterError, TypeError) as error:
        out.print(
            escape(f"{each.digest[:8]} stays, since it cannot be told whether it changed: {error}"), soft_wrap=True
        )
        return each.digest
