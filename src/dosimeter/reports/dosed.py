"""The dose on a page: by image, by tensor, and beside what attacks reached."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dosimeter import files
from dosimeter.errors import DAMAGED
from dosimeter.reports import charts, pictures, sections
from dosimeter.reports.drawn import Drawn, Entry
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.sections import Part

FILE, BARS = "dose.json", 24
"""Where a run has it; images with a bar of their own, the most exposed ones."""

MANY = 4
"""Pictures in a card from which they stand in several lines."""


def read(folder: Path) -> dict[str, Any] | None:
    """What was kept; None where nothing was, or nothing that can be drawn."""
    try:
        found = files.read_json(folder / FILE)
        if not found.get("images"):
            return None
        beside(found)
    except (OSError, *DAMAGED):
        return None
    return found


def beside(found: Entry) -> Html:
    """The dose of an audit's victims, with how attacks stand to it."""
    told, drawn = [tag("p", found["sentence"])], [by_image(found["images"])]
    if against := found.get("attacks"):
        told.append(tag("p", against["sentence"]))
        drawn.append(_against(against))
    tensors = by_tensor(found["images"])
    return join([*told, charts.side_by_side(*drawn, *tensors)])


def by_image(images: Sequence[Entry]) -> Html:
    """The share of every image's dimensions that its update determines."""
    most = sorted(images, key=lambda each: -each["share"])[:BARS]
    bars = {_name(each): each["share"] for each in most}
    left = f" Left out: {len(images) - len(most):,} with less." if len(images) > len(most) else ""
    words = f"Share of an image's dimensions that its update determines, whatever the attack.{left}"
    return sections.drawing(charts.bars(bars, x="share determined"), "By image.", words)


def by_tensor(images: Sequence[Entry]) -> list[Html]:
    """What each tensor tells of the most exposed image that was asked for it."""
    known = [each for each in images if each.get("tensors")]
    if not known:
        return []
    worst = max(known, key=lambda each: each["share"])
    size = worst["dimensions"]
    alone = {name: each["alone"] / size for name, each in worst["tensors"].items()}
    less = {name: (worst["determined"] - each["without"]) / size for name, each in worst["tensors"].items()}
    name = _name(worst)
    return [
        sections.drawing(
            charts.bars(alone, x="share determined by the tensor alone"), "By tensor, alone.", f"Of {name.lower()}."
        ),
        sections.drawing(
            charts.bars(less, x="share lost without the tensor"),
            "By tensor, left out.",
            f"What the rest of the update no longer determines of {name.lower()}.",
        ),
    ]


def _against(found: Entry) -> Html:
    """A point an image: what the dose lets a linear reader come to, and what the best attack reached."""
    series: dict[str, list[charts.Point]] = {}
    for pair in found["pairs"]:
        series.setdefault(str(pair["attack"]), []).append((pair["predicted"], pair["reached"]))
    drawn = charts.scatter(series, x="PSNR by its dose, in dB", y="best attack, dB", diagonal=True)
    words = "On the dashed line both agree; below it attacks leave unread what the update tells. "
    return sections.drawing(drawn, "Dose and attacks.", words, charts.legend(list(series)))


def _name(each: Entry) -> str:
    place = f" ({each['place'] + 1})" if each.get("place") else ""
    return f"Image {each['number']}{place}"


def page(found: Entry) -> Drawn:
    """Figures of every image and tensor, and pictures of what is determined of each and what is not."""
    names = {"share": "Share of dimensions determined.", "reader": "PSNR of a linear reader in dB."}
    drawn = [
        sections.drawing(charts.lines({key: points}, x="noise, power of 10", y=key), names[key])
        for key, points in found.get("curves", {}).items()
        if points
    ]
    parts = [Part("noise", "Over noise", charts.side_by_side(*drawn))] if drawn else []
    kept = read(found["folder"])
    told = by_tensor(kept["images"]) if kept else []
    if told:
        parts.append(Part("tensors", "By tensor", charts.side_by_side(*told)))
    elif found["tensors"]:
        table = sections.table(found["tensor_head"], found["tensors"], "sorts")
        parts.append(Part("tensors", "Tensors of the most exposed image", table))
    parts += _dose_pictures(found)
    parts.append(Part("figures", "Figures", sections.table(found["head"], found["rows"], "sorts")))
    if kept is None:
        return Drawn("What updates determine under noise.", found["about"], parts, drawn[0] if drawn else None)
    said = f"An update determines {100 * kept['mean']['share']:.0f} % of an image's dimensions."
    bars = by_image(kept["images"])
    worst = max(kept["images"], key=lambda each: (each["determined"], each["bits"] or 0.0))
    first = _dose_strip(found, f"{worst['id']}/{worst['place']}", most=3)
    proof = tag("div", tag("figure", first, data_name="The most exposed image") if first else None, bars)
    return Drawn(said, kept["sentence"], parts, proof)


def _dose_pictures(found: Entry) -> list[Part]:
    """What is determined of each image and what is not."""
    strips = {name: _dose_strip(found, name) for name in found["pictures"]}
    cards = [
        tag("figure", tag("h3", name), strip, class_="card", data_name=name) for name, strip in strips.items() if strip
    ]
    return [Part("pictures", "Pictures", tag("div", *cards, class_="cards"))] if cards else []


def _dose_strip(found: Entry, name: str, most: int | None = None) -> Html | None:
    """The pictures of one image, or the first of them."""
    shown = list(found["pictures"].get(name, {}).items())[:most]
    if not shown or found.get("redact"):
        return None
    cells = [
        tag(
            "span",
            pictures.embed_file(found["folder"] / "pictures" / Path(file).name, f"{name}: {what}"),
            tag("small", what),
        )
        for what, file in shown
    ]
    return tag("button", *cells, class_="strip many" if len(cells) > MANY else "strip", type="button")
