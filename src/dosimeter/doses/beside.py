"""The dose beside what attacks reached: an estimate from above and a search from below, image by image."""

from collections.abc import Sequence
from statistics import correlation, mean, stdev
from typing import NamedTuple

from dosimeter.auditing import Result
from dosimeter.doses.result import Doses

NEAR, WIDE = 3.0, 6.0
"""dB between dose and attack up to which the two agree, and from which one of them is weak."""


class Pair(NamedTuple):
    """One image: PSNR of the dose's reader on it and of the best attack."""

    id: str
    place: int
    predicted: float
    reached: float
    attack: str


class Beside(NamedTuple):
    """All images."""

    pairs: tuple[Pair, ...]
    correlation: float | None
    gap: float  # mean of predicted - reached
    sentence: str


def beside(doses: Doses, result: Result) -> Beside | None:
    """Every image that both say something of; None where there is none."""
    told = {(each.id, each.place): each.here for each in doses.images if each.here is not None}
    best: dict[tuple[str, int], tuple[float, str]] = {}
    for name, found in _tried(result):
        for record in found.records:
            key = (found.victims.ids[record.victim], record.image)
            score = record.scores.get("psnr")
            if score is not None and key in told and score > best.get(key, (-1e9, ""))[0]:
                best[key] = (score, name)
    pairs = tuple(Pair(*key, told[key], *best[key]) for key in told if key in best)
    if not pairs:
        return None
    above, below = [pair.predicted for pair in pairs], [pair.reached for pair in pairs]
    gaps = [a - b for a, b in zip(above, below, strict=True)]
    related = correlation(above, below) if len(pairs) > 2 and stdev(above) > 0 and stdev(below) > 0 else None
    return Beside(pairs, related, mean(gaps), _sentence(doses, above, below, gaps))


def _tried(result: Result) -> list[tuple[str, Result]]:
    """All attacks that are no controls."""
    tried = [(each.attack, each.result) for each in result.panel if each.role != "control" and each.result is not None]
    return tried or [(str(result.settings["attack_name"]), result)]


def _sentence(doses: Doses, above: Sequence[float], below: Sequence[float], gaps: Sequence[float]) -> str:
    said = (
        f"By its dose a linear reader with the {doses.prior} prior comes to {mean(above):.1f} dB on these images; the "
    )
    said += f"best attack on each reaches {mean(below):.1f} dB"
    spread = stdev(gaps) if len(gaps) > 1 else 0.0
    if mean(gaps) > WIDE:
        return f"{said}: a wide gap, so the attacks are weak here, or the update's folds hide what its slopes tell."
    if mean(gaps) < -max(1.0, 2 * spread / len(gaps) ** 0.5):
        return f"{said}, which is more: it knows what this reader does not, such as which neurons are off."
    return (
        f"{said}: the two agree."
        if mean(gaps) <= NEAR
        else f"{said}, which leaves some of what the update tells unread."
    )
