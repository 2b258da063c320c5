"""What a sweep found, as rows of plain values and as a grid."""

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dosimeter import plain
from dosimeter.errors import SettingError, unknown


@dataclass(frozen=True)
class Table:
    """A row a trial: its settings, scores, verdict and status."""

    rows: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> list[str]:
        """All columns, in the order in which they come."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def grid(
        self, rows: str = "defense", columns: str = "model", show: str = "ssim"
    ) -> tuple[list[str], list[list[str]]]:
        """Head and cells: means and spreads of a number over all trials of a cell, or how often each word is said."""
        for name in (rows, columns, show):
            if name not in self.names:
                raise SettingError(unknown("column of a sweep", name, self.names))
        across = list(dict.fromkeys(str(row[columns]) for row in self.rows))
        cells: dict[str, dict[str, list[Any]]] = {}
        for row in self.rows:
            cells.setdefault(str(row[rows]), {}).setdefault(str(row[columns]), []).append(row.get(show))
        head = [f"{rows} \\ {columns}", *across]
        return head, [[name, *(_cell(each.get(column, [])) for column in across)] for name, each in cells.items()]

    def markdown(self, rows: str = "defense", columns: str = "model", show: str = "ssim") -> str:
        return as_table(*self.grid(rows, columns, show))

    def csv(self) -> str:
        """As text; what is no number or word stands as JSON. Text that a spreadsheet would run has ' before it."""
        text = io.StringIO()
        made = csv.DictWriter(text, self.names)
        made.writeheader()
        made.writerows({key: plain.cell(value) for key, value in row.items()} for row in self.rows)
        return text.getvalue()

    def json_lines(self) -> str:
        return "".join(json.dumps(row) + "\n" for row in self.rows)

    def parquet(self) -> bytes:
        """A column of numbers, of truths or of text each; what is none of these stands as JSON, as in `csv`."""
        try:
            import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]
            import pyarrow.parquet  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            raise SettingError(
                "Parquet needs pyarrow; install it (pip install 'dosimeter[parquet]'), or write .csv or .jsonl."
            ) from None
        made = pyarrow.table({name: _column([row.get(name) for row in self.rows]) for name in self.names})
        into = io.BytesIO()
        pyarrow.parquet.write_table(made, into)
        return into.getvalue()

    def to_pandas(self) -> Any:
        """A DataFrame, where pandas is installed."""
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            raise SettingError("A DataFrame needs pandas; install it (pip install pandas), or take .rows.") from None
        return pandas.DataFrame(self.rows)


def as_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = ["|".join(["", *(f" {cell.replace('|', chr(92) + '|')} " for cell in line), ""]) for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _cell(values: Sequence[Any]) -> str:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not values:
        return "-"
    if not numbers:
        said = [str(value) for value in values if value is not None]
        counts = {word: said.count(word) for word in dict.fromkeys(said)}
        return (
            ", ".join(word if len(said) == 1 else f"{word} {n} of {len(values)}" for word, n in counts.items())
            or "failed"
        )
    spread = f" ± {statistics.stdev(numbers):.3f}" if len(numbers) > 1 else ""
    missing = f" ({len(values) - len(numbers)} failed)" if len(numbers) < len(values) else ""
    return f"{statistics.mean(numbers):.3f}{spread}{missing}"


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value


def _column(values: Sequence[Any]) -> list[Any]:
    """Values of one type and what is missing: numbers where all are, and text where they are of several types."""
    found = [_flat(value) for value in values]
    kinds = {type(value) for value in found if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in found]
    return found if len(kinds) <= 1 else [None if value is None else str(value) for value in found]
