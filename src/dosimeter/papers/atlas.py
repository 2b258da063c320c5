"""The map of the field as a page: what holds, what does not, at what price, and every attack behind it."""

from collections.abc import Sequence

from dosimeter.papers.field import DEFENSES, MODELS, Place, cut_of
from dosimeter.papers.item import Scale
from dosimeter.sweeps.table import as_table

HEAD = """# The map of the field

Every defense under every attack that is made for it, on an MLP, the CNN of the CVB paper and a ViT, before and after
some training, on images of CIFAR-10. A cell says how many images the strongest attack reads, and of the others how many
are *hidden*: what was found explains the update as well as the truth does. Where searches *fell short*, or what they
found *does not fit*, nothing is said of the defense (*undecided* in the figure): longer searches may read it. It is
written by

    {command}

on {machine}. {cut}"""


def page(places: Sequence[Place], scale: Scale, *, command: str, machine: str, figure: str = "") -> str:
    """The whole page."""
    parts = [HEAD.format(command=command, machine=machine, cut=f"{cut_of(scale)}.")]
    if figure:
        parts.append(f"![the map]({figure})")
    parts += ["## What is read, and at what price", _summary(places), "## Attack by attack", _attacks(places)]
    if missing := [each for each in places if each.why_not]:
        parts += ["## What does not go together", _missing(missing)]
    return "\n\n".join(parts) + "\n"


def _summary(places: Sequence[Place]) -> str:
    by = {(each.defense, each.model, each.trained): each for each in places}
    models = [name for name in MODELS if any(each.model == name for each in places)]
    head = ["defense"]
    for model in models:
        head += [f"{model}, untrained", f"{model}, trained", f"{model}, accuracy"]
    rows = []
    for defense in [name for name in DEFENSES if any(each.defense == name for each in places)]:
        row = [defense]
        for model in models:
            first, second = (by.get((defense, model, trained)) for trained in (False, True))
            plain = by.get(("none", model, True))
            row += [_cell(first), _cell(second), _price(second, plain)]
        rows.append(row)
    return as_table(head, rows)


def _cell(place: Place | None) -> str:
    if place is None or place.why_not:
        return "-"
    hits, of = place.read
    return f"{hits} of {of} read" if hits == of else f"{hits} of {of} read; {place.evidence}"


def _price(place: Place | None, plain: Place | None) -> str:
    """Accuracy, and how far it is from that without a defense."""
    if place is None or place.accuracy is None:
        return "-"
    if plain is None or plain.accuracy is None or place.defense == "none":
        return f"{place.accuracy:.1f} %"
    return f"{place.accuracy:.1f} % ({place.accuracy - plain.accuracy:+.1f})"


def _attacks(places: Sequence[Place]) -> str:
    rows = [
        [
            each.defense,
            each.model,
            "trained" if each.trained else "untrained",
            f"`{attack.attack}`",
            f"{attack.read} of {attack.of}",
            f"{attack.ssim:.2f}",
            attack.evidence,
        ]
        for each in places
        for attack in each.attacks
    ]
    return as_table(["defense", "model", "", "attack", "images read", "SSIM", "evidence"], rows)


def _missing(places: Sequence[Place]) -> str:
    told = dict.fromkeys((each.defense, each.model, each.why_not) for each in places)
    return as_table(["defense", "model", "why"], [list(each) for each in told])
