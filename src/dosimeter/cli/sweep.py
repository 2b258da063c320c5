"""`dosimeter sweep`: many audits as one."""

from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.markup import escape

from dosimeter import spec
from dosimeter.cli import options
from dosimeter.cli.config import write_config
from dosimeter.cli.console import err, out
from dosimeter.cli.parts import finish, going_on, live, place, planned, print_json
from dosimeter.errors import SettingError, unknown
from dosimeter.lines import Grid
from dosimeter.progress import duration
from dosimeter.sweeps import Table as Found
from dosimeter.sweeps import Trial, costs, product_of, sweep
from dosimeter.sweeps.costs import Span
from dosimeter.sweeps.planning import TO_RUN, Plan, Planned, plan
from dosimeter.sweeps.run import said

SPANS = ("steps", "images", "seconds", "wall")


def run(asked: options.Sweep) -> None:
    """Run what is missing, and print and draw all."""
    known = [each.name for each in fields(Trial)]
    for option in ("rows", "columns"):  # of what is shown it is known only when it is there
        if (name := getattr(asked, option)) not in known:
            raise SettingError(unknown("column of a sweep", name, known))
    trials = list(product_of(axes(asked)))
    folder = place(asked, "sweep", apart=("rows", "columns", "show", "retry_failed", "shards"), store=True)
    if asked.dry_run:
        _plan(plan(trials, folder, on=asked.on), asked, folder)
        return
    write_config(folder)
    with going_on(folder), live() as tell:
        how: dict[str, Any] = {"on": asked.on, "shards": asked.shards, "retry_failed": asked.retry_failed}
        found = sweep(trials, store=folder, told=tell, foresee=err.is_terminal, **how)
    head, cells = found.grid(asked.rows, asked.columns, asked.show)
    table = Grid(*head)
    for row in cells:
        table.add_row(*row)
    for why in dict.fromkeys(row["why"] for row in found.rows if "why" in row):
        err.print(escape(f"Failed: {why}"), highlight=False, soft_wrap=True)
    about = f"{len(found)} trials; {asked.show} of each {asked.rows} and {asked.columns}"
    shown = [[spec.shown(cell) for cell in row] for row in cells]
    pictures = _pictures(found, asked.rows, asked.columns)
    bars = _bars(found, asked)
    document = {"command": "sweep", "trials": found.rows}
    page: dict[str, Any] = {
        "head": [spec.shown(cell) for cell in head],
        "rows": shown,
        "pictures": pictures,
        "bars": bars,
    }
    kinds = Counter(str(row["verdict"]) for row in found.rows if row.get("verdict"))
    page |= {"kinds": kinds, "show": asked.show}
    then = f"dosimeter store list {folder} has every trial"
    finish(asked, folder, document, table, "sweep", about=about, then=then, **page)


def axes(asked: options.Sweep) -> dict[str, Any]:
    """What is repeated, by the settings of a trial."""
    found: dict[str, Any] = {
        name: list(getattr(asked, name)) for name in ("model", "data", "batch", "attack", "defense")
    }
    found |= {name: list(getattr(asked, name)) for name in ("step", "server")}
    found |= {name: getattr(asked, name) for name in ("size", "channels", "victims", "split", "steps", "threshold")}
    found["until_read"] = asked.until_read
    found["weights"] = str(asked.weights) if asked.weights else None
    found["seed"] = list(range(asked.seed, asked.seed + asked.seeds))
    found["protocol"] = list(asked.protocol) if asked.protocol else None
    return found


def _plan(found: Plan, asked: options.Sweep, folder: Path) -> None:
    """What every trial and all of them would take; in cells that hold two numbers, at least and at most."""
    if asked.json:
        print_json({"command": "sweep", "dry_run": True, "store": str(folder), **_document(found)})
        return
    table = Grid("trials", "what", "", "steps", "core time each", "memory")
    alike: dict[tuple[Any, ...], int] = {}
    for each in found.rows:
        line = (_named(each), each.status, each.steps, each.seconds, each.bytes)
        alike[line] = alike.get(line, 0) + 1
    for (name, status, steps, seconds, size), many in alike.items():
        told = (_many(steps) if steps.most else "", _time(seconds), f"{size / 2**20:,.0f} MiB" if size else "")
        table.add_row(str(many), name, status, *(told if status == TO_RUN else ()))
    table.print(out)
    out.print()
    left, counts = found.left, Counter(each.status for each in found.rows)
    rows = {"trials": ", ".join(f"{many:,} {status}" for status, many in counts.items())}
    if left:
        rows |= {
            "image-steps": _many(Span.total([each.images for each in left])),
            "core time": _likely(found.seconds),
            "time": f"{_likely(found.wall)}, with --on {asked.on}",
            "memory": f"about {found.bytes / 2**20:,.0f} MiB with the program itself",
            "prices": _whose(found.machine),
        }
    planned(rows)


def _named(each: Planned) -> str:
    """What it is: its words, how many attacks it meets, or how many trials share it."""
    words = said({key: value for key, value in each.words.items() if key != "seed"})
    if each.kind == "training":
        return f"training for {each.shared} audit{'s' * (each.shared > 1)}: {words}"
    unfit = f", {each.refused} of them refused" if each.refused else ""
    return words + (f" ({each.attacks} attacks{unfit})" if each.attacks > 1 else "")


def _whose(machine: str) -> str:
    own = machine == costs.machine()
    return machine if own else f"those of {machine}; dosimeter bench costs measures this machine's"


def _many(span: Span) -> str:
    few, most = f"{span.least:,.0f}", f"{span.most:,.0f}"
    return few if few == most else f"{few} to {most}"


def _time(span: Span) -> str:
    few, most = duration(span.least), duration(span.most)
    return few if few == most else f"{few} to {most}"


def _likely(span: Span) -> str:
    return _time(span) + (f", likely {duration(span.likely)}" if span.least < span.most else "")


def _document(found: Plan) -> dict[str, Any]:
    """All of a plan as plain values."""
    rows = [each._asdict() | {key: getattr(each, key)._asdict() for key in SPANS} for each in found.rows]
    whole = {key: getattr(found, key)._asdict() for key in ("seconds", "wall")}
    return whole | {"bytes": found.bytes, "machine": found.machine, "trials": rows}


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
