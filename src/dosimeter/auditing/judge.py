"""Reconstructions beside the truth: one record an image and a summary of all."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dosimeter import checks, metrics
from dosimeter.attacks.labels import usable
from dosimeter.errors import SettingError
from dosimeter.metrics import Metric
from dosimeter.types import UNTOLD, Outcome, Reconstruction, Record, Shape, Trained, Victims

BESIDE = {metric.name for metric in metrics.STANDARD[3:] + metrics.in_units_of(torch.ones(1, 1, 1))}
"""Scores whose baseline stands in the summary alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scoring:
    """How reconstructions are judged beside the truth."""

    threshold: float = 0.5  # SSIM from which an image counts as read (CVB, Sec. V-B)
    decoys: Tensor | None = None  # (m, C, H, W) other images for the identification rate
    lpips: metrics.Lpips | None = None  # a loaded network; that score is left out without it
    delta: float | None = None  # distance from the truth beyond which an adversary has missed it (Bayes, Sec. 4)
    metrics: Sequence[Metric] = ()  # scores of the user's own, which then stand in records, tables and pages

    def __post_init__(self) -> None:
        known = {metric.name for metric in self.scored(torch.ones(1, 1, 1)) if metric not in self.metrics}
        if twice := known.intersection(metric.name for metric in self.metrics):
            raise SettingError(f"The name {min(twice)!r} is that of a score of ours; give your metric another one.")
        checks.share("An image that counts as read", "an SSIM (threshold)", self.threshold, zero=False)
        checks.at_least("An image that counts as missed", "a distance delta", self.delta, 0)

    def scored(self, std: Tensor) -> tuple[Metric, ...]:
        """All scores, for a model that divides images by `std` (C, 1, 1)."""
        perceived = () if self.lpips is None else (metrics.of_lpips(self.lpips),)
        return (*metrics.STANDARD, *metrics.in_units_of(std), *perceived, *self.metrics)

    def settings(self) -> dict[str, Any]:
        """What was set, as plain values."""
        found = {"threshold": self.threshold, "lpips": self.lpips.name if self.lpips else None}
        own = {metric.name: metric.described() for metric in self.metrics}
        return found | {"metrics": own} if own else found


class Verdict(NamedTuple):
    records: list[Record]
    summary: dict[str, Any]
    images: Tensor  # (V, B, C, H, W) clipped, in the victims' order
    baseline: Tensor  # (V, B, C, H, W) clipped, in the victims' order


class _Evidence(NamedTuple):
    """What is known of every image once truth and reconstruction lie side by side, (V * B,) each but labels."""

    victims: Victims
    found: Reconstruction
    scores: dict[str, Tensor]
    floor: dict[str, Tensor]  # the scores without the update
    read: Tensor
    named: Tensor | None  # whether it was told from the decoys
    used: Tensor | None  # (V, B) labels that the attack recovered, in the victims' order; None where it did not
    right: Tensor | None  # (V,) how many of them are in the batch
    trained: Trained | None  # how clients trained locally


def judge(
    victims: Victims,
    found: Reconstruction,
    blind: Reconstruction,
    scoring: Scoring,
    *,
    std: Tensor,
    trained: Trained | None = None,
    classes: int | None = None,
) -> Verdict:
    """Match every update's images to its victims, score them and count successes.

    Args:
        std: (C, 1, 1) what the model divides images by, for scores in its units.
        trained: how clients trained locally, to judge an attack that had to guess it.
        classes: among how many the attack recovered the labels; None where it was granted them.
    """
    order = metrics.match_batches(found.images, victims.images)  # (V, B)
    raw = _arrange(found.images, order)
    floor_raw = _arrange(blind.images, metrics.match_batches(blind.images, victims.images))
    images, baseline = (torch.nan_to_num(x).clamp(0, 1) for x in (raw, floor_raw))
    truth = victims.images.flatten(0, 1)
    # Scores clip for themselves; their min-max variants want the images as the attack left them.
    scored = scoring.scored(std)
    scores = metrics.score_images(raw.flatten(0, 1), truth, scored)
    floor = metrics.score_images(floor_raw.flatten(0, 1), truth, scored)
    read = scores["ssim"] >= scoring.threshold
    named = None
    if scoring.decoys is not None and len(scoring.decoys):
        named = metrics.identification(images.flatten(0, 1), truth, scoring.decoys.to(truth))
    used, right = None, None
    if classes is not None and found.labels is not None:
        used, right = _labels(found, victims.labels, order)
    evidence = _Evidence(victims, found, scores, floor, read, named, used, right, trained)
    records = [_record(evidence, i) for i in range(len(read))]
    return Verdict(records, _summary(evidence, scoring, classes), images, baseline)


def judge_transformed(found: Tensor, seen: Tensor, threshold: float) -> dict[str, Any]:
    """Scores against the images that clients trained on, where a defense changed them, (V, B, C, H, W) twice."""
    order = metrics.match_batches(found, seen)
    scores = metrics.score_images(_arrange(found, order).flatten(0, 1), seen.flatten(0, 1))
    read = scores["ssim"] >= threshold
    return _rate(read) | {key: metrics.summarise(scores[key]) for key in ("ssim", "psnr")}


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


def _record(evidence: _Evidence, i: int) -> Record:
    """All that is to be said of the i-th image."""
    victims, found, scores, floor, read, named, used, right, _ = evidence
    v, b = divmod(i, victims.batch)
    record: Record = {
        "victim": v,
        "image": b,
        "index": int(victims.indices[v, b]),
        "label": victims.labels[v, b].tolist(),
    }
    if used is not None and right is not None:
        record["label_used"] = told(used[v, b])
        record["labels_right"] = int(right[v])  # of this victim's batch
    record |= {key: float(values[i]) for key, values in scores.items()}
    record["read"] = bool(read[i])
    if named is not None:
        record["identified"] = bool(named[i])
    record["baseline"] = {key: float(floor[key][i]) for key in floor if key not in BESIDE}
    return record | course(found, v)


def course(found: Reconstruction, v: int) -> Record:
    """How the attack on the v-th victim went, which is known without the truth."""
    record: Record = {}
    if found.determined:
        record["determined"] = dict(found.determined[v])
    if found.trained:
        record |= {"guessed_steps": found.trained[v].steps, "guessed_lr": found.trained[v].lr}
    return record | {
        "match": float(found.match[v]) if found.match[v].isfinite() else None,  # None: it diverged
        "steps": int(found.steps[v]),
        "restart": int(found.restart[v]),
        "stopped": found.stopped[v].words,
    }


def _summary(evidence: _Evidence, scoring: Scoring, classes: int | None) -> dict[str, Any]:
    """Means and spreads, rates with intervals, the baseline and the most exposed victim."""
    victims, found, scores, floor, read, named, _, right, trained = evidence
    worst = int(scores["ssim"].argmax())
    summary: dict[str, Any] = {
        "images": len(read),
        "unmeasured": unmeasured(found),
        "scores": {key: metrics.summarise(values) for key, values in scores.items()},
        "baseline": {key: metrics.summarise(values) for key, values in floor.items()},
        "success": _rate(read) | {"threshold": scoring.threshold, "score": "ssim"},
    }
    if named is not None and scoring.decoys is not None:
        summary["identification"] = _rate(named) | {"chance": 1 / (len(scoring.decoys) + 1)}
    if scoring.delta is not None:
        summary["risk"] = adversarial_risk(scores["mse"], victims.shape, scoring.delta)
    if right is not None and classes is not None:
        guess = float(metrics.even_guess(victims.labels, classes).mean())
        all_right = _rate(right == victims.batch)
        summary["labels"] = share(int(right.sum()), len(read)) | {"guess": guess, "updates": all_right}
    if found.determined:
        summary |= _solved(found)
    if found.trained:
        summary["trained"] = _rate(torch.tensor([guess == trained for guess in found.trained]))
    summary["worst"] = {
        "victim": worst // victims.batch,
        "image": worst % victims.batch,
        "index": int(victims.indices.flatten()[worst]),
        "ssim": float(scores["ssim"][worst]),
    }
    summary["steps"] = metrics.summarise(found.steps.double())
    return summary


def adversarial_risk(mse: Tensor, shape: Shape, delta: float) -> dict[str, Any]:
    """R(f), the share of images (n,) whose reconstruction is further than `delta` from them (Bayes, Sec. 4).

    The distance is L2 over all pixels in [0, 1], the root of their number times the mean squared error.
    """
    missed = (mse * math.prod(shape)).sqrt() > delta
    return _rate(missed) | {"delta": delta}


def _solved(found: Reconstruction) -> dict[str, Any]:
    """How many images were solved for, and how much of them all; equations that do not hold determine nothing."""
    shares = [
        one.get("image", 0.0) * outcome.explains for one, outcome in zip(found.determined, found.outcomes, strict=True)
    ]
    return {
        "recovered": _rate(torch.tensor([outcome is Outcome.RECOVERED for outcome in found.outcomes])),
        "determined": metrics.summarise(torch.tensor(shares, dtype=torch.float64)),
    }


def _rate(hits: Tensor) -> dict[str, Any]:
    return share(int(hits.sum()), hits.numel())


def share(hits: int, of: int) -> dict[str, Any]:
    """A rate with its 95 % interval, as plain values."""
    rate = metrics.rate(hits, of)
    return {
        "hits": rate.successes,
        "of": rate.n,
        "rate": rate.value,
        "low": rate.low,
        "high": rate.high,
        "text": rate.text(),
    }
