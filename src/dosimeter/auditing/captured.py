"""The audit of one captured update: what is certain, what an attack makes of it, and how good that may be.

The truth, where somebody has it, meets the attack's images only in `judge`, as in any audit.
"""

import math
import threading
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dosimeter import engine, metrics
from dosimeter.auditing.certainty import certify, labels_said
from dosimeter.auditing.job import Job, classes, clipping, described, on_cpu
from dosimeter.auditing.judge import Yardstick, course, judge, told, unmeasured
from dosimeter.auditing.observing import noticed
from dosimeter.auditing.result import Captured, Interrupted, InterruptedCapture, Result, environment
from dosimeter.auditing.run import perform
from dosimeter.auditing.seeing import Capture, Seen, see, with_labels
from dosimeter.auditing.setting import Setting
from dosimeter.auditing.shadows import InPlace, compare
from dosimeter.auditing.watches import Watches
from dosimeter.clients import LocalTraining
from dosimeter.defenses import Defense, NoDefense
from dosimeter.errors import DataError, SettingError
from dosimeter.progress import bar
from dosimeter.types import (
    Attack,
    BatchNorm,
    Gradient,
    Loss,
    Outcome,
    Reconstruction,
    Record,
    Shape,
    Statistics,
    Step,
    Victims,
)


def audit_update(
    model: nn.Module,
    update: Gradient,
    *,
    attack: Attack,
    shape: Shape,
    batch: int = 1,
    labels: Tensor | None = None,
    shadows: Victims | None = None,
    truth: Victims | None = None,
    defense: Defense | None = None,
    loss: Loss | None = None,
    step: Step | None = None,
    lr: float | None = None,
    batch_norm: BatchNorm = "running",
    statistics: Statistics | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    budget: int = engine.DEFAULT_BUDGET,
    workers: int | None = None,
    threshold: float = 0.5,
    decoys: Tensor | None = None,
    lpips: metrics.Lpips | None = None,
    delta: float | None = None,
    names: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> Captured:
    """Audit one captured update: what is certain of its images, what an attack makes of it, and how good that may be.

    Args:
        model: the model before the update as the client ran it, with the layers that its defense adds.
        update, shape, batch, step, batch_norm, statistics: as in `reconstruct`.
        attack: a preset or a `Search` of your own; one that would be granted labels recovers them where there are none.
        labels: (batch,) where they are granted.
        shadows: batches of images of your own, as large as the update's. Updates are made of them in the same way and
            attacked in the same way, to learn how often a match like this one's goes with an image that is read.
        truth: the batch behind the update, one victim; it is used for scores only, the attack never sees it.
        defense: what the client did, which the attacker knows and shadows do too.
        lr: the learning rate by which the client's change of weights was divided to make `update`. Its defense is taken
            to act on the change itself, so the unit of its sigma is that of weights. By default the step's own, or 1
            for a gradient; 1 also says that the defense acts on gradients.
        loss, seed, device, dtype, budget, workers, threshold, decoys, lpips, delta, names, progress: as in `audit`.
    """
    setting = Setting(
        attack=attack,
        defense=defense or NoDefense(),
        loss=loss,
        step=step,
        batch_norm=batch_norm,
        seed=seed,
        device=device,
        dtype=dtype,
        budget=budget,
        workers=workers,
    )
    if lr is None:
        lr = step.lr if isinstance(step, LocalTraining) else 1.0
    capture = Capture(update, shape, batch, labels, statistics, lr)
    yardstick = Yardstick(threshold, decoys, lpips, delta)
    return examine(model, capture, setting, yardstick, shadows=shadows, truth=truth, names=names, progress=progress)


def examine(
    model: nn.Module,
    capture: Capture,
    setting: Setting,
    yardstick: Yardstick,
    *,
    shadows: Victims | None = None,
    truth: Victims | None = None,
    names: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> Captured:
    """`audit_update`, for whoever has its arguments together already."""
    setting = clipping(replace(setting, attack=with_labels(setting.attack, capture.labels)))
    like = replace(setting, defense=InPlace(inner=setting.defense, lr=capture.lr))  # of shadows
    _check(capture, setting, shadows, truth)
    seen = see(model, capture, setting)
    if shadows is not None:
        names = {"shadows": "the caller's"} | (names or {})
        Job(model, shadows, like)  # which refuses what does not fit, before any work
    began = time.perf_counter()
    found, blind = _attack(seen, setting, progress)
    cut = found.interrupted or blind.interrupted
    certificate, beside = certify(seen, setting, found, cut=cut), None
    cut = cut or certificate.cut
    if shadows is not None and not cut:
        beside, cut = _shadow(model, shadows, like, yardstick, progress)
    match = _match(found)
    scores: dict[str, Any] = {
        "certificate": certificate.said,
        "labels": labels_said(seen, setting, found),
        "match": match,
        "unmeasured": unmeasured(found),
        "shadows": compare(match, found, beside, seen.target.mean.dtype),
    }
    shared: dict[str, Any] = {
        "settings": _settings(seen, setting, yardstick, {"model": type(model).__name__} | (names or {})),
        "threat": setting.granted(),
        "curve": found.curve,
        "seconds": time.perf_counter() - began,
        "environment": environment(),
        "status": "interrupted" if cut else "complete",
    }
    judged = None if truth is None else _judge(seen, setting, yardstick, found, blind, truth, shared)
    result = _told(found, blind, judged, shared | {"scores": scores, "certified": certificate.image})
    if cut:
        raise InterruptedCapture(result)
    return result


def _told(found: Reconstruction, blind: Reconstruction, judged: Result | None, shared: dict[str, Any]) -> Captured:
    """All that was found; beside the truth images are in its order and records have scores."""
    if judged is None:
        records = [_record(found, image) for image in range(found.images.shape[1])]
        return Captured(**shared, records=records, images=_clipped(found), baseline=_clipped(blind))
    shared = shared | {"scores": shared["scores"] | {"judged": judged.scores}}
    kept: dict[str, Any] = {"records": judged.records, "images": judged.images, "baseline": judged.baseline}
    return Captured(**shared, **kept, judged=judged)


def _check(capture: Capture, setting: Setting, shadows: Victims | None, truth: Victims | None) -> None:
    """What the arguments owe each other."""
    batch, labels = capture.batch, capture.labels
    if batch < 1:
        raise SettingError(f"An update has at least 1 image behind it, got {batch}.")
    if not (capture.lr > 0 and math.isfinite(capture.lr)):
        raise SettingError(f"A change of weights is divided by a learning rate above 0, got {capture.lr}.")
    if labels is not None and len(labels) != batch:
        raise SettingError(f"Expected a label for each of the {batch} image(s) of the update, got {len(labels)}.")
    if labels is not None and not labels.is_floating_point() and int(labels.min()) < 0:
        raise SettingError(f"Labels are classes from 0 on, got {int(labels.min())}.")
    if setting.granted().secrets:
        raise SettingError(
            f"The attack {setting.attack.name!r} or the defense reveals what the client drew inside the model, which "
            "nobody knows of a captured update; let the attack suppose it (secrets=joint or resampled)."
        )
    expected = (batch, *capture.shape)
    for what, victims in (("truth", truth), ("shadows", shadows)):
        if victims is not None and victims.images.shape[1:] != expected:
            raise DataError(
                f"Expected {what} of (images, channels, height, width) {expected} as behind the update, got "
                f"{tuple(victims.images.shape[1:])}; give batches of its size, or say --batch."
            )
    if truth is not None and len(truth.ids) != 1:
        raise DataError(f"Expected the one batch behind the update as its truth, got {len(truth.ids)}.")


def _attack(seen: Seen, setting: Setting, progress: bool | None) -> tuple[Reconstruction, Reconstruction]:
    """What the attack makes of the update and what it makes of nothing; a thread of its own hears of Ctrl-C."""
    stop = threading.Event()

    def work(watches: Watches) -> tuple[Reconstruction, Reconstruction]:
        observed = [seen.observation]
        found = setting.attack(seen.target, observed, seed=setting.seed, watch=watches.of(0))
        found = watches.ended(0, noticed(found, observed))
        return found, setting.attack.blind()(seen.target, observed, seed=setting.seed, watch=watches.blind())

    with bar(f"{setting.attack.name}, captured update", None, show=progress) as advance:
        done = engine.threads.run(work, [Watches(advance, stop, tiles=1)], workers=1, stop=stop)
    if not done:
        raise KeyboardInterrupt
    return on_cpu([done[0][0]]), on_cpu([done[0][1]])


def _shadow(
    model: nn.Module, shadows: Victims, setting: Setting, yardstick: Yardstick, progress: bool | None
) -> tuple[Result | None, bool]:
    """An ordinary audit of the shadows, and whether it was cut short."""
    try:
        return perform(model, shadows, setting, Yardstick(yardstick.threshold), progress=progress), False
    except Interrupted as interrupted:
        return interrupted.result, True
    except KeyboardInterrupt:
        return None, True


def _settings(seen: Seen, setting: Setting, yardstick: Yardstick, names: dict[str, Any]) -> dict[str, Any]:
    """What was set, as plain values."""
    more = {"victims": 1} | yardstick.settings()
    return (
        {"data": "captured"}
        | names
        | described(seen.client, setting, seen.observation.batch)
        | setting.defense.facts()
        | more
    )


def _judge(
    seen: Seen,
    setting: Setting,
    yardstick: Yardstick,
    found: Reconstruction,
    blind: Reconstruction,
    truth: Victims,
    shared: dict[str, Any],
) -> Result:
    """The reconstruction beside the truth, as in any audit."""
    among = classes(seen.client, setting, truth.batch)
    verdict = judge(truth, found, blind, yardstick, std=seen.client.std.cpu(), classes=among)
    verdict.summary.pop("trained", None)  # how the client trained is not part of the truth
    return Result(
        **shared,
        records=verdict.records,
        scores=verdict.summary,
        victims=truth,
        images=verdict.images,
        baseline=verdict.baseline,
        explanation=[],
    )


def _record(found: Reconstruction, image: int) -> Record:
    """All that is to be said of an image without the truth."""
    record: Record = {"victim": 0, "image": image}
    if found.labels is not None:
        record["label_used"] = told(found.labels[0, image])
    return record | course(found, 0)


def _clipped(found: Reconstruction) -> Tensor:
    return torch.nan_to_num(found.images).clamp(0, 1)


def _match(found: Reconstruction) -> float | None:
    """The final matching loss; None where the search diverged or there was nothing to match."""
    (outcome,) = found.outcomes
    nothing = outcome in (Outcome.LABELS, Outcome.ZERO_UPDATE) or not found.match[0].isfinite()
    return None if nothing else float(found.match[0])
