"""Words for parts, which several presets share."""

from typing import Any, Literal, TypeVar

from dosimeter.attacks import labels as labels_
from dosimeter.attacks import masks, moves, treatments
from dosimeter.errors import SettingError, unknown

T = TypeVar("T")

LABELS: dict[str, labels_.Labels] = {
    "known": labels_.Known(),
    "idlg": labels_.FromLastLayer(),
    "counts": labels_.Counts(),
}

Ignore = Literal["nothing", "noise", "bottleneck"]
"""Which tensors are left out of the match: none, those that noise drawn inside the model touches (CVB, Eq. 4), or the
whole bottleneck that draws it and all after it (PPP, Eq. 4)."""

IGNORED: dict[str, masks.Mask] = {
    "nothing": masks.Everything(),
    "noise": masks.BeforeNoise(encoder=True),
    "bottleneck": masks.BeforeNoise(encoder=False),
}

Secrets = Literal["resampled", "guessed", "mean", "joint", "known"]
"""What is supposed of numbers that clients draw inside the model; see `treatments`."""


def treat(secrets: Secrets, draws: int = 1) -> treatments.Treatment:
    """The treatment of that name."""
    needless("draws", draws != 1 and secrets != "resampled", f"secrets={secrets}", "nothing is drawn anew")
    choices: dict[str, treatments.Treatment] = {
        "resampled": treatments.Resampled(draws=draws),
        "guessed": treatments.Guessed(),
        "mean": treatments.Mean(),
        "joint": treatments.Joint(),
        "known": treatments.Known(),
    }
    return pick("secrets", secrets, choices)


def moving(*, box: bool = True, median: int | None = None, langevin: float = 0.0) -> tuple[moves.Move, ...]:
    """What follows every step, in the papers' order: noise, the box, the filter."""
    filters = () if median is None else (moves.Median(every=median),)
    noise = (moves.Langevin(size=langevin),) if langevin else ()
    return (*noise, *((moves.Box(),) if box else ()), *filters)


def given(**settings: Any) -> dict[str, Any]:
    """The settings that were given; others keep the part's own default."""
    return {key: value for key, value in settings.items() if value is not None}


def needless(setting: str, there: bool, beside: str, why: str) -> None:
    """Refuse a setting that was given and would do nothing."""
    if there:
        raise SettingError(f"{setting} does nothing beside {beside}, since {why}; leave one of them out.")


def pick(setting: str, value: str, choices: dict[str, T]) -> T:
    if value not in choices:
        raise SettingError(unknown(f"value of {setting}", value, choices))
    return choices[value]
