"""Reconstructions beside the truth: one record an image and a summary of all."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dosimeter import checks, metrics
from dosimeter.attacks.labels import usable
from dosimeter.auditing.evidence import explained
from dosimeter.auditing.records import (
    AsTrained,
    Identification,
    ImageRecord,
    Labels,
    Risk,
    Success,
    Summary,
    Transformed,
    Worst,
)
from dosimeter.auditing.result import Result, clipped
from dosimeter.errors import SettingError
from dosimeter.metrics import Lpips, Metric, Rate
from dosimeter.types import UNTOLD, Outcome, Reconstruction, Shape, Trained, Victims

BESIDE = {metric.name for metric in metrics.STANDARD[3:] + metrics.in_units_of(torch.ones(1, 1, 1))}
"""Scores whose baseline stands in the summary alone."""


@dataclass(frozen=True, eq=False)
class Scoring:
    """How results are judged."""

    threshold: float = 0.5  # SSIM from which an image counts as read (CVB, Sec. V-B)
    decoys: Tensor | None = None  # (m, C, H, W) other images for the identification rate
    lpips: Lpips | Sequence[Lpips] | None = None  # loaded networks; without one that score is left out
    delta: float | None = None  # distance from the truth beyond which an adversary has missed it (Bayes, Sec. 4)
    metrics: Sequence[Metric] = ()  # scores of the user's own, which then stand in records, tables and pages
    among: int | None = None  # decoys that each image has of its own, drawn from all; all of them by default
    changed: Tensor | None = None  # (m, C, H, W) the decoys as a defense changes them, where it changes images

    def __post_init__(self) -> None:
        names = Counter(metric.name for metric in self.scored(torch.ones(1, 1, 1)))
        names.update(each.name for each in fields(ImageRecord))
        if twice := [name for name, times in names.items() if times > 1]:
            raise SettingError(
                f"Expected a name of its own for every score, got {twice[0]!r} twice or as a word of our records; name "
                "your metric otherwise, and give each network of LPIPS once."
            )
        checks.share("An image that counts as read", "an SSIM (threshold)", self.threshold, zero=False)
        checks.positive("An image that counts as missed", "a distance delta", self.delta)

    @property
    def perceived(self) -> tuple[Lpips, ...]:
        """The networks of LPIPS."""
        return (self.lpips,) if isinstance(self.lpips, Lpips) else tuple(self.lpips or ())

    def scored(self, std: Tensor) -> tuple[Metric, ...]:
        """All scores, for a model that divides images by `std` (C, 1, 1)."""
        return (*metrics.STANDARD, *metrics.in_units_of(std), *map(metrics.of_lpips, self.perceived), *self.metrics)

    def settings(self) -> dict[str, Any]:
        """What was set, as plain values."""
        names = ", ".join(each.name for each in self.perceived)
        own = {metric.name: metric.described() for metric in self.metrics}
        return {"threshold": self.threshold, "lpips": names or None} | ({"metrics": own} if own else {})


class Verdict(NamedTuple):
    records: list[ImageRecord]
    summary: Summary
    raw: Tensor  # (V, B, C, H, W) in the victims' order
    raw_baseline: Tensor  # (V, B, C, H, W) in the victims' order
    read_as: Tensor | None  # (V, B, C, H, W) in the victims' order; see `Result`


class _Measured(NamedTuple):
    """What scores say of every image, (V * B,) each."""

    scores: dict[str, Tensor]
    floor: dict[str, Tensor]  # the scores without the update
    read: Tensor
    named: Tensor | None  # whether it was told from the decoys
    guessed: Tensor | None  # the same without the update
    made: "_Measured | None" = None  # against what clients trained on, where their defense made it

    @property
    def either(self) -> Tensor:
        """Whether an image is read as it was or as the client trained on it."""
        return self.read if self.made is None else self.read | self.made.read

    def of(self, i: int, before: ImageRecord | AsTrained | None) -> dict[str, Any]:
        """The i-th image's scores, with those that it had before."""
        had = before or AsTrained(scores={}, read=False)
        floor = {key: float(self.floor[key][i]) for key in self.floor if key not in BESIDE}
        return {
            "scores": had.scores | {key: float(values[i]) for key, values in self.scores.items()},
            "read": bool(self.read[i]),
            "identified": had.identified if self.named is None else bool(self.named[i]),
            "baseline": (had.baseline or {}) | floor,
        }

    def record(self, record: ImageRecord, i: int) -> ImageRecord:
        """The i-th image's."""
        made = self.made and AsTrained(**self.made.of(i, record.transformed))
        return replace(record, **self.of(i, record) | {"read": bool(self.either[i]), "transformed": made})


def judge(
    victims: Victims,
    found: Reconstruction,
    blind: Reconstruction,
    scoring: Scoring,
    *,
    std: Tensor,
    trained: Trained | None = None,
    classes: int | None = None,
    transformed: Tensor | None = None,
    truth: Tensor | None = None,
    beyond: Tensor | None = None,
) -> Verdict:
    """Match every update's images to its victims, score them and count successes.

    Args:
        std: (C, 1, 1) what the model divides images by, for scores in its units.
        trained: how clients trained locally, to judge an attack that had to guess it.
        classes: among how many the attack recovered the labels; None where it was granted them.
        transformed: (V, B, C, H, W) what clients trained on, where their defense made other images of the victims'.
        truth: (V,) the matching loss of the clients' own steps.
        beyond: (V,) whether what clients trained on is out of the attack's reach; None where nothing is.
    """
    read = found.trained_on if transformed is not None else None
    if read is None:
        order = metrics.match_batches(found.images, victims.images, transformed)  # (V, B)
    else:
        assert transformed is not None
        order = metrics.match_batches(read, transformed)
        read = _arrange(read, order)
    raw = _arrange(found.images, order)
    floor = _arrange(blind.images, metrics.match_batches(blind.images, victims.images, transformed))
    used, right = None, None
    if classes is not None and found.labels is not None:
        used, right = _labels(found, victims.labels, order)
    explains = None if truth is None else explained(found, truth, beyond)
    records = [
        ImageRecord(
            victim=v,
            image=b,
            index=int(victims.indices[v, b]),
            label=victims.labels[v, b].tolist(),
            label_used=None if used is None else told(used[v, b]),
            labels_right=None if right is None else int(right[v]),
            truth=None if truth is None else float(truth[v]),
            explained=None if explains is None else explains[v].value,
            **course(found, v),
        )
        for v in range(len(victims.ids))
        for b in range(victims.batch)
    ]
    measured = _measure(victims.images, raw, floor, scoring, std, transformed, read)
    known: dict[str, Any] = {"unmeasured": unmeasured(found), "steps": metrics.summarise(found.steps.double())}
    if right is not None and classes is not None:
        guess = float(metrics.even_guess(victims.labels, classes).mean())
        all_right = _rate(right == victims.batch)
        known["labels"] = Labels(int(right.sum()), len(records), guess=guess, updates=all_right)
    if found.determined:
        known |= _solved(found)
    if found.trained:
        known["trained"] = _rate(torch.tensor([guess == trained for guess in found.trained]))
    known |= _counted(victims, measured, scoring)
    records = [measured.record(record, i) for i, record in enumerate(records)]
    return Verdict(records, Summary(**known, evidence=_evidence(records)), raw, floor, read)


def rescore(result: Result, scoring: Scoring) -> Result:
    """The same images by another scoring: what an audit with it would say, beside scores that were there before."""
    if result.std is None:
        raise SettingError("This run was written by an older version, which kept too little for it; repeat the audit.")
    beside, floor = result.victims.images, result.raw_baseline
    measured = _measure(beside, result.raw, floor, scoring, result.std, result.transformed, result.read_as)
    counted = _counted(result.victims, measured, scoring)
    for key in ("scores", "baseline"):
        counted[key] = getattr(result.scores, key) | counted[key]
    if (had := result.scores.transformed) and (made := counted["transformed"]):
        told = {key: getattr(had, key) | getattr(made, key) for key in ("scores", "baseline")}
        counted["transformed"] = replace(made, **told, identification=made.identification or had.identification)
    networks = [name for key, name in (("lpips", "AlexNet"), ("lpips_vgg", "VGG-16")) if key in counted["scores"]]
    before, now = result.settings, scoring.settings() | {"lpips": ", ".join(networks) or None}
    if own := before.get("metrics", {}) | now.get("metrics", {}):
        now["metrics"] = own
    records = [measured.record(record, i) for i, record in enumerate(result.records)]
    return replace(
        result,
        settings=before | now,
        records=records,
        scores=replace(result.scores, **counted, evidence=_evidence(records)),
    )


def _evidence(records: Sequence[ImageRecord]) -> dict[str, int]:
    """How many images the attack says what of, where an auditor could tell."""
    return dict(Counter(record.evidence for record in records if record.evidence and record.explained))


def _measure(
    truth: Tensor,
    raw: Tensor,
    floor: Tensor,
    scoring: Scoring,
    std: Tensor,
    transformed: Tensor | None = None,
    read: Tensor | None = None,
) -> _Measured:
    """All scores of images (V, B, C, H, W) that lie beside their truth, and beside what clients trained on.

    An attack that undid what a defense did to images `read` others before, which stand beside what clients trained on.
    """
    # Scores clip for themselves; their min-max variants want the images as the attack left them.
    metrics_, flat = scoring.scored(std), truth.flatten(0, 1)
    scores, blind = (metrics.score_images(images.flatten(0, 1), flat, metrics_) for images in (raw, floor))
    named = guessed = None
    if scoring.decoys is not None and len(scoring.decoys):
        decoys = scoring.decoys.to(flat)
        named, guessed = (
            metrics.identification(clipped(images).flatten(0, 1), flat, decoys, among=scoring.among)
            for images in (raw, floor)
        )
    made = None
    if transformed is not None:
        seen = raw if read is None else read
        made = _measure(transformed, seen, floor, replace(scoring, decoys=scoring.changed, changed=None), std)
    return _Measured(scores, blind, scores["ssim"] >= scoring.threshold, named, guessed, made)


def _counted(victims: Victims, measured: _Measured, scoring: Scoring) -> dict[str, Any]:
    """What the scoring decides of a summary."""
    scores, read, made = measured.scores, measured.either, measured.made
    ssim = scores["ssim"] if made is None else torch.maximum(scores["ssim"], made.scores["ssim"])
    worst, originals = int(ssim.argmax()), None if made is None else int(measured.read.sum())
    found: dict[str, Any] = {
        "images": len(read),
        "success": Success(int(read.sum()), len(read), threshold=scoring.threshold, originals=originals),
        "worst": Worst(
            victim=worst // victims.batch,
            image=worst % victims.batch,
            index=int(victims.indices.flatten()[worst]),
            ssim=float(ssim[worst]),
        ),
        **_summed(measured, scoring.decoys, scoring.among),
    }
    if scoring.delta is not None:
        found["risk"] = adversarial_risk(scores["mse"], victims.shape, scoring.delta)
    if made is not None:
        hits = int(made.read.sum())
        found["transformed"] = Transformed(hits, len(read), **_summed(made, scoring.changed, scoring.among))
    return found


def _summed(measured: _Measured, decoys: Tensor | None, among: int | None) -> dict[str, Any]:
    """Scores over all images, and how many are told from decoys."""
    found: dict[str, Any] = {
        name: {key: metrics.summarise(values) for key, values in each.items()}
        for name, each in (("scores", measured.scores), ("baseline", measured.floor))
    }
    if measured.named is not None and measured.guessed is not None and decoys is not None:
        chance, blind = 1 / (min(len(decoys), among or len(decoys)) + 1), int(measured.guessed.sum())
        hits = int(measured.named.sum())
        found["identification"] = Identification(hits, len(measured.named), chance=chance, blind=blind)
    return found


def _arrange(images: Tensor, order: Tensor) -> Tensor:
    """Row v of the result is images[v] in the order order[v]."""
    return torch.stack([batch[where] for batch, where in zip(images, order, strict=True)])


def _labels(found: Reconstruction, truth: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """(V, B): the recovered labels of the images that were matched; (V,): how many are right, of those that were told.

    Images that are all the same leave labels free.
    """
    assert found.labels is not None
    untold, labels = (found.labels == UNTOLD).any(1).cpu(), usable(found.labels.cpu())
    free = (found.images == found.images[:, :1]).flatten(1).all(1)
    used = torch.where(free[:, None], metrics.align_labels(labels, truth), labels.gather(1, order))
    return torch.where(untold[:, None], UNTOLD, used), torch.where(untold, 0, metrics.label_overlap(used, truth))


def told(label: Tensor) -> Any:
    """A label as a plain value, None where the update does not tell it."""
    return None if bool((label == UNTOLD).any()) else label.tolist()


def unmeasured(found: Reconstruction) -> dict[str, int]:
    """How many victims nothing is said of, by why; nothing of those that were measured."""
    return dict(Counter(outcome.value for outcome in found.outcomes if not outcome.measured))


def course(found: Reconstruction, v: int) -> dict[str, Any]:
    """How the attack on the v-th victim went, which is known without the truth: fields of an ImageRecord."""
    more: dict[str, Any] = {"determined": dict(found.determined[v])} if found.determined else {}
    if found.trained:
        more |= {"guessed_steps": found.trained[v].steps, "guessed_lr": found.trained[v].lr}
    return more | {
        "match": float(found.match[v]) if found.match[v].isfinite() else None,  # None: it diverged
        "steps": int(found.steps[v]),
        "restart": int(found.restart[v]),
        "again": found.again[v] or None if found.again else None,
        "stopped": found.stopped[v].words,
    }


def adversarial_risk(mse: Tensor, shape: Shape, delta: float) -> Risk:
    """R(f), the share of images (n,) whose reconstruction is further than `delta` from them (Bayes, Sec. 4).

    The distance is L2 over all pixels in [0, 1], the root of their number times the mean squared error.
    """
    missed = (mse * math.prod(shape)).sqrt() > delta
    return Risk(int(missed.sum()), len(missed), delta=delta)


def _solved(found: Reconstruction) -> dict[str, Any]:
    """How many images were solved for, and how much of them all; equations that do not hold determine nothing."""
    shares = [
        one.get("image", 0.0) * outcome.explains for one, outcome in zip(found.determined, found.outcomes, strict=True)
    ]
    return {
        "recovered": _rate(torch.tensor([outcome is Outcome.RECOVERED for outcome in found.outcomes])),
        "determined": metrics.summarise(torch.tensor(shares, dtype=torch.float64)),
    }


def _rate(hits: Tensor) -> Rate:
    return Rate(int(hits.sum()), hits.numel())
