"""The first screen of an audit's page: the verdict, its evidence, and the picture that proves it."""

from dosimeter.auditing import Result
from dosimeter.auditing.verdict import Kind, Verdict, weigh
from dosimeter.reports import evidence, gallery, sections
from dosimeter.reports.gallery import Picture
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.pictures import embed
from dosimeter.reports.words import labels_said, meaning, short, verdict

TONES = {Kind.LEAKS: "loud", Kind.INCONCLUSIVE: "warm", Kind.NOT_SHOWN: "calm"}
WORDS = {Kind.LEAKS: "LEAKS", Kind.INCONCLUSIVE: "CANNOT TELL", Kind.NOT_SHOWN: "NO LEAK SHOWN"}
LEFT_OUT = "Originals and reconstructions are left out of this page, as was asked; scores stand for them."


def opening(result: Result, *, redact: bool = False) -> Html:
    """Verdict and evidence on one side, the most exposed image on the other, the few numbers that matter below."""
    found = weigh(result)
    by = f" by the strongest attack, {result.settings['attack_name']}" if result.panel else ""
    counts = result.scores.evidence
    bar = join(
        [
            tag("p", f"What is known of {len(result.records):,} images{by}:", class_="note"),
            evidence.bar(counts),
            evidence.legend(counts),
        ]
    )
    told = [
        tag("p", *sections.unbroken(text))
        for text in (
            " ".join(found.details),
            result.verdict or verdict(result),
            f"{labels_said(result)} {meaning(result)}",
        )
        if text.strip()
    ]
    left = tag("div", *stated(found, short(found, len(result.records))), bar if counts else None)
    right = tag("div", tag("p", LEFT_OUT, class_="banner") if redact else _proof(result))
    more = tag("div", sections.tiles(result), sections.folded("What this verdict rests on", *told), class_="wide")
    return tag("section", left, right, more, class_=f"verdict {TONES[found.kind]}")


def stated(found: Verdict, said: str) -> list[Html | None]:
    """A verdict: its kind in a word, itself in a short sentence and in a longer one, and what would settle it."""
    return [
        tag("p", WORDS[found.kind], class_="kind"),
        tag("h2", *sections.unbroken(said)),
        tag("p", *sections.unbroken(found.sentence), class_="lead") if found.sentence != said else None,
        tag("p", "To settle it: ", tag("code", found.settles)) if found.settles else None,
    ]


def _proof(result: Result) -> Html:
    """The most exposed image: original, reconstruction, and what the attack gives without the update."""
    record = gallery.ranked(result)[0]
    name = result.settings["attack_name"]
    tried = [each for each in gallery.rivals(result) if each.name in (name, "reconstruction")][:1]
    shown = gallery.pictures(result, record, tried)
    cells = [tag("figure", embed(each.image, each.alt), tag("figcaption", *_caption(each, name))) for each in shown]
    near = "what the client trained on" if record.nearest is not record.scores else "its original"
    words = f"The most exposed image, number {record.index} of the data, has an SSIM of {record.ssim:.2f} with {near}; "
    words += f"without the update the same attack comes to {record.blind_ssim:.2f}."
    return join([tag("div", *cells, class_="proof"), tag("p", words, class_="note")])


def _caption(shown: Picture, attack: str) -> list[object]:
    name = f"by {attack}" if shown.name == attack else shown.name
    return [name] if shown.ssim is None else [name, tag("br"), "SSIM ", tag("b", f"{shown.ssim:.2f}")]
