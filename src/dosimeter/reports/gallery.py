"""Originals beside their reconstructions: all images of a run, to be sorted, filtered and enlarged."""

from collections import Counter
from typing import NamedTuple

from torch import Tensor

from dosimeter.auditing import ImageRecord, Result
from dosimeter.reports.evidence import KINDS
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.pictures import embed, side_of
from dosimeter.reports.words import count, number, ordered

MOST = 6000
"""Pictures in a gallery; the run's folder has them all."""
ROW = 4
"""Pictures of an image from which it has a row of its own."""
CLASSES = 100
"""Labels to filter by."""


class Picture(NamedTuple):
    """One picture of an image: what it is, its pixels, a text for who does not see it, its SSIM."""

    name: str
    image: Tensor  # (C, H, W)
    alt: str
    ssim: float | None = None
    blind: bool = False  # made without the update


class Rival(NamedTuple):
    """An attack in the gallery, with its records by victim and image."""

    name: str
    images: Tensor  # (V, B, C, H, W)
    records: dict[tuple[int, int], ImageRecord]


def ranked(result: Result) -> list[ImageRecord]:
    """Records by SSIM, the most exposed image first."""
    return sorted(result.records, key=lambda record: record.ssim, reverse=True)


def rivals(result: Result) -> list[Rival]:
    """Every attack that ran, the strongest first; the one alone where there was no panel."""
    ran = [(each.attack, each.result) for each in ordered(result) if each.result is not None]
    found = ran or [("reconstruction", result)]
    return [Rival(name, each.images, {(r.victim, r.image): r for r in each.records}) for name, each in found]


def pictures(result: Result, record: ImageRecord, tried: list[Rival]) -> list[Picture]:
    """The original, what the client trained on if that is another, each attack's reconstruction, the blind one."""
    v, b, who = record.victim, record.image, _who(result, record)
    found = [Picture("original", result.originals[v, b], f"Original: {who}, {_label(record)}")]
    if result.transformed is not None:
        found.append(Picture("trained on", result.transformed[v, b], f"What the client trained on: {who}"))
    for name, images, records in tried:
        if own := records.get((v, b)):  # an attack that was interrupted has fewer than the others
            by = "" if name == "reconstruction" else f" by {name}"
            alt = f"Reconstruction of {who}{by}, {_said(own.nearest)}"
            found.append(Picture(name, images[v, b], alt, own.ssim))
    alt = f"What the attack gives for {who} without the update, SSIM {record.blind_ssim:.2f}"
    return [*found, Picture("without the update", result.baseline[v, b], alt, record.blind_ssim, blind=True)]


def strip(shown: list[Picture], *, side: int | None = None) -> Html:
    """Pictures in a row, which open enlarged."""
    cells = [
        tag(
            "span",
            embed(each.image, each.alt, side=side),
            tag("small", None if each.ssim is None else join([tag("b", f"{each.ssim:.2f}"), " "]), each.name),
            class_="blind" if each.blind else None,
        )
        for each in shown
    ]
    return tag("button", *cells, class_="strip", type="button")


def most_exposed(result: Result, name: str, *, id_: str | None = None, link: str = "", redact: bool = False) -> Html:
    """A card with the image that the attack read best; `link` leads to a page of its own."""
    record = ranked(result)[0]
    only = [each for each in rivals(result) if not result.panel or each.name == result.settings["attack_name"]][:1]
    shown = None if redact else strip(pictures(result, record, only), side=256)
    told = f"{_who(result, record)}, {_label(record)}: {_said(record.nearest)}; {_floor(record)}"
    more = [tag("br"), tag("a", "its own page", href=link)] if link else []
    parts = [tag("h3", name), shown, tag("figcaption", told, *more)]
    return tag("figure", *parts, class_="card", id=id_, data_name=name)


def gallery(result: Result, *, redact: bool = False, tried: list[Rival] | None = None) -> Html:
    """All images, the most exposed first, as many as a page can show.

    Args:
        tried: what is shown beside the originals, every attack that ran by default.
    """
    own, order = tried is None, ranked(result)
    tried = tried or rivals(result)
    per = len(tried) + 2 + (result.transformed is not None)
    most = max(1, MOST // per)
    side = side_of(per * min(most, len(order)), result.victims.shape[0])
    notes = []
    if redact:
        notes.append("Pictures are left out of this page; scores stand for them.")
    elif len(tried) > 1:
        notes.append("Under each reconstruction stands its SSIM. Choose a row to enlarge it.")
    else:
        notes.append("The original, then the reconstruction with its SSIM. Choose a pair to enlarge it.")
    if len(order) > most:
        notes.append(f"Left out: the {count(len(order) - most, 'image')} with the lowest SSIM.")
    if not redact and max(result.victims.shape[1:]) > side:
        notes.append("Pictures are reduced here.")
    cells = [_cell(result, record, tried, None if redact else side, own=own) for record in order[:most]]
    kind, size = "gallery rows" if per > ROW else "gallery", wide_of(per)
    shown = tag("div", *cells, class_=kind, id="images", style=f"--shown: {per - 1}; --side: {size}rem")
    return join([tag("p", " ".join(notes), class_="note"), _tools(order[:most], tried, size, own=own), shown])


def wide_of(many: int) -> float:
    """How wide each of so many pictures of an image is, in rem."""
    return max(4.5, min(7.0, 52 // many)) if many > ROW else 5.5


def _tools(records: list[ImageRecord], tried: list[Rival], wide: float, *, own: bool) -> Html:
    """What the gallery is sorted and filtered by."""
    sorts = {"ssim down": "most exposed first", "ssim up": "least exposed first", "place up": "as in the run"}
    sorts |= {"gain down": "gain over no update"} if own else {}
    if len(tried) > 1:
        sorts |= {f"#{at} down": f"SSIM of {each.name}" for at, each in enumerate(tried)}
    kinds = Counter(record.evidence for record in records if record.evidence)
    chosen = {"": f"all ({len(records):,})"}
    chosen |= {KINDS[kind].name: f"{kind} ({kinds[kind]:,})" for kind in KINDS if kind and kinds[kind]}
    labels = sorted({str(record.label) for record in records}, key=lambda text: (len(text), text))
    found = [("Sort", "sort", sorts), *([("Show", "kind", chosen)] if own else [])]
    if 1 < len(labels) <= CLASSES:
        found.append(("Label", "label", {"": "all"} | {each: each for each in labels}))
    parts = [
        tag("label", text, tag("select", *(tag("option", said, value=v) for v, said in offered.items()), name=name))
        for text, name, offered in found
    ]
    size = tag("input", type="range", name="size", min="3", max="14", step="0.25", value=wide)
    parts += [tag("label", "Size", size), tag("output", aria_live="polite")]
    return tag("div", *parts, class_="tools", data_for="images", role="group", aria_label="Order and filters")


def _cell(result: Result, record: ImageRecord, tried: list[Rival], side: int | None, *, own: bool) -> Html:
    """An image with its pictures and, where they are of one audit, its `own` scores and evidence."""
    who, kind = _who(result, record), record.evidence if own else None
    shown = pictures(result, record, tried)
    lines = [_label(record)]
    if own:
        lines.append(_said(record.scores))
        lines += [f"as trained on: {_said(record.transformed.scores)}"] if record.transformed else []
        lines.append(_floor(record))
    chip = tag("span", kind, class_=f"chip {KINDS[kind].name}") if kind in KINDS else None
    each = [found.records.get((record.victim, record.image)) for found in tried]
    best = record.ssim if own else max((one.ssim for one in each if one), default=-1.0)
    return tag(
        "figure",
        None if side is None else strip(shown if own else shown[:-1], side=side),
        tag("figcaption", tag("b", who), chip, *(part for line in lines for part in (tag("br"), line))),
        title=None if record.image else result.victims.ids[record.victim],  # all images of a batch have it
        id=f"image-{record.victim}-{record.image}",
        data_name=who,
        data_ssim=f"{best:.4f}",
        data_gain=f"{record.ssim - record.blind_ssim:.4f}",
        data_place=record.victim * result.victims.batch + record.image,
        data_label=str(record.label),
        data_kind=KINDS[kind].name if kind in KINDS else None,
        data_each=" ".join("-2" if one is None else f"{one.ssim:.4f}" for one in each) if len(tried) > 1 else None,
    )


def _floor(record: ImageRecord) -> str:
    return f"without the update SSIM {record.blind_ssim:.2f}"


def _said(scores: dict[str, float]) -> str:
    return f"SSIM {scores['ssim']:.2f}, PSNR {number(scores['psnr'])} dB"


def _who(result: Result, record: ImageRecord) -> str:
    place = f" (victim {record.victim})" if result.victims.batch > 1 else ""
    return f"Image {record.index}{place}"


def _label(record: ImageRecord) -> str:
    """The label, and what the attack took it for where that differs."""
    text = str(record.label)
    shown = f"label {text if len(text) <= 24 else text[:23] + '…'}"
    used = record.label if record.labels_right is None else record.label_used
    return shown if used == record.label else f"{shown}, {'not told' if used is None else f'taken for {used}'}"
