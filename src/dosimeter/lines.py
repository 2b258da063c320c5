"""Text and tables that fit a terminal: neither a word nor a number with its unit is broken."""

import re
import shlex
import textwrap
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

GLUE = "\0"
"""Stands for a space at which no line ends."""

_UNIT = r"(?:%|±|(?:s|min|h|dB|[KMG]i?B|of \d)\b)"
_JOINED = re.compile(rf"(?<=\d) (?={_UNIT})|(?<=\bof) (?=\d)|(?<=±) (?=[\d.])|(?<=\bmin) (?=\d)")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?( ± [\d.,e+-]+)?( ?(%|s|dB|[KMG]iB))?|\N{EN DASH}|-|")
GAP = 2
"""Blanks between columns; one where that is what makes a table fit."""


def clean(text: str) -> str:
    """Text in which nothing steers a terminal or breaks a file: control characters become a replacement mark."""
    spaced = (" " if c.isspace() and c != "\n" else c for c in text)
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in spaced)


def wrap(text: str, width: int, *, hang: int = 0) -> list[str]:
    """Lines of at most `width` characters, all but the first of a paragraph indented by `hang`.

    What cannot be broken, a path for instance, stands whole on a line of its own, however long it is.
    """
    how = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * hang}
    found = []
    for paragraph in text.split("\n"):
        begins = " " * (len(paragraph) - len(paragraph.lstrip(" ")))
        glued = _JOINED.sub(GLUE, paragraph.strip(" "))
        found += textwrap.wrap(glued, max(width, 1), initial_indent=begins, **how) or [""]  # type: ignore[arg-type]
    return [line.replace(GLUE, " ") for line in found]


def shell(command: str, width: int) -> list[str]:
    """A command over several lines, of which a shell makes one: an option stays with its value."""
    words = [shlex.quote(word) for word in shlex.split(command)]
    pieces = list[str]()
    for at, word in enumerate(words):
        belongs = at and words[at - 1].startswith("--") and not word.startswith("-") and " " not in pieces[-1]
        pieces[-1:] = [f"{pieces[-1]} {word}"] if belongs else [*pieces[-1:], word]
    found = pieces[:1]
    for piece in pieces[1:]:
        if len(f"{found[-1]} {piece} \\") <= width:
            found[-1] += f" {piece}"
        else:
            found.append(f"    {piece}")
    return [f"{line} \\" for line in found[:-1]] + found[-1:]


def say(console: Console, text: str | Sequence[str], style: str = "", *, hang: int = 0) -> None:
    """Print text, wrapped to the console's width, or lines as they are; it is never read as markup."""
    lines = wrap(clean(text), console.width, hang=hang) if isinstance(text, str) else map(clean, text)
    _put(console, Text("\n".join(lines), style=style))


def fact(console: Console, name: str, text: str) -> None:
    """One line of what is said beneath a table: a name in the margin and what it is."""
    first, *rest = wrap(f"{name + ' ':<14}{clean(text)}", console.width, hang=14 if console.width >= 60 else 0)
    shown = Text(first)
    shown.stylize("dim", 0, len(name))
    _put(console, Text("\n").join([shown, *map(Text, rest)]))


def _put(console: Console, text: Text) -> None:
    text.plain = text.plain.encode(console.encoding, "replace").decode(console.encoding)
    console.print(text, soft_wrap=True, highlight=False)


class Grid:
    """A table of plain text. Cells wrap between words; where even that does not fit each row is a block of lines."""

    def __init__(self, *head: str, title: str = "") -> None:
        self.head, self.title, self.caption = [clean(name) for name in head], title, ""
        self.rows: list[list[str]] = []

    def add_row(self, *cells: str) -> None:
        """Cells that are missing are empty."""
        self.rows.append([clean(cell) for cell in cells] + [""] * (len(self.head) - len(cells)))

    def print(self, console: Console) -> None:
        """On a console, in its width."""
        if self.title:
            say(console, self.title, "italic")
        head, *rest = self.blocks(console.width)
        _put(console, Text("\n".join(head), style="bold"))
        for lines in rest:
            _put(console, Text("\n".join(lines)))
        if self.caption:
            say(console, f"{self.caption}\n", "italic")

    def lines(self, width: int) -> list[str]:
        """All of it but the title."""
        return [line for block in self.blocks(width) for line in block]

    def blocks(self, width: int) -> list[list[str]]:
        """The lines of the head and those of every row."""
        for gap in (GAP, 1):
            if widths := self._widths(width, gap):
                right = [all(_NUMBER.fullmatch(row[at]) for row in self.rows) for at in range(len(widths))]
                return [_row(cells, widths, right, gap) for cells in (self.head, *self.rows)]
        return [wrap(", ".join(filter(None, self.head)), width), *(self._block(row, width) for row in self.rows)]

    def _block(self, row: Sequence[str], width: int) -> list[str]:
        told = [f"  {name}: {cell}" if name else f"  {cell}" for name, cell in zip(self.head, row, strict=True) if cell]
        first = told[0][2:].removeprefix(f"{self.head[0]}: ") if told else ""
        return wrap(first, width) + [line for each in told[1:] for line in wrap(each, width, hang=4)]

    def _widths(self, width: int, gap: int) -> list[int] | None:
        """Of every column, the widest made narrower until all fit; None where words are too long for that."""
        columns = list(zip(self.head, *self.rows, strict=True))
        wide = [max(len(line) for cell in cells for line in cell.split("\n")) for cells in columns]
        least = [max(len(word) for cell in cells for word in _words(cell)) for cells in columns]
        while sum(wide) + gap * (len(wide) - 1) > width:
            loose = [at for at in range(len(wide)) if wide[at] > least[at]]
            if not loose:
                return None
            wide[max(loose, key=lambda at: wide[at])] -= 1
        return wide


def markdown(console: Console, text: str) -> None:
    """Print text whose lines with bars are tables, a rule beneath the head of each."""
    for about_table, group in groupby(text.splitlines(), lambda line: line.startswith("|")):
        if not about_table:
            say(console, "\n".join(group))
            continue
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in group)
        table = Grid(*head)
        for row in rows:
            table.add_row(*row)
        table.print(console)


def _words(cell: str) -> list[str]:
    """What of a cell is not broken."""
    return _JOINED.sub(GLUE, cell).split() or [""]


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], gap: int) -> list[str]:
    wrapped = [wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    padded = [[*lines, *[""] * (height - len(lines))] for lines in wrapped]
    lines = []
    for parts in zip(*padded, strict=True):
        placed = (f"{part:>{n}}" if r else f"{part:<{n}}" for part, n, r in zip(parts, widths, right, strict=True))
        lines.append((" " * gap).join(placed).rstrip())
    return lines
