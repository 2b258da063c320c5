"""How the match on a captured update compares with matches on updates of other images, whose truth is known."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dosimeter.attacks.analytic.certificate import ROUNDING
from dosimeter.auditing.judge import share
from dosimeter.auditing.result import Result
from dosimeter.defenses import Around, Moment
from dosimeter.types import Gradient, Outcome, Reconstruction, Record, Shape


@dataclass(frozen=True, kw_only=True)
class InPlace(Around):
    """A defense whose layers, and whose clipping, the model and the step have already.

    It acts on the change of weights, which is `lr` times the update: theta_0 - theta_T = lr * g. A defense that clips
    acts inside the client's step, on gradients.
    """

    lr: float = 1.0

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        return model

    def clips(self) -> None:
        return None

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        lr = 1.0 if self.inner.clips() is not None else self.lr
        change = {name: lr * g for name, g in gradient.items()}
        sent = self.inner.on_gradient(change, moment, rng)
        return gradient if sent is change else {name: g / lr for name, g in sent.items()}


def compare(match: float | None, found: Reconstruction, beside: Result | None, dtype: torch.dtype) -> dict[str, Any]:
    """Where the match stands among those of shadows, and how many images of better and of worse ones were read.

    Args:
        match: of the captured update, None where there is none to compare; lower is better.
        found: of the captured update.
        beside: the audit of the shadows, None where there are none.
        dtype: of the attack. Solved images that explain their updates to rounding match equally well.
    """
    if beside is None:
        return {"left_out": "there are no shadows, updates of images of your own to compare with (--data, --shadows)"}
    said: dict[str, Any] = {"updates": len(beside.victims.ids)}
    if "labels" in beside.scores:
        said["labels"] = beside.scores["labels"]
    if found.outcomes[0] is Outcome.LABELS:
        return said
    batch, threshold = beside.victims.batch, beside.scores["success"]["threshold"]
    rows = [beside.records[first : first + batch] for first in range(0, len(beside.records), batch)]
    matches = [_number(row[0]["match"]) for row in rows]
    said |= {
        "matches": [value if value < math.inf else None for value in matches],
        "ssim": [sum(_number(record["ssim"]) for record in row) / batch for row in rows],
        "success": beside.scores["success"],
        "blind": sum(_blind(record) >= threshold for record in beside.records),
    }
    if match is None:
        return said
    floor = ROUNDING * torch.finfo(dtype).eps if found.determined else 0.0
    said["rank"] = 1 + sum(value < match for value in matches) if match > floor else 1
    read = [sum(bool(record["read"]) for record in row) for row in rows]
    for name, wanted in (("as_well", True), ("less_well", False)):
        chosen = [n for n, value in zip(read, matches, strict=True) if (value <= max(match, floor)) is wanted]
        said[name] = share(sum(chosen), batch * len(chosen)) if chosen else {"hits": 0, "of": 0}
    return said


def _number(value: object) -> float:
    """A number of a record, infinity for none."""
    return float(value) if isinstance(value, int | float) else math.inf


def _blind(record: Record) -> float:
    """The SSIM that the attack reaches without the update."""
    floor = record["baseline"]
    assert isinstance(floor, dict)
    return float(floor["ssim"])
