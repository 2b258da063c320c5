"""Originals beside their reconstructions."""

from collections.abc import Sequence

from torch import Tensor

from dosimeter.auditing import ImageRecord, Result
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.pictures import THUMBNAIL, embed
from dosimeter.reports.words import count, number, shown, ssim

MOST = 128
"""Images in the gallery; the run's folder has them all."""
ABREAST = 8
"""Victims in the table of what every attack saw."""


def ranked(result: Result) -> list[ImageRecord]:
    """Records by SSIM, the most exposed image first."""
    return sorted(result.records, key=ssim, reverse=True)


def highlights(result: Result) -> Html:
    """The most exposed, the median and the least exposed image, each with what the attack gives without the update."""
    order = ranked(result)
    chosen = {0: "Most exposed"}
    if len(order) > 2:
        chosen[len(order) // 2] = "Median"
    if len(order) > 1:
        chosen[len(order) - 1] = "Least exposed"
    return tag("div", *(_highlight(result, order[place], name) for place, name in chosen.items()), class_="highlights")


def every_attack(result: Result) -> Html:
    """The same images as every attack of a panel saw them, a row an attack, under the originals."""
    ran = [(each.attack, each.result.images) for each in result.panel if each.result]
    shown = [("original", result.originals), *ran]
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
    notes = ["Original on the left, reconstruction on the right; the most exposed first."]
    if left_out > 0:
        notes.append(f"Left out: the {count(left_out, 'image')} with the lowest SSIM.")
    if max(result.victims.shape[1:]) > THUMBNAIL:
        notes.append("Pictures are reduced here.")
    cells = [_cell(result, record) for record in order[:MOST]]
    return join([tag("p", " ".join(notes), class_="note"), tag("div", *cells, class_="gallery")])


def _highlight(result: Result, record: ImageRecord, name: str) -> Html:
    original, image, blind = _images(result, record)
    about = f"{_who(result, record)}, {_label(record)}"
    trio = [
        _captioned(embed(original, f"Original: {about}"), "original"),
        _captioned(embed(image, f"Reconstruction of {about}"), "reconstruction"),
        _captioned(embed(blind, f"What the attack gives for {about} without the update"), "without the update"),
    ]
    floor = record.baseline or {}
    lines = [
        tag("tr", tag("th", label, scope="row"), _td(record.scores[key], unit), _td(floor.get(key), unit))
        for key, label in shown(result).items()
        for unit in ("dB" if key == "psnr" else "",)
    ]
    head = tag("thead", tag("tr", tag("td"), tag("th", "with update", scope="col"), tag("th", "without", scope="col")))
    table = tag("table", head, tag("tbody", *lines), class_="small")
    text = tag("div", tag("h3", name), tag("p", about, class_="who"), table)
    return tag("article", tag("div", *trio, class_="trio"), text, class_="card")


def _cell(result: Result, record: ImageRecord) -> Html:
    original, image, _ = _images(result, record)
    who, scores = _who(result, record), f"SSIM {number(record.scores['ssim'])}, PSNR {number(record.scores['psnr'])} dB"
    pair = [
        embed(original, f"Original: {who}", reduce=True),
        embed(image, f"Reconstruction of {who}, {scores}", reduce=True),
    ]
    verdict = tag("span", "read", class_="chip hit") if record.read else None
    caption = tag("figcaption", tag("b", who), verdict, tag("br"), _label(record), tag("br"), scores)
    update = None if record.image else result.victims.ids[record.victim]  # all images of a batch have it
    return tag("figure", tag("div", *pair, class_="pair"), caption, title=update)


def _captioned(image: Html, text: str) -> Html:
    return tag("figure", image, tag("figcaption", text))


def _td(value: object, unit: str) -> Html:
    return tag("td", f"{number(value)} {unit}".strip())


def _images(result: Result, record: ImageRecord) -> Sequence[Tensor]:
    """Original, reconstruction and the image without the update of a record, (C, H, W) each."""
    v, b = record.victim, record.image
    return result.victims.images[v, b], result.images[v, b], result.baseline[v, b]


def _who(result: Result, record: ImageRecord) -> str:
    place = f"victim {record.victim}" if result.victims.batch > 1 else ""
    return f"Image {record.index}" + (f" ({place})" if place else "")


def _label(record: ImageRecord) -> str:
    """The label, and what the attack took it for where that differs."""
    text = str(record.label)
    shown = f"label {text if len(text) <= 24 else text[:23] + '…'}"
    used = record.label if record.labels_right is None else record.label_used
    return shown if used == record.label else f"{shown}, {'not told' if used is None else f'taken for {used}'}"
