"""The five papers: every table and figure as data and as something to run.

item        a table or figure: rows in the words of the command line, published numbers, scales
quantities  what tables show, in the papers' units
published   the numbers, as tables of text
ppp ...     a file a paper
run         an item as a sweep; measured: a row of it; looks: what figures show; densities: points of a Gaussian
estimate    what it would take
show        measured beside published; missing: what a scale leaves out
claims      what papers claim, and whether it held
field       the map of the field; atlas: its page
"""

from collections.abc import Sequence
from pathlib import Path

from dosimeter import files
from dosimeter.errors import DataError, SettingError, unknown
from dosimeter.papers import bayes, cvb, fedkl, ig, ppp
from dosimeter.papers.claims import Claim, Held, Judged
from dosimeter.papers.estimate import Estimate, estimate
from dosimeter.papers.item import SCALES, Case, Cut, Item, Scale
from dosimeter.papers.measured import Measured
from dosimeter.papers.missing import missing
from dosimeter.papers.quantities import Value
from dosimeter.papers.run import recall, reproduce
from dosimeter.papers.show import cells, claims_table, document, from_document, head, markdown, page

PAPERS = (ppp, bayes, ig, cvb, fedkl)

ITEMS: dict[str, Item] = {item.key: item for paper in PAPERS for item in paper.ITEMS}
"""By PAPER/NAME."""

CLAIMS: tuple[Claim, ...] = tuple(claim for paper in PAPERS for claim in paper.CLAIMS)


def find(name: str) -> Item:
    """An item by its name."""
    if name not in ITEMS:
        raise SettingError(unknown("table or figure", name, list(ITEMS)))
    return ITEMS[name]


def judge_all(
    folder: str | Path, *, scale: Scale = "laptop", results: Path | None = None
) -> list[tuple[Claim, Judged, Judged]]:
    """Every claim with what the rows of its item say of it, by the paper's own attack and by ours; nothing is run.

    Args:
        folder: a store of trials.
        results: files that `dosimeter reproduce --results` wrote, for items of which these have more rows.
    """
    items = dict.fromkeys(each.item for each in CLAIMS)
    found = {name: _kept(ITEMS[name], folder, scale, results) for name in items}
    judged = []
    for claim in CLAIMS:
        rows, missed = found[claim.item]
        cut = ", ".join(each for each in missed if "rounds of training" in each)
        judged.append((claim, claim.judge(rows, cut=cut), claim.judge(rows, ours=True, cut=cut)))
    return judged


def _kept(item: Item, folder: str | Path, scale: Scale, results: Path | None) -> tuple[list[Measured], list[str]]:
    """Rows of an item with what was cut of them, by its store or by a file, whichever has more."""
    rows = recall(item, folder, scale=scale)
    path = results and results / f"{item.stem(scale)}.json"
    if path and path.is_file():
        try:
            written = files.read_json(path, finite=True)
            told, cut = from_document(written), [str(each) for each in written["cut"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"Expected rows of {item.key}, got {path}: {error}; run it again.") from error
        if _ran(told) > _ran(rows):
            return told, cut
    return rows, missing(item, scale)


def _ran(rows: Sequence[Measured]) -> int:
    return sum(not row.why_not for row in rows)


__all__ = [
    "CLAIMS",
    "ITEMS",
    "SCALES",
    "Case",
    "Claim",
    "Cut",
    "Estimate",
    "Held",
    "Item",
    "Judged",
    "Measured",
    "Scale",
    "Value",
    "cells",
    "claims_table",
    "document",
    "estimate",
    "find",
    "from_document",
    "head",
    "judge_all",
    "markdown",
    "missing",
    "page",
    "recall",
    "reproduce",
]
