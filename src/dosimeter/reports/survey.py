"""A whole federation, on a terminal and as a page: clients down, rounds across."""

from collections.abc import Sequence
from statistics import fmean

from dosimeter.auditing import Entry, Survey
from dosimeter.auditing.verdict import Kind
from dosimeter.metrics import percent
from dosimeter.reports import charts, opening, provenance, sections
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.pictures import THUMBNAIL, embed
from dosimeter.reports.sections import Part
from dosimeter.reports.words import count, number
from dosimeter.store import update_folder

ABREAST = 4
"""Images of one update in the grid."""
ROUNDS = 6
"""Rounds in the table on a terminal."""
LINES = 6
"""Clients with a line of their own over the rounds, the most exposed ones."""
EXPOSED = (
    "How much of a client's images is out, from 0 to 1: their SSIM beside the truth; without it the share that is "
    "certain, or how often images of shadows were read whose updates match as well; or what was told from a pool."
)


def cell(entry: Entry | None) -> str:
    """What came of one update, in a few words."""
    if entry is None:
        return "-"
    if entry.finding is None:
        return "not audited"
    said, labels = [], entry.labels
    judged, beside = entry.finding.judged, entry.finding.shadows.as_well
    if entry.ssim is not None and judged is not None:
        said.append(f"SSIM {entry.ssim:.2f}, {judged.success.hits:,} of {judged.success.of:,} read")
    if entry.certain:
        said.append("certain" if entry.certain == 1 else f"{100 * entry.certain:.0f} % certain")
    if entry.ssim is None and entry.finding.shadows.rank:
        like = f"{beside.hits:,} of {beside.of:,} shadows that match as well read" if beside else ""
        said.append(like or "matches better than every shadow")
    elif entry.ssim is None and entry.attack is not None and not entry.certain:
        said.append(f"match {number(entry.finding.match)}")
    if labels is not None:
        said.append(f"{labels.hits:,} of {labels.of:,} labels {'right' if judged else 'certain'}")
    found = entry.finding.labels.found if judged is None else None
    if found and (labels is None or labels.hits < labels.of):
        right = entry.finding.shadows.labels
        said.append(
            f"{count(len(found), 'label')} found" + (f" ({percent(right.rate)} % right on shadows)" if right else "")
        )
    if entry.pool:
        said.append(f"{entry.pool.hits:,} of {entry.pool.of:,} told from a pool")
    if entry.named:
        said.append(f"{len(entry.named):,} of {entry.images:,} in the pool")
    return "; ".join(said) or "nothing found"


def grid(survey: Survey) -> tuple[list[str], list[list[str]]]:
    """Head and rows: a client each, and at the end what all of them leak on average. Of many rounds an even choice."""
    every = survey.rounds
    rounds = every if len(every) <= ROUNDS else [every[k * (len(every) - 1) // (ROUNDS - 1)] for k in range(ROUNDS)]
    head = [
        "client" if rounds == every else f"client, {ROUNDS} of {len(every)} rounds",
        *(f"round {r}" for r in rounds),
    ]
    rows = [[client, *(cell(survey.of(client, r)) for r in rounds)] for client in survey.clients]
    return head, [*rows, ["all, mean exposure", *(f"{over(survey, r):.2f}" for r in rounds)]]


def over(survey: Survey, round_: int) -> float:
    """The mean exposure in a round."""
    return fmean(each.exposed for each in survey.entries if each.round == round_)


def tried(survey: Survey) -> list[tuple[str, str, str, str, str]]:
    """By client: rounds, images, how it trained, what was tried on its updates, and what was not and why."""
    found: dict[tuple[str, str, str, str, str], list[int]] = {}
    for each in sorted(survey.entries, key=lambda e: (survey.clients.index(e.client), e.round)):
        found.setdefault((each.client, count(each.images, "image"), each.trained, *_ways(each)), []).append(each.round)
    return [
        (f"{client}, round {', '.join(map(str, rounds))}", f"{images}; {how}".rstrip("; "), ways, why, "")
        for (client, images, how, ways, why), rounds in found.items()
    ]


def _ways(entry: Entry) -> tuple[str, str]:
    """What was tried, and what was not or is doubtful."""
    ways = [] if entry.attack is None else [f"images ({entry.attack})"]
    if entry.finding is not None:
        ways += ["certificate"] if not entry.finding.certificate.refused else []
        ways += ["labels"] if entry.finding.labels.found or entry.finding.labels.least else []
    if entry.left is not None:
        near = f", nearest {', '.join(map(str, entry.nearest))}" if entry.nearest else ""
        ways.append(f"pool (explains {100 * (1 - entry.left):.1f} %{near})")
    told = [f"{what}: {why}" for what, why in entry.left_out.items()]
    return ", ".join(ways) or "nothing", "; ".join([*told, *(f"beware: {doubt}" for doubt in entry.beware)])


def worst(survey: Survey) -> str:
    """The most exposed client."""
    one = survey.worst
    if one is None:
        return "No update could be audited."
    return f"Most exposed: {one.client} in round {one.round} ({cell(one)})."


def main(survey: Survey, *, redact: bool = False) -> list[Html]:
    """The parts of the page in reading order."""
    verdict = survey.verdict
    doubt = f"If nothing leaked, that would be no evidence: {verdict.doubt}." if verdict.doubt else None
    head = tag("tr", *(tag("th", name, scope="col") for name in ("Client", *map(_round, survey.rounds))))
    rows = [
        tag("tr", tag("th", c, scope="row"), *(_pictures(survey, c, r, redact=redact) for r in survey.rounds))
        for c in survey.clients
    ]
    names = ("Client and rounds", "Update", "Tried", "Not tried, or doubtful")
    grid_ = tag("div", tag("table", tag("thead", head), tag("tbody", *rows), class_="grid"), class_="scroll")
    first = tag(
        "section",
        tag(
            "div",
            tag("p", opening.WORDS[verdict.kind], class_="kind"),
            tag("h2", verdict.sentence),
            tag("p", worst(survey), class_="lead"),
            tag("p", doubt) if doubt and verdict.kind is Kind.LEAKS else None,
            tag("p", opening.LEFT_OUT, class_="banner") if redact else None,
        ),
        tag("div", _tiles(survey), class_="wide"),
        class_=f"verdict {opening.TONES[verdict.kind]}",
    )
    parts = [
        Part("grid", "By client and round", grid_),
        Part("rounds", "Over rounds", _lines(survey)),
        Part("tried", "What was tried", sections.table(names, [row[:4] for row in tried(survey)])),
        Part("settings", "Settings", sections.settings(survey)),
        Part("again", "Run it again", provenance.again(survey, {})),
        Part("cite", "How to cite", provenance.cite(survey)),
    ]
    return [first, *sections.laid(parts)]


def _tiles(survey: Survey) -> Html:
    scores, many = survey.pooled.scores, len(survey.entries)
    shown = [
        sections.tile(
            "Updates", f"{many:,}", f"of {count(len(survey.clients), 'client')} in {count(len(survey.rounds), 'round')}"
        )
    ]
    if survey.pooled.records:
        shown.append(sections.share_tile("Images read", scores.success))
    for name, rate in (("Images certain", scores.recovered), ("Told from others", scores.identification)):
        shown += [sections.share_tile(name, rate)] if rate else []
    if scores.labels:
        shown.append(sections.share_tile("Labels right or certain", scores.labels))
    return tag("dl", *shown, class_="tiles")


def _round(round_: int) -> str:
    return f"Round {round_}"


def _pictures(survey: Survey, client: str, round_: int, *, redact: bool) -> Html:
    """Reconstructions of one update, under the originals where they are known, and its page."""
    entry = survey.of(client, round_)
    result = None if entry is None else survey.results.get(entry.key)
    if entry is None or result is None or redact:
        return tag("td", cell(entry))
    rows = [
        ("reconstruction", result.images),
        *([("original", result.originals)] if result.originals is not None else []),
    ]
    drawn = [
        tag(
            "div", *(embed(image, f"{what}: {client}, round {round_}", side=THUMBNAIL) for image in images[0][:ABREAST])
        )
        for what, images in reversed(rows)
    ]
    page = tag("a", cell(entry), href=f"{update_folder(entry.key)}/report.html")
    return tag("td", *drawn, page)


def _lines(survey: Survey) -> Html:
    """Exposure and labels over rounds: the most exposed clients, and the mean of all."""
    first = sorted(survey.clients, key=lambda c: -max(e.exposed for e in survey.entries if e.client == c))[: LINES - 1]
    shown = {c: [(float(e.round), e.exposed) for e in survey.entries if e.client == c] for c in first}
    shown |= {"mean of all": [(float(r), over(survey, r)) for r in survey.rounds]}
    labels: dict[str, Sequence[charts.Point]] = {
        c: [(float(e.round), e.labels.rate) for e in survey.entries if e.client == c and e.labels] for c in first
    }
    drawn = [
        sections.drawing(
            charts.lines(shown, x="round", y="exposure", top=1.0), "Exposure.", EXPOSED, " ", charts.legend(list(shown))
        )
    ]
    if any(labels.values()):
        figure = charts.lines(labels, x="round", y="labels", top=1.0)
        drawn.append(sections.drawing(figure, "Labels right or certain.", charts.legend(list(labels))))
    return join([charts.side_by_side(*drawn)])
