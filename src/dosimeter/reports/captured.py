"""The page of a captured update."""

from dosimeter.auditing import Captured
from dosimeter.auditing.captured.weighing import weigh_captured
from dosimeter.auditing.verdict import Kind
from dosimeter.reports import figures, gallery, opening, plot, provenance, sections, standing
from dosimeter.reports.gallery import Picture
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.pictures import THUMBNAIL, embed
from dosimeter.reports.sections import Part
from dosimeter.reports.words import number, verdict


def main(result: Captured, *, redact: bool = False) -> list[Html]:
    """The parts in reading order."""
    judged = result.judged
    about = "The truth was given for scores alone; the attack did not see it." if judged else standing.UNSEEN
    found = weigh_captured(result)
    left = tag(
        "div",
        tag("p", opening.WORDS[found.kind], class_="kind"),
        tag("h2", found.sentence),
        tag("p", verdict(judged), class_="lead") if judged else None,
        tag("p", standing.said(result)),
    )
    more = tag("div", tag("p", standing.CAVEAT + about, class_="note"), _tiles(result), class_="wide")
    whole = None
    if judged and not redact:
        whole = gallery.most_exposed(judged, "The most exposed image")
    parts = [
        Part("images", "What the attack made of it", _images(result)) if not judged and not redact else None,
        Part("gallery", "All images", gallery.gallery(judged, redact=redact)) if judged else None,
        Part("certain", "What is certain", _certain(result, redact=redact)),
        Part("shadows", "Beside updates of other images", _shadows(result)),
        Part("scores", "Scores beside the truth", sections.scores(judged)) if judged else None,
        Part("search", "How it went", _figures(result)),
        Part("threat", "Threat model", sections.threat(result)),
        Part("settings", "Settings", sections.settings(result)),
        Part("again", "Run it again", provenance.again(result, {})),
        Part("cite", "How to cite", provenance.cite(result)),
    ]
    tone = _tone(found.kind, seen=judged is not None)
    shown = tag("p", opening.LEFT_OUT, class_="banner") if redact else None
    first = tag("section", left, tag("div", whole) if whole else None, shown, more, class_=tone)
    return [sections.banners(result), first, *sections.laid(parts)]


def _tone(kind: Kind, *, seen: bool) -> str:
    """Loud where it leaks; calm only beside the truth, since without it nobody can say that a picture is wrong."""
    return f"verdict {'loud' if kind is Kind.LEAKS else 'calm' if kind is Kind.NOT_SHOWN and seen else 'warm'}"


def _tiles(result: Captured) -> Html:
    """The few numbers that matter, large."""
    one, beside, match = result.scores.certificate, result.scores.shadows, result.scores.match
    share = "none" if not one.share else f"{100 * one.share:.0f} %"
    shown = [sections.tile("Certain of the image", share, one.verdict or "not solved for")]
    if match is not None:
        place = f"place {beside.rank} of {(beside.updates or 0) + 1} with the shadows" if beside.rank else ""
        shown.append(sections.tile("Matching loss", number(match), *filter(None, [place])))
    if beside.success:
        shown.append(sections.share_tile("Shadows' images read", beside.success))
    if result.judged:
        shown.append(sections.tile("SSIM with the truth", f"{result.judged.scores.nearest['ssim'].mean:.2f}"))
    return tag("dl", *shown, class_="tiles")


def _images(result: Captured) -> Html:
    """Every reconstruction beside what the same attack gives without the update."""
    cells = []
    for record, image, blind in zip(result.records, result.images[0], result.baseline[0], strict=True):
        used = "no label" if record.label_used is None else f"label {record.label_used}"
        who = f"Image {record.image}"
        shown = [
            Picture("reconstruction", image, f"Reconstruction of {who.lower()}, {used}"),
            Picture("without the update", blind, f"What the attack gives for {who.lower()} without the update"),
        ]
        caption = tag("figcaption", tag("b", who), tag("br"), used)
        cells.append(tag("figure", gallery.strip(shown, side=THUMBNAIL), caption, data_name=who))
    note = "Reconstruction on the left; on the right what the same attack gives without the update, by its prior alone."
    return join([tag("p", note, class_="note"), tag("div", *cells, class_="gallery")])


def _certain(result: Captured, *, redact: bool) -> Html:
    body = [(tag("b", what), value, why) for what, value, why in standing.facts(result)]
    table = sections.table(("Of what", "How much", "Why"), body, "rates")
    if result.certified is None or redact:
        return table
    one = result.scores.certificate
    words = "The certain image" if one.verdict == "recovered" else "What is certain, the rest filled in smoothly"
    picture = embed(result.certified[0, 0], f"{words}, by the {one.attack} attack", side=THUMBNAIL)
    figure = tag("figure", picture, tag("figcaption", tag("b", words), tag("br"), f"by {one.attack}"))
    return join([table, tag("div", figure, class_="gallery")])


def _shadows(result: Captured) -> Html:
    if why := result.scores.shadows.left_out:
        return tag("p", f"Left out: {why}.")
    source = result.settings.get("shadows", "the caller's")
    note = (
        f"Shadows are images of the auditor's own ({source}): their updates are made and attacked like this one, and "
    )
    note += "their truth is known. They speak for this update as far as its images resemble them."
    body = [(tag("b", share.name), share.text, share.note) for share in standing.rates(result)]
    table = sections.table(("Rate", "With its 95 % interval", "Of what"), body, "rates")
    return join([tag("p", note, class_="note"), table])


def _figures(result: Captured) -> Html:
    lines = "How far the reconstruction's update is from the captured one."
    parts = [sections.drawing(figures.curves(result.curve), "Matching loss.", lines)]
    if result.scores.shadows.rank and (cloud := _cloud(result)):
        words = "A dot for every shadow update, red where it was read; the dashed line is the captured update's match."
        parts.append(sections.drawing(cloud, "Shadows by match and SSIM.", words))
    return tag("div", *parts, class_="figures")


def _cloud(result: Captured) -> Html | None:
    """Shadows by matching loss, on a logarithmic axis, and mean SSIM; the captured update's loss across."""
    beside, match = result.scores.shadows, result.scores.match or 0.0
    dots = [(m, s) for m, s in zip(beside.matches or (), beside.ssim or (), strict=True) if m is not None and m > 0]
    if not dots or match <= 0 or beside.success is None:
        return None
    frame, least = plot.Frame(), min(0.0, *(s for _, s in dots))
    across, below = plot.logarithmic([match, *(m for m, _ in dots)], frame.x)

    def up(value: float) -> float:
        return frame.y((value - least) / (1 - least))

    left = [(up(fifth / 5), f"{fifth / 5:.1f}") for fifth in range(6)]
    edge, threshold = across(match), beside.success.threshold
    return plot.figure(
        f"SSIM over matching loss of {len(dots):,} shadow updates; the captured update's loss is {number(match)}.",
        plot.axes(frame, left, below, x="matching loss", y="SSIM"),
        tag(
            "g",
            *(
                tag("circle", cx=plot.at(across(m)), cy=plot.at(up(s)), r=4, class_="hit" if s >= threshold else "with")
                for m, s in dots
            ),
        ),
        plot.straight((edge, frame.top), (edge, frame.bottom), "threshold"),
    )
