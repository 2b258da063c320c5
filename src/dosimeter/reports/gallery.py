"""Originals beside their reconstructions."""

from torch import Tensor

from dosimeter.auditing import ImageRecord, Result
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.pictures import THUMBNAIL, embed
from dosimeter.reports.words import count, number, shown

MOST = 128
"""Images in the gallery; the run's folder has them all."""
ABREAST = 8
"""Victims in the table of what every attack saw."""


def ranked(result: Result) -> list[ImageRecord]:
    """Records by SSIM, the most exposed image first."""
    return sorted(result.records, key=lambda record: record.ssim, reverse=True)


def highlights(result: Result) -> Html:
    """The most exposed, the median and the least exposed image, each with what the attack gives without the update."""
    order = ranked(result)
    chosen = {0: "Most exposed"}
    if len(order) > 2:
        chosen[len(order) // 2] = "Median"
    if len(order) > 1:
        chosen[len(order) - 1] = "Least exposed"
    return tag("div", *(_highlight(result, order[place], name) for place, name in chosen.items()), class_="highlights")


def most_exposed(result: Result) -> Html:
    """The image that the attack read best."""
    return _highlight(result, ranked(result)[0], "Most exposed")


def every_attack(result: Result) -> Html:
    """The same images as every attack of a panel saw them, a row an attack, under the originals."""
    ran = [(each.attack, each.result.images) for each in result.panel if each.result]
    made = [] if result.transformed is None else [("trained on", result.transformed)]
    shown = [("original", result.originals), *made, *ran]
    rows = [
        tag(
            "tr",
            tag("th", name),
            # An attack that was interrupted has fewer than the others.
            *(tag("td", embed(x[0], f"victim {v}, {name}", reduce=True)) for v, x in enumerate(images[:ABREAST])),
        )
        for name, images in shown
    ]
    return tag("div", tag("table", tag("tbody", *rows), class_="attacks"), class_="scroll")


def gallery(result: Result) -> Html:
    """All images, the most exposed first, up to MOST."""
    order = ranked(result)
    left_out = len(order) - MOST
    middle = "" if result.transformed is None else "in the middle what the client trained on, "
    notes = [f"Original on the left, {middle}reconstruction on the right; the most exposed first."]
    if left_out > 0:
        notes.append(f"Left out: the {count(left_out, 'image')} with the lowest SSIM.")
    if max(result.victims.shape[1:]) > THUMBNAIL:
        notes.append("Pictures are reduced here.")
    cells = [_cell(result, record) for record in order[:MOST]]
    return join([tag("p", " ".join(notes), class_="note"), tag("div", *cells, class_="gallery")])


def _highlight(result: Result, record: ImageRecord, name: str) -> Html:
    about = f"{_who(result, record)}, {_label(record)}"
    pictures = [
        _captioned(embed(image, f"{said}{about}{after}"), name)
        for name, (image, said, after) in _images(result, record).items()
    ]
    one, own = record.transformed or record, record.scores if record.transformed else {}
    lines = []
    for key, label in shown(result).items():
        values = [one.scores[key], (one.baseline or {}).get(key), *([own[key]] if own else [])]
        unit = "dB" if key == "psnr" else ""
        lines.append(tag("tr", tag("th", label, scope="row"), *(_td(value, unit) for value in values)))
    names = ["as trained on", "without", "original"] if own else ["with update", "without"]
    head = tag("thead", tag("tr", tag("td"), *(tag("th", text, scope="col") for text in names)))
    table = tag("table", head, tag("tbody", *lines), class_="small")
    text = tag("div", tag("h3", name), tag("p", about, class_="who"), table)
    wide = "trio" if len(pictures) == 3 else "trio four"
    return tag("article", tag("div", *pictures, class_=wide), text, class_="card")


def _cell(result: Result, record: ImageRecord) -> Html:
    who, scores = _who(result, record), _said(record.scores)
    rows = [tag("br"), scores]
    if made := record.transformed:
        rows += [tag("br"), f"as trained on: {_said(made.scores)}"]
    shown = [each for name, each in _images(result, record).items() if name != "without the update"]
    pair = [embed(image, f"{said}{who}{after}", reduce=True) for image, said, after in shown]
    verdict = tag("span", "read", class_="chip hit") if record.read else None
    caption = tag("figcaption", tag("b", who), verdict, tag("br"), _label(record), *rows)
    update = None if record.image else result.victims.ids[record.victim]  # all images of a batch have it
    wide = "pair" if len(pair) == 2 else "pair three"
    return tag("figure", tag("div", *pair, class_=wide), caption, title=update)


def _captioned(image: Html, text: str) -> Html:
    return tag("figure", image, tag("figcaption", text))


def _td(value: object, unit: str) -> Html:
    return tag("td", f"{number(value)} {unit}".strip())


def _images(result: Result, record: ImageRecord) -> dict[str, tuple[Tensor, str, str]]:
    """{caption: an image of a record (C, H, W), what is said before and after whose it is}"""
    v, b = record.victim, record.image
    made = {}
    if result.transformed is not None:
        made["trained on"] = (result.transformed[v, b], "What the client trained on: ", "")
    return {
        "original": (result.victims.images[v, b], "Original: ", ""),
        **made,
        "reconstruction": (result.images[v, b], "Reconstruction of ", f", {_said(record.scores)}"),
        "without the update": (result.baseline[v, b], "What the attack gives for ", " without the update"),
    }


def _said(scores: dict[str, float]) -> str:
    return f"SSIM {number(scores['ssim'])}, PSNR {number(scores['psnr'])} dB"


def _who(result: Result, record: ImageRecord) -> str:
    place = f"victim {record.victim}" if result.victims.batch > 1 else ""
    return f"Image {record.index}" + (f" ({place})" if place else "")


def _label(record: ImageRecord) -> str:
    """The label, and what the attack took it for where that differs."""
    text = str(record.label)
    shown = f"label {text if len(text) <= 24 else text[:23] + '…'}"
    used = record.label if record.labels_right is None else record.label_used
    return shown if used == record.label else f"{shown}, {'not told' if used is None else f'taken for {used}'}"
