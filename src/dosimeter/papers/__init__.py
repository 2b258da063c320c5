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

from pathlib import Path

from dosimeter.errors import SettingError, unknown
from dosimeter.papers import bayes, cvb, fedkl, ig, ppp
from dosimeter.papers.claims import Claim, Held, Judged
from dosimeter.papers.estimate import Estimate, estimate
from dosimeter.papers.item import SCALES, Case, Cut, Item, Scale
from dosimeter.papers.measured import Measured
from dosimeter.papers.missing import missing
from dosimeter.papers.quantities import Value
from dosimeter.papers.run import recall, reproduce
from dosimeter.papers.show import cells, claims_table, document, head, markdown, page

PAPERS = (ppp, bayes, ig, cvb, fedkl)

ITEMS: dict[str, Item] = {item.key: item for paper in PAPERS for item in paper.ITEMS}
"""By PAPER/NAME."""

CLAIMS: tuple[Claim, ...] = tuple(claim for paper in PAPERS for claim in paper.CLAIMS)


def find(name: str) -> Item:
    """An item by its name."""
    if name not in ITEMS:
        raise SettingError(unknown("table or figure", name, list(ITEMS)))
    return ITEMS[name]


def judge_all(folder: str | Path, *, scale: Scale = "laptop") -> list[tuple[Claim, Judged, Judged]]:
    """Every claim with what the kept rows of its item say of it, by the paper's own attack and by ours."""
    found = {name: recall(ITEMS[name], folder, scale=scale) for name in dict.fromkeys(each.item for each in CLAIMS)}
    judged = []
    for claim in CLAIMS:
        rows, item = found[claim.item], ITEMS[claim.item]
        cut = ", ".join(each for each in missing(item, scale) if "rounds of training" in each)
        judged.append((claim, claim.judge(rows, cut=cut), claim.judge(rows, ours=True, cut=cut)))
    return judged


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
    "head",
    "judge_all",
    "markdown",
    "missing",
    "page",
    "recall",
    "reproduce",
]
