"""Pages over several results: trainings, what they leak on their way, comparisons, sweeps, reproductions and doses.

What a page shows is kept beside it as plain values, so that it can be drawn again at any later time.
"""

from pathlib import Path
from typing import Any

from dosimeter import files
from dosimeter.errors import DAMAGED, DataError
from dosimeter.reports import opening, sections
from dosimeter.reports.drawn import Drawn
from dosimeter.reports.kinds import KINDS
from dosimeter.reports.markup import Html, tag
from dosimeter.reports.sections import Part

FILE = "page.json"
LONG = 60
"""Characters from which what is said first stands in smaller letters."""


def write(folder: Path, kind: str, *, about: str, command: str, **shown: Any) -> Path:
    """Keep what a page of a kind shows and draw it; says where it is."""
    head = {"program": "dosimeter", "kind": kind, "about": about, "command": command}
    files.replace_json(folder / FILE, head | shown)
    return draw(folder)


def is_kept(folder: Path) -> bool:
    """Whether a page of several results lies there, which `draw` can make anew."""
    return (folder / FILE).is_file()


def draw(folder: Path, *, redact: bool = False) -> Path:
    """The page of what was kept; without pictures it is a file beside the other."""
    try:
        found = files.read_json(folder / FILE)
        name, title, parts = KINDS[found["kind"]]
        drawn = parts(found | {"folder": folder, "redact": redact})
        if found["command"]:
            drawn.parts.append(Part("again", "Run it again", sections.again(found["command"])))
        page = document(title, found["about"], drawn, redact=redact)
    except (OSError, *DAMAGED) as error:
        raise DataError(f"{folder / FILE}: expected what a page shows, but {files.reason(error)}.") from None
    where = folder / (f"{Path(name).stem}-redacted.html" if redact else name)
    files.replace(where, page)
    return where


def document(title: str, about: str, drawn: Drawn, *, redact: bool = False) -> str:
    """The page as text: what is to be said first, with the figure that shows it, then the parts."""
    said = tag(
        "div",
        tag("p", drawn.word, class_="kind") if drawn.word else None,
        tag("h2", *sections.unbroken(drawn.said), class_="long" if len(drawn.said) > LONG else None),
        tag("p", *sections.unbroken(drawn.lead), class_="lead") if drawn.lead not in ("", about) else None,
        tag("p", opening.LEFT_OUT, class_="banner") if redact else None,
    )
    proof = tag("div", drawn.proof, class_="wide" if drawn.wide else None) if drawn.proof else None
    kind = f"verdict {drawn.tone}{'' if drawn.wide or not proof else ' two'}"
    first = tag("section", said, proof, class_=kind)
    last: list[Html] = [tag("footer", tag("p", opening.LEFT_OUT))] if redact else []
    main = tag("main", first, *sections.laid(drawn.parts))
    return sections.document(title, sections.header(title, about), main, *last)
