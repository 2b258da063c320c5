"""How the match on a captured update compares with matches on updates of other images, whose truth is known."""

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from dosimeter.attacks.solve.certificate import ROUNDING
from dosimeter.auditing.records import Shadows
from dosimeter.auditing.result import Result
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.defenses import Around, Moment
from dosimeter.metrics import Rate
from dosimeter.types import Gradient, Outcome, Reconstruction, Shape


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


def compare(match: float | None, found: Reconstruction, beside: Result | None, dtype: torch.dtype) -> Shadows:
    """Where the match stands among those of shadows, and how many images of better and of worse ones were read.

    Args:
        match: of the captured update, None where there is none to compare; lower is better.
        found: of the captured update.
        beside: the audit of the shadows, None where there are none.
        dtype: of the attack. Solved images that explain their updates to rounding match equally well.
    """
    if beside is None:
        return Shadows(
            left_out="there are no shadows, updates of images of your own to compare with (--data, --shadows)"
        )
    if Outcome.OUT_OF_TIME in beside.scores.unmeasured:
        return Shadows(left_out="the time was up before all shadows were attacked (--minutes)")
    verdict = weigh(beside)
    leaks = verdict.sentence.partition(": ")[2].rstrip(".") if verdict.kind is Kind.LEAKS else ""
    said = Shadows(
        updates=len(beside.victims.ids),
        labels=beside.scores.labels,
        evidence=beside.scores.evidence,
        leaks=leaks,
        doubt=verdict.doubt,
    )
    if found.outcomes[0] is Outcome.LABELS:
        return said
    batch, threshold = beside.victims.batch, beside.scores.success.threshold
    rows = [beside.records[first : first + batch] for first in range(0, len(beside.records), batch)]
    matches = [row[0].match for row in rows]
    said = replace(
        said,
        matches=matches,
        truths=[row[0].truth for row in rows],
        ssim=[sum(record.ssim for record in row) / batch for row in rows],
        success=beside.scores.success,
        blind=sum(record.blind_ssim >= threshold for record in beside.records),
    )
    if match is None:
        return said
    floor = ROUNDING * torch.finfo(dtype).eps if found.determined else 0.0
    reached = [math.inf if each is None else each for each in matches]
    read = [sum(bool(record.read) for record in row) for row in rows]

    def among(wanted: bool) -> Rate | None:
        chosen = [n for n, value in zip(read, reached, strict=True) if (value <= max(match, floor)) is wanted]
        return Rate(sum(chosen), batch * len(chosen)) if chosen else None

    rank = 1 + sum(value < match for value in reached) if match > floor else 1
    return replace(said, rank=rank, as_well=among(True), less_well=among(False))
