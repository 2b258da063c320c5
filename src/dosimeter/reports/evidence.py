"""What an audit's evidence is, as a bar: read, hidden, fell short."""

from collections.abc import Mapping
from typing import NamedTuple

from dosimeter.auditing.evidence import Evidence, tally
from dosimeter.reports.markup import Html, tag


class Said(NamedTuple):
    """One kind of evidence: its name in the style sheet, and what it says."""

    name: str
    means: str


KINDS: dict[str | None, Said] = {
    Evidence.READ: Said("read", "the reconstruction counts as the image"),
    Evidence.HIDDEN: Said(
        "hidden", "not read, and what was found explains the update as well as the truth does: evidence of privacy"
    ),
    Evidence.FELL_SHORT: Said(
        "short", "not read, but the truth explains the update better: the search failed, which is no evidence"
    ),
    Evidence.UNFIT: Said("unfit", "the attack's equations or its images do not fit these updates"),
    Evidence.UNMEASURED: Said("unmeasured", "the attack did not come to an end, or the update is zero"),
}


def bar(counts: Mapping[str, int], *, mini: bool = False) -> Html:
    """Images by what the attack on them says, as shares of a bar."""
    parts = [
        tag("span", class_=said.name, style=f"flex-grow: {counts[kind]}", title=f"{counts[kind]:,} {kind}")
        for kind, said in KINDS.items()
        if kind and counts.get(kind)
    ]
    words = f"Evidence: {tally(counts)}"
    return tag("div", *parts, class_="evidence mini" if mini else "evidence", role="img", aria_label=words)


def legend(counts: Mapping[str, int]) -> Html:
    """What the parts of a bar mean, the three that matter whether or not they occur."""
    always = (Evidence.READ, Evidence.HIDDEN, Evidence.FELL_SHORT)
    return tag(
        "ul",
        *(
            tag(
                "li",
                tag("i", class_=f"swatch {said.name}"),
                tag("b", f"{counts.get(kind, 0):,} {kind}"),
                f": {said.means}",
            )
            for kind, said in KINDS.items()
            if kind and (counts.get(kind) or kind in always)
        ),
        class_="legend",
    )
