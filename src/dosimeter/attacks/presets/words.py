"""Words for parts, which several presets share."""

from typing import Literal, TypeVar

from dosimeter.attacks import labels as labels_
from dosimeter.attacks import masks, treatments
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
    choices: dict[str, treatments.Treatment] = {
        "resampled": treatments.Resampled(draws=draws),
        "guessed": treatments.Guessed(),
        "mean": treatments.Mean(),
        "joint": treatments.Joint(),
        "known": treatments.Known(),
    }
    return pick("secrets", secrets, choices)


def pick(setting: str, value: str, choices: dict[str, T]) -> T:
    if value not in choices:
        raise SettingError(unknown(f"value of {setting}", value, choices))
    return choices[value]
