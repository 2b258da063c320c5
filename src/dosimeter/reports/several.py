"""One page over several audits: what each says, side by side."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dosimeter import files, store
from dosimeter.auditing import Result
from dosimeter.auditing.verdict import Kind, Verdict, weigh
from dosimeter.errors import DataError
from dosimeter.progress import duration
from dosimeter.reports import charts, evidence, figures, gallery, kept, opening, provenance, sections
from dosimeter.reports.drawn import Drawn
from dosimeter.reports.gallery import Rival
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.page import PAGE
from dosimeter.reports.pictures import embed
from dosimeter.reports.sections import Part
from dosimeter.reports.words import brief, count, granted, listed, short

TITLE = "Audits compared"


class Named(NamedTuple):
    """An audit with its name, its verdict and where its own page is."""

    name: str
    result: Result
    found: Verdict
    page: str = ""  # as a link


def write_comparison(
    folders: Sequence[str | Path], path: str | Path, *, title: str = TITLE, redact: bool = False
) -> Path:
    """Write one page over the audits in these run folders, with links to their own pages, and say where it is."""
    path, found = Path(path), []
    for folder in map(Path, folders):
        result = store.read(folder)
        if not isinstance(result, Result):
            raise DataError(f"{folder}: expected the run of an audit, got another kind; compare audits alone.")
        own = folder / PAGE
        link = Path(os.path.relpath(own, path.parent)).as_posix() if own.is_file() and not redact else ""
        found.append(Named(folder.resolve().name, result, weigh(result), link))
    names = apart(folders)
    found = [each._replace(name=name) for each, name in zip(found, names, strict=True)]
    files.replace(path, compare(found, title=title, redact=redact))
    return path


def apart(folders: Sequence[str | Path]) -> list[str]:
    """Their names without the words that all begin with: audit-none and audit-cvb are none and cvb."""
    words, same = [Path(folder).resolve().name.split("-") for folder in folders], 0
    while all(len(each) > same + 1 for each in words) and len({each[same] for each in words}) == 1:
        same += 1
    return ["-".join(each[same:]) for each in words]


def compare(found: Sequence[Named], *, title: str = TITLE, redact: bool = False) -> str:
    """The page as text."""
    settings = [each.result.settings for each in found]
    about = [f"{count(len(found), 'audit')} of {listed(sorted({str(s['model']) for s in settings}))} on "]
    about.append(listed(sorted({str(s["data"]) for s in settings})))
    leaks, open_, held = (
        [each.name for each in found if each.found.kind is kind]
        for kind in (Kind.LEAKS, Kind.INCONCLUSIVE, Kind.NOT_SHOWN)
    )
    said = f"{len(leaks):,} of {count(len(found), 'audit')} show a leak."
    lead = f"No leak was shown by {listed(held)}." if held else ""
    lead += f" {listed(open_)} cannot tell." if open_ else ""
    tone = "loud" if leaks else "warm" if open_ else "calm"
    cards = [
        gallery.most_exposed(each.result, each.name, id_=f"picture-{at}", link=each.page, redact=redact)
        for at, each in enumerate(found)
    ]
    parts = [
        Part("pictures", "The most exposed image of each", tag("div", *cards, class_="cards")),
        _same(found, redact=redact),
        Part("success", "How much is read", _success(found)),
        Part("verdicts", "Verdicts", _verdicts(found)),
        Part("threat", "Threat models", _threats(found)),
        Part("again", "Run it again", _again(found)),
    ]
    drawn = Drawn(
        said, lead.strip(), [part for part in parts if part], _table(found, redact=redact), wide=True, tone=tone
    )
    return kept.document(title, "".join(about), drawn, redact=redact)


def _table(found: Sequence[Named], *, redact: bool) -> Html:
    """A row an audit: its most exposed image, its verdict and evidence, the strongest attack and what that reaches."""
    names = ["Audit", *([] if redact else ["Original and reconstruction"]), "Verdict", "Evidence", "Images read"]
    names, numbers = [*names, "Strongest attack"], ("Mean SSIM", "Best SSIM", "Time")
    head = tag(
        "tr",
        *(tag("th", name, scope="col") for name in names),
        *(tag("th", name, scope="col", class_="n") for name in numbers),
    )
    rows = []
    for at, each in enumerate(found):
        scores = each.result.scores
        kind = {Kind.LEAKS: "read", Kind.INCONCLUSIVE: "short", Kind.NOT_SHOWN: "hidden"}[each.found.kind]
        unseen = each.found.kind is Kind.LEAKS and not scores.success.hits  # no image, but something else
        defense = brief(each.result.settings.get("defense")) or "no defense"
        best = gallery.ranked(each.result)[0]
        rival = [one for one in gallery.rivals(each.result) if one.name == each.result.settings["attack_name"]][:1]
        shown = gallery.pictures(each.result, best, rival or gallery.rivals(each.result)[:1])[:-1]
        rows.append(
            tag(
                "tr",
                tag(
                    "th",
                    tag("b", tag("a", each.name, href=each.page or f"#picture-{at}")),
                    tag("span", defense, class_="note"),
                    scope="row",
                ),
                None if redact else tag("td", tag("div", *(embed(one.image, one.alt, side=64) for one in shown))),
                tag(
                    "td",
                    tag("span", opening.WORDS[each.found.kind].lower(), class_=f"chip {kind}"),
                    tag("span", short(each.found, scores.images), class_="note") if unseen else None,
                ),
                tag("td", evidence.bar(scores.evidence, mini=True), data_value=scores.success.rate),
                tag("td", f"{scores.success.hits:,} of {scores.success.of:,}", class_="w"),
                tag("td", str(each.result.settings["attack_name"])),
                tag("td", f"{scores.nearest['ssim'].mean:.2f}", class_="n"),
                tag("td", f"{scores.worst.ssim:.2f}", class_="n"),
                tag("td", duration(each.result.seconds), class_="n"),
            )
        )
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="panel sorts pictured")
    words = {kind: 0 for each in found for kind in each.result.scores.evidence}
    keys = [
        tag("span", tag("i", class_=f"swatch {said.name}"), kind, class_="key")
        for kind, said in evidence.KINDS.items()
        if kind in words
    ]
    return join([tag("div", table, class_="scroll"), tag("p", *keys, class_="note keys")])


def _same(found: Sequence[Named], *, redact: bool) -> Part | None:
    """Image by image beside each other, where all audits have the same victims."""
    first = found[0].result
    alike = [
        each.result.victims.ids == first.victims.ids and each.result.originals.shape == first.originals.shape
        for each in found
    ]
    if not all(alike) or len({each.name for each in found}) < len(found):
        return None
    tried = [
        Rival(each.name, each.result.images, {(r.victim, r.image): r for r in each.result.records}) for each in found
    ]
    return Part("gallery", "All images", gallery.gallery(first, redact=redact, tried=tried))


def _success(found: Sequence[Named]) -> Html:
    series = {each.name: [r.ssim for r in each.result.records] for each in found[: figures.COLOURS]}
    first = found[0].result
    drawn = figures.success(series, [r.blind_ssim for r in first.records], first.scores.success.threshold)
    words = "The share of images whose SSIM reaches a threshold, by the strongest attack of each audit. "
    left = f"Left out: {len(found) - len(series):,} more. " if len(found) > len(series) else ""
    return charts.side_by_side(
        sections.drawing(drawn, "Success over thresholds.", words + left, charts.legend(list(series)))
    )


def _verdicts(found: Sequence[Named]) -> Html:
    rows = [
        (tag("b", each.name), " ".join([each.found.sentence, *each.found.details]), tag("code", each.found.settles))
        for each in found
    ]
    if not any(each.found.settles for each in found):
        return sections.table(("Audit", "What it says"), [row[:2] for row in rows])
    return sections.table(("Audit", "What it says", "What would settle it"), rows)


def _threats(found: Sequence[Named]) -> Html:
    """The threat model, once where it is that of all."""
    by: dict[str, list[str]] = {}
    for each in found:
        by.setdefault(" ".join(granted(each.result.threat)), []).append(each.name)
    names: Mapping[str, str] = {text: "" if len(by) == 1 else listed(whose) for text, whose in by.items()}
    return join([join([tag("h3", name) if name else None, tag("p", text)]) for text, name in names.items()])


def _again(found: Sequence[Named]) -> Html:
    commands = "\n".join(each.result.command for each in found if each.result.command)
    versions = " · ".join(f"{k} {v}" for k, v in found[0].result.environment.items())
    works = sorted({work for each in found for work in provenance.used(each.result)})
    return join(
        [
            sections.again(commands) if commands else None,
            tag("p", versions, class_="note"),
            tag("p", "Attacks and defenses come from:") if works else None,
            tag("ul", *(tag("li", provenance.WORKS[work]) for work in works)) if works else None,
        ]
    )
