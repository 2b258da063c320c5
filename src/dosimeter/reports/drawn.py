"""What every page over several results has: what it says first, the figure that shows it, its parts and pictures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter import store
from dosimeter.auditing import Result
from dosimeter.reports import gallery
from dosimeter.reports.markup import Html, tag
from dosimeter.reports.sections import Part

Entry = Mapping[str, Any]
"""Plain values: a round's figures, an audit's on the way, or all that a page shows."""


class Drawn(NamedTuple):
    """A page: what it says first, in how loud a tone, the figure that shows it, and its parts."""

    said: str
    lead: str
    parts: list[Part]
    proof: Html | None = None
    wide: bool = False  # the figure stands below what is said, not beside it
    tone: str = "calm"
    word: str = ""


def pictures_of(found: Entry) -> list[Part]:
    """The most exposed image of each trial that is named."""
    cards = []
    for at, (*names, digest) in enumerate(found.get("pictures", ())):
        result = store.read(found["folder"] / "trials" / Path(digest).name)
        if isinstance(result, Result):
            cards.append(
                gallery.most_exposed(result, ", ".join(names), id_=f"picture-{at}", redact=found.get("redact", False))
            )
    return [Part("pictures", "Pictures", tag("div", *cards, class_="cards"))] if cards else []
