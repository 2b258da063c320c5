"""What the pages show: snippets of Python, and lines for a shell."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

SHELL = ("cd", "dosimeter", "flower-superlink", "flower-supernode", "flwr", "git", "make", "pip", "python", "source")
"""First words of what a reader types."""


class Line(NamedTuple):
    """A line for a shell, as words, and where it stands."""

    page: str
    number: int
    words: list[str]

    @property
    def text(self) -> str:
        return shlex.join(self.words)


def snippets(page: Path) -> list[str]:
    """What a page shows in Python."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


def lines(page: Path) -> Iterator[Line]:
    """All that a page has a reader type."""
    return lines_of(page.name, page.read_text())


def lines_of(page: str, content: str) -> Iterator[Line]:
    """The same of a page's content: from its indented and fenced blocks, without remarks behind them."""
    python = re.compile(r"^```python\n.*?^```", re.S | re.M)
    text = python.sub(lambda block: "\n" * block[0].count("\n"), content)
    fenced, held, start = False, "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        fenced ^= raw.startswith("```")
        if not held and not (fenced or raw.startswith("    ")):
            continue
        start, said = (start, held + " " + raw.strip()) if held else (number, raw.strip())
        held = said[:-1].rstrip() if said.endswith("\\") else ""
        if not held and (words := _words(said)):
            yield Line(page, start, words)


def _words(said: str) -> list[str]:
    """The words of a line that is typed: a remark begins with # or stands apart by three spaces."""
    said = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", said)
    if said.split(" ", 1)[0] not in SHELL:
        return []
    return shlex.split(re.split(r"\s{3,}|\s+&\s", said)[0], comments=True)


def inline(page: Path) -> Iterator[Line]:
    """`dosimeter ...` in the middle of a text, where it names options."""
    for number, raw in enumerate(page.read_text().splitlines(), 1):
        if not raw.startswith("    "):
            for said in re.findall(r"`(dosimeter [a-z][^`]*)`", raw):
                yield Line(page.name, number, shlex.split(said))
