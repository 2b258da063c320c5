"""What papers print, as tables of text beside this file: a row a line, in the papers' own words and units."""

import csv
from importlib.resources import files
from typing import NamedTuple

SPREAD = " spread"
"""What the name of a column ends with that holds the spread of the one before it."""


class Line(NamedTuple):
    """A row of a paper's table."""

    words: dict[str, str]
    numbers: dict[str, float | tuple[float, float]]  # {quantity: value, or value and spread}


def read(name: str, words: int) -> list[Line]:
    """The rows of `published/NAME.csv`, whose first columns are words and the others numbers, which may be missing."""
    text = files("dosimeter.papers").joinpath("published", f"{name}.csv").read_text(encoding="utf-8")
    found = []
    for row in csv.DictReader(text.splitlines()):
        names = list(row)
        said = {key: row[key] for key in names[:words]}
        numbers: dict[str, float | tuple[float, float]] = {}
        for key in names[words:]:
            if row[key] and not key.endswith(SPREAD):
                spread = row.get(key + SPREAD)
                numbers[key] = (float(row[key]), float(spread)) if spread else float(row[key])
        found.append(Line(said, numbers))
    return found
