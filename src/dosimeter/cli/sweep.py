"""`dosimeter sweep` and `dosimeter store`: many audits as one, and the folder that keeps them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from dosimeter import files, spec
from dosimeter.cli import options
from dosimeter.cli.config import write_config
from dosimeter.cli.console import err, out
from dosimeter.cli.parts import finish, going_on, place, planned, print_json
from dosimeter.errors import DataError, SettingError, unknown
from dosimeter.progress import duration
from dosimeter.sweeps import Entry, Progress, Status, Store, Trial, product_of, sweep
from dosimeter.sweeps import Table as Found

ENDINGS = {".csv": Found.csv, ".jsonl": Found.json_lines}


def run(asked: options.Sweep) -> None:
    """Run what is missing, and print and draw all."""
    trials = list(product_of(_axes(asked)))
    folder = place(asked, "sweep", apart=("rows", "columns", "show", "retry_failed"))
    if asked.dry_run:
        _plan(trials, folder)
        return
    write_config(folder)
    with going_on(folder), _live() as tell:
        found = sweep(trials, store=folder, on=asked.on, retry_failed=asked.retry_failed, told=tell)
    head, cells = found.grid(asked.rows, asked.columns, asked.show)
    table = Table(*map(escape, head), box=None, pad_edge=False)
    for row in cells:
        table.add_row(*map(escape, row))
    for why in dict.fromkeys(row["why"] for row in found.rows if "why" in row):
        err.print(escape(f"Failed: {why}"), highlight=False, soft_wrap=True)
    about = f"{len(found)} trials; {asked.show} of each {asked.rows} and {asked.columns}"
    shown = [[spec.shown(cell) for cell in row] for row in cells]
    pictures = _pictures(found, asked.rows, asked.columns)
    bars = _bars(found, asked)
    document = {"command": "sweep", "trials": found.rows}
    page = {"head": [spec.shown(cell) for cell in head], "rows": shown, "pictures": pictures, "bars": bars}
    finish(asked, folder, document, table, "sweep", about=about, show=asked.show, **page)


def _axes(asked: options.Sweep) -> dict[str, Any]:
    axes: dict[str, Any] = {
        name: list(getattr(asked, name)) for name in ("model", "data", "batch", "attack", "defense")
    }
    axes |= {name: list(getattr(asked, name)) for name in ("step", "server")}
    axes |= {name: getattr(asked, name) for name in ("size", "channels", "victims", "split", "steps", "threshold")}
    axes["weights"] = str(asked.weights) if asked.weights else None
    axes["seed"] = list(range(asked.seed, asked.seed + asked.seeds))
    axes["protocol"] = list(asked.protocol) if asked.protocol else None
    return axes


def _plan(trials: list[Trial], folder: Path) -> None:
    """How many would run, and how long the ones before took."""
    prepared = {each.digest: each for each in map(Trial.prepare, trials)}
    done: dict[str, Entry] = {}
    if (folder / "trials.sqlite").is_file():
        with Store(folder, create=False) as store:
            done = {each.digest: each for each in store.entries(Status.DONE) if each.digest in prepared}
    times = [each.seconds for each in done.values() if each.seconds]
    left = len(prepared) - len(done)
    guess = f"about {duration(sum(times) / len(times) * left)} by those that are kept" if times else "not known yet"
    out.print(planned({"trials": f"{len(prepared)}", "kept": f"{len(done)}", "to run": f"{left}, {guess}"}))


@contextmanager
def _live() -> Iterator[Any]:
    """A line that says how far a sweep is, where people look."""
    with Live(console=err, auto_refresh=False, transient=True) as live:

        def tell(progress: Progress) -> None:
            table = Table("done", "kept", "failed", "left", "time left", "running", box=None, pad_edge=False)
            rest = "" if progress.remaining is None else duration(progress.remaining)
            counts = (progress.done, progress.kept, progress.failed, progress.left)
            table.add_row(*map(str, counts), rest, escape("\n".join(progress.running)))
            live.update(table, refresh=True)

        yield tell


def _bars(found: Found, asked: options.Sweep) -> dict[str, float]:
    """The mean of what is shown, where that is a number, by row and column."""
    values: dict[str, list[float]] = {}
    for row in found.rows:
        if isinstance(value := row.get(asked.show), int | float):
            name = ", ".join(spec.shown(str(row[each])) for each in (asked.rows, asked.columns))
            values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}


def _pictures(found: Found, rows: str, columns: str) -> list[list[str]]:
    """(row, column, digest) of one done trial of every cell."""
    cells = {
        (str(row[rows]), str(row[columns])): row["digest"] for row in reversed(found.rows) if row["status"] == "done"
    }
    return [[spec.shown(row), spec.shown(column), digest] for (row, column), digest in reversed(cells.items())]


def show_all(asked: options.StoreList) -> None:
    """A line a trial."""
    if asked.status is not None and asked.status not in list(Status):
        raise SettingError(unknown("status", asked.status, [each.value for each in Status]))
    table = Table("trial", "kind", "status", "verdict", "read", "time", "words", box=None, pad_edge=False)
    with Store(asked.store, create=False) as store:
        for each in store.entries(Status(asked.status) if asked.status else None):
            found = each.found or {}
            read = f"{found['read']} of {found['of']}" if "read" in found else ""
            words = " ".join(f"{key}={value}" for key, value in each.words.items())
            took = "" if each.seconds is None else duration(each.seconds)
            table.add_row(each.digest[:8], each.kind, each.status, found.get("verdict", ""), read, took, escape(words))
    out.print(table)


def show(asked: options.StoreShow) -> None:
    """All that is kept of one, as JSON, and where its folder is."""
    with Store(asked.store, create=False) as store:
        each = store.entry(asked.trial)
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
    if ending not in (*ENDINGS, ".parquet"):
        raise SettingError(f"Expected a file that ends in .csv, .jsonl or .parquet, got {str(asked.file)!r}.")
    with Store(asked.store, create=False) as store:
        rows = []
        for each in store.entries(Status.DONE):
            head = {"digest": each.digest, "kind": each.kind, **each.words}
            if asked.records:
                rows += [head | record for record in store.records(each.digest)]
            else:
                rows.append(head | {"seconds": each.seconds} | (each.found or {}))
    found = Found(rows)
    if ending == ".parquet":
        _parquet(found, asked.file)
    else:
        files.replace(asked.file, ENDINGS[ending](found))
    out.print(f"{len(rows):,} rows  {asked.file}", highlight=False, soft_wrap=True)


def _parquet(found: Found, file: Path) -> None:
    try:
        import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]
        import pyarrow.parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise SettingError(
            "Parquet needs pyarrow; install it (pip install pyarrow), or write .csv or .jsonl."
        ) from None
    rows = [{name: _plain(row.get(name)) for name in found.names} for row in found.rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def merge(asked: options.StoreMerge) -> None:
    """Say how many were taken over."""
    with Store(asked.store) as store:
        for each in asked.others:
            with Store(each, create=False) as other:
                out.print(f"{store.merge(other):,} trials from {each}", highlight=False, soft_wrap=True)


def prune(asked: options.StorePrune) -> None:
    """Say how many were removed."""
    if not (asked.failed or asked.stale):
        raise SettingError("Expected what to remove, got nothing; say --failed, --stale or both.")
    with Store(asked.store, create=False) as store:
        gone = [each.digest for each in store.entries(Status.FAILED)] if asked.failed else []
        if asked.stale:
            gone += _stale(store)
        out.print(f"{store.prune(gone):,} trials removed", highlight=False)


def _stale(store: Store) -> list[str]:
    """Audits that asking again would not find, and trainings that no other audit uses."""
    audits = [each for each in store.entries(Status.DONE) if each.kind == "audit"]
    old = [each.digest for each in audits if Trial(**each.words).prepare().digest != each.digest]
    used = {each.uses for each in audits if each.digest not in old}
    return old + [
        each.digest for each in store.entries(Status.DONE) if each.kind == "training" and each.digest not in used
    ]
