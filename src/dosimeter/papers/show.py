"""An item's rows as a table: measured beside published, and where they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from dosimeter.metrics import Rate
from dosimeter.papers.claims import Claim, Held, Judged
from dosimeter.papers.item import Item, Scale
from dosimeter.papers.measured import Measured
from dosimeter.papers.missing import missing
from dosimeter.papers.quantities import QUANTITIES, Quantity, Value
from dosimeter.sweeps.table import as_table

APART = "≠"
"""Beside a number that differs from the paper's by more than both spreads."""
RATES = ("read", "read_by", "short", "short_by")
"""Counts of images in a row, as they are written."""


def head(item: Item) -> list[str]:
    measured = [_label(QUANTITIES[name]) for name in item.quantities]
    return [*item.heading, *measured, "strongest attack", "its SSIM", "images read", "evidence"]


def cells(item: Item, found: Sequence[Measured], *, marked: bool = True) -> list[list[str]]:
    """A row a case; a number is followed by the paper's in brackets, and `marked` where they differ."""
    published = {case.name: case for case in item.cases}
    rows = []
    for row in found:
        case = published[row.name]
        if row.why_not:
            empty = [f"not run: {row.why_not}", *([""] * (len(item.quantities) + 3))]
            rows.append([*row.name, *empty])
            continue
        shown = [_cell(QUANTITIES[name], row.values.get(name), case.value(name), marked) for name in item.quantities]
        best = _number(QUANTITIES["ssim"], row.strongest) if row.strongest else "-"
        read = _count(row.read_by) if row.read_by else "-"
        rows.append([*row.name, *shown, row.by or "-", best, read, row.evidence or "-"])
    return rows


def _rate(pair: Sequence[int] | None) -> Rate | None:
    return None if pair is None else Rate(*pair)


def _count(rate: Rate) -> str:
    """Images read, with the interval of their share."""
    return f"{rate.hits} of {rate.of} ({100 * rate.low:.0f}-{100 * rate.high:.0f} %)"


def markdown(item: Item, found: Sequence[Measured], scale: Scale) -> str:
    """The table with what was cut and what differs."""
    cut, marked = missing(item, scale), scale != "smoke"
    note = (
        f"; {APART}: apart by more than both spreads, or outside [our interval]"
        if marked
        else ", ours say nothing at this scale"
    )
    parts = [
        f"{item.about} Numbers in brackets are the paper's{note}.",
        as_table(head(item), cells(item, found, marked=marked)),
    ]
    if cut:
        parts.append(f"Cut at this scale: {', '.join(cut)}.")
    if not marked:
        return "\n\n".join(parts)
    if any(apart(row, item) for row in found if not row.why_not):
        parts.append(item.differs or "Why figures differ was not found out.")
    return "\n\n".join(parts)


def apart(row: Measured, item: Item) -> list[str]:
    """Quantities of a row that differ from the paper's."""
    case = next(case for case in item.cases if case.name == row.name)
    pairs = [(name, row.values.get(name), case.value(name)) for name in item.quantities]
    return [name for name, mine, theirs in pairs if mine and theirs and differ(QUANTITIES[name], mine, theirs)]


def differ(quantity: Quantity, mine: Value, theirs: Value) -> bool:
    """Whether two numbers are further apart than their spreads, or our interval, and the paper's rounding allow."""
    rounding = 0.5 * 10**-quantity.digits
    if mine.low is not None and mine.high is not None:
        return not mine.low - rounding <= theirs.mean <= mine.high + rounding
    return bool(abs(mine.mean - theirs.mean) > (mine.spread or 0.0) + (theirs.spread or 0.0) + rounding)


def document(item: Item, found: Sequence[Measured], scale: Scale) -> dict[str, Any]:
    """All of it as plain values."""
    published = {case.name: case.published for case in item.cases}
    rows = [
        {
            "name": list(row.name),
            "measured": {name: value.pair for name, value in row.values.items()},
            "published": {name: published[row.name].get(name) for name in item.quantities},
            "differ": [] if row.why_not else apart(row, item),
            "strongest": row.strongest and row.strongest.pair,
            "by": row.by,
            **{name: (rate := getattr(row, name)) and [rate.hits, rate.of] for name in RATES},
            "verdict": row.verdict,
            "evidence": row.evidence,
            "not_run": row.why_not,
        }
        for row in found
    ]
    return {"item": item.key, "scale": scale, "cut": missing(item, scale), "rows": rows}


def from_document(written: Mapping[str, Any]) -> list[Measured]:
    """The rows that `document` wrote, without what only figures show."""
    return [
        Measured(
            tuple(row["name"]),
            {name: Value(*pair) for name, pair in row["measured"].items()},
            strongest=row["strongest"] and Value(*row["strongest"]),
            by=row["by"],
            verdict=row["verdict"],
            evidence=row["evidence"],
            why_not=row["not_run"],
            read=_rate(row["read"]),
            read_by=_rate(row["read_by"]),
            short=_rate(row["short"]),
            short_by=_rate(row["short_by"]),
        )
        for row in written["rows"]
    ]


def page(item: Item, found: Sequence[Measured], scale: Scale) -> dict[str, Any]:
    """What a page shows beside the table: each number with the paper's, the one that the item is judged by first."""
    published = {case.name: case for case in item.cases}
    beside: list[dict[str, Any]] = [
        {
            "row": ", ".join(row.name),
            "quantity": name,
            "measured": (mine := row.values.get(name)) and mine.pair,
            "published": (theirs := published[row.name].value(name)) and theirs.pair,
            "apart": bool(mine and theirs and differ(QUANTITIES[name], mine, theirs)),
        }
        for row in found
        for name in item.quantities
        if not row.why_not
    ]
    both = [each["quantity"] for each in beside if each["measured"] and each["published"]]
    first = item.judged if item.judged in both else next(iter(both), item.judged)
    told = {"quantity": first, "label": _label(QUANTITIES[first]), "item": item.about, "marked": scale != "smoke"}
    return told | {"beside": beside, "cut": missing(item, scale), "differs": item.differs}


def claims_table(judged: Sequence[tuple[Claim, Judged, Judged]]) -> str:
    """Every claim with what was found by the paper's own attack and by ours."""
    rows = [
        [claim.name, claim.where, own.held.value, ours.held.value, own.evidence, ours.evidence]
        for claim, own, ours in judged
    ]
    table = as_table(["claim", "where", "its own attack", "ours", "evidence", "evidence of ours"], rows)
    by = {"the papers' own attacks": [own for _, own, _ in judged], "ours": [ours for _, _, ours in judged]}
    counts = [f"by {who}: " + ", ".join(_counted(each)) for who, each in by.items()]
    return f"{table}\n\n{len(judged)} claims; {'; '.join(counts)}."


def _counted(judged: Sequence[Judged]) -> list[str]:
    """How many are held, not held and not tested."""
    return [f"{sum(each.held is kind for each in judged)} {kind.value}" for kind in Held]


def _label(quantity: Quantity) -> str:
    return quantity.label + (f" [{quantity.unit}]" if quantity.unit else "")


def _cell(quantity: Quantity, mine: Value | None, theirs: Value | None, marked: bool) -> str:
    said = _number(quantity, mine) if mine else "-"
    if theirs is None:
        return said
    mark = f" {APART}" if marked and mine and differ(quantity, mine, theirs) else ""
    return f"{said} ({_number(quantity, theirs)}){mark}"


def _number(quantity: Quantity, value: Value) -> str:
    spread = "" if value.spread is None else f" ± {value.spread:.{quantity.digits}f}"
    if value.low is not None and value.high is not None:
        spread = f" [{value.low:.0f}, {value.high:.0f}]"
    return f"{value.mean:.{quantity.digits}f}{spread}"
