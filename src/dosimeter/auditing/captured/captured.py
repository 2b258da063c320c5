"""The audit of one captured update: what is certain, what an attack makes of it, and how good that may be.

The truth, where somebody has it, meets the attack's images only in `judge`, as in any audit.
"""

import math
import threading
import time
from dataclasses import replace
from typing import Any

import torch

from dosimeter import checks, clients, engine
from dosimeter.attacks import Attack
from dosimeter.auditing.captured.certainty import certify, labels_said
from dosimeter.auditing.captured.seeing import Capture, Seen, see, with_labels
from dosimeter.auditing.captured.shadows import InPlace, compare
from dosimeter.auditing.case import clipping
from dosimeter.auditing.evidence import out_of_reach
from dosimeter.auditing.job import Job, chosen, classes, described, on_cpu
from dosimeter.auditing.observe import changed, clean, noticed
from dosimeter.auditing.records import Finding, ImageRecord
from dosimeter.auditing.result import Captured, Interrupted, InterruptedCapture, Result, environment
from dosimeter.auditing.run import perform
from dosimeter.auditing.score import Scoring, course, judge, told, unmeasured
from dosimeter.auditing.setting import MOST_BATCH, Audit
from dosimeter.auditing.watches import Watches
from dosimeter.clients import LocalTraining
from dosimeter.errors import DataError, SettingError
from dosimeter.progress import bar
from dosimeter.types import Outcome, Reconstruction, Statistics, Victims


def examine(
    audit: Audit,
    capture: Capture,
    truth: Victims | None = None,
    *,
    beside: Result | None = None,
    really: Audit | None = None,
) -> Captured:
    """`captured`, for whoever has its arguments together already; the victims of the audit are the shadows.

    Args:
        beside: what `shadowed` gave for another update of the same step on as many images at the same weights.
        really: how the client trained, where the attack simulates it in another way; the truth is held against this.
    """
    audit, capture = _resolved(audit, capture)
    _check(audit, capture, truth)
    seen, compared = see(audit, capture), audit.victims is not None and beside is None
    if really is not None:
        seen = seen._replace(client=see(_resolved(really, capture)[0], capture).client)
    if compared:
        Job(_like(audit, capture))  # which refuses what does not fit, before any work
    began = time.perf_counter()
    found, blind = _attack(seen, audit.resources.progress, audit.resources.seconds / (1 + compared))
    cut = found.interrupted or blind.interrupted
    certificate, certified, unsolved = certify(seen, audit, found, cut=cut)
    cut = cut or unsolved
    if compared and not cut:
        beside, cut = _shadow(_like(_in_what_is_left(audit, time.perf_counter() - began), capture))
    match = _match(found)
    scores = Finding(
        certificate=certificate,
        labels=labels_said(seen, audit, found),
        match=match,
        unmeasured=unmeasured(found),
        shadows=compare(match, found, beside, seen.attacker.target.mean.dtype),
        apart=None if truth is None else _apart(seen, truth),
    )
    shared: dict[str, Any] = {
        "settings": _settings(seen, audit),
        "threat": seen.attacker.threat,
        "curve": found.curve,
        "seconds": time.perf_counter() - began,
        "environment": environment(),
        "status": "interrupted" if cut else "complete",
    }
    judged = None if truth is None else _judge(seen, audit, found, blind, truth, shared)
    result = _told(found, blind, judged, scores, shared | {"certified": certified})
    if cut:
        raise InterruptedCapture(result)
    return result


def shadowed(audit: Audit, capture: Capture) -> Result:
    """The audit of the shadows alone, for updates that share it."""
    audit, capture = _resolved(audit, capture)
    _check(audit, capture, None)
    beside, cut = _shadow(_like(audit, capture))
    if cut or beside is None:
        raise KeyboardInterrupt
    return beside


def unlike(audit: Audit, capture: Capture, found: Captured, statistics: Statistics) -> float:
    """How far, relatively, the client's step on images that were found is from what it sent.

    Counted are its update and the statistics of its batch norms, {layer: mean and variance (C,)}, which tell a contrast
    that the update hardly does.
    """
    audit, capture = _resolved(audit, capture)
    seen = see(audit, capture)
    labels = [record.label_used for record in found.records]
    if None in labels:
        return math.inf
    images = found.images.to(seen.client.target.mean)
    own = clients.statistics(seen.client.target, images[0])
    gaps = [
        torch.cat([(own[name][0] - mean) / variance.sqrt(), (own[name][1] / variance).sqrt() - 1])
        for name, (mean, variance) in statistics.items()
    ]
    batch = Victims(found.images, torch.tensor([labels]), torch.arange(len(labels))[None], ("found",))
    return _apart(seen, batch) + float(torch.cat(gaps).nan_to_num(1.0, 1.0, 1.0).square().mean().sqrt())


def _resolved(audit: Audit, capture: Capture) -> tuple[Audit, Capture]:
    """With the labels, the clipping and the learning rate that they have in the end."""
    if capture.lr is None:
        capture = capture._replace(lr=audit.step.lr if isinstance(audit.step, LocalTraining) else 1.0)
    return clipping(replace(audit, attack=with_labels(audit.attack, capture.labels))), capture


def _like(audit: Audit, capture: Capture) -> Audit:
    """The audit of shadows."""
    return replace(audit, defense=InPlace(inner=audit.defense, lr=capture.lr or 1.0), names={})


def _told(
    found: Reconstruction, blind: Reconstruction, judged: Result | None, scores: Finding, shared: dict[str, Any]
) -> Captured:
    """All that was found; beside the truth images are in its order and records have scores."""
    if judged is None:
        records = [_record(found, image) for image in range(found.images.shape[1])]
        return Captured(**shared, scores=scores, records=records, raw=found.images, raw_baseline=blind.images)
    kept: dict[str, Any] = {"records": judged.records, "raw": judged.raw, "raw_baseline": judged.raw_baseline}
    return Captured(**shared, **kept, scores=replace(scores, judged=judged.scores), judged=judged)


def _check(audit: Audit, capture: Capture, truth: Victims | None) -> None:
    """What the arguments owe each other."""
    batch, labels = capture.batch, capture.labels
    checks.count("An update", "images behind it", batch, most=MOST_BATCH)
    if not (capture.lr and capture.lr > 0 and math.isfinite(capture.lr)):
        raise SettingError(f"A change of weights is divided by a learning rate above 0, got {capture.lr}.")
    if labels is not None and len(labels) != batch:
        raise SettingError(f"Expected a label for each of the {batch} image(s) of the update, got {len(labels)}.")
    if labels is not None and not labels.is_floating_point() and int(labels.min()) < 0:
        raise SettingError(f"Labels are classes from 0 on, got {int(labels.min())}.")
    if audit.granted().secrets:
        raise SettingError(
            f"The attack {audit.attack.name!r} or the defense reveals what the client drew inside the model, which "
            "nobody knows of a captured update; let the attack suppose it (secrets=joint or resampled)."
        )
    expected = (batch, *capture.shape)
    for what, victims in (("truth", truth), ("shadows", audit.victims)):
        if victims is not None and victims.images.shape[1:] != expected:
            raise DataError(
                f"Expected {what} of (images, channels, height, width) {expected} as behind the update, got "
                f"{tuple(victims.images.shape[1:])}; give batches of its size, or say --batch."
            )
    if truth is not None and len(truth.ids) != 1:
        raise DataError(f"Expected the one batch behind the update as its truth, got {len(truth.ids)}.")


def _attack(seen: Seen, progress: bool | None, limit: float) -> tuple[Reconstruction, Reconstruction]:
    """What the attack makes of the update and what it makes of nothing; a thread of its own hears of Ctrl-C.

    After `limit` seconds the attack gives up.
    """
    stop = threading.Event()

    def work(watches: Watches) -> tuple[Reconstruction, Reconstruction]:
        observed = [seen.observation]
        found = watches.ended(0, noticed(seen.attacker.read(observed, watches.of(0)), observed))
        return found, seen.attacker.guess(observed, watches.blind())

    with bar(f"{seen.attacker.attack.name}, captured update", None, show=progress) as advance:
        done = engine.threads.run(work, [Watches(advance, stop, tiles=1, limit=limit)], workers=1, stop=stop)
    if not done:
        raise KeyboardInterrupt
    return on_cpu([done[0][0]]), on_cpu([done[0][1]])


def _in_what_is_left(audit: Audit, spent: float) -> Audit:
    """The audit in the time that is left of its own, of which so many seconds were spent."""
    if audit.resources.minutes is None:
        return audit
    left = max(1e-3, audit.resources.minutes - spent / 60)
    return replace(audit, resources=replace(audit.resources, minutes=left))


def _shadow(audit: Audit) -> tuple[Result | None, bool]:
    """An ordinary audit of the shadows, and whether it was cut short."""
    try:
        # Once, as the captured update is attacked, of which nobody knows whether it fell short.
        return perform(replace(audit, scoring=Scoring(threshold=audit.scoring.threshold)), once=True), False
    except Interrupted as interrupted:
        return interrupted.result, True
    except KeyboardInterrupt:
        return None, True


def _settings(seen: Seen, audit: Audit) -> dict[str, Any]:
    """What was set, as plain values."""
    said = {"data": "captured", "model": type(audit.model).__name__}
    said |= {} if audit.victims is None else {"shadows": "the caller's"}
    described_ = described(seen.client.target, audit, seen.observation.batch) | chosen(seen.attacker.attack)
    return said | dict(audit.names) | described_ | audit.defense.facts() | {"victims": 1} | audit.scoring.settings()


def _judge(
    seen: Seen, audit: Audit, found: Reconstruction, blind: Reconstruction, truth: Victims, shared: dict[str, Any]
) -> Result:
    """The reconstruction beside the truth, as in any audit."""
    client, attack = seen.client.target, audit.attack
    among, std = classes(client, attack, truth.batch), client.std.cpu()
    made, scoring = truth.trained_on, audit.scoring
    if made is not None and scoring.decoys is not None:
        scoring = replace(scoring, changed=changed(seen.client, scoring.decoys, truth))
    own = clean(seen.client, truth, seen.attacker.threat)
    match = attack.apart(seen.attacker.target, own, [seen.observation]).detach().cpu() if attack.reads_images else None
    trained = truth.images if made is None else made
    beyond = out_of_reach(attack, seen.attacker.target, trained, scoring.threshold, tile=1)
    verdict = judge(truth, found, blind, scoring, std=std, classes=among, transformed=made, truth=match, beyond=beyond)
    return Result(
        **shared,
        records=verdict.records,
        scores=replace(verdict.summary, trained=None),  # how the client trained is not part of the truth
        victims=truth,
        raw=verdict.raw,
        raw_baseline=verdict.raw_baseline,
        std=std,
        transformed=made,
        read_as=verdict.read_as,
    )


def _apart(seen: Seen, truth: Victims) -> float:
    """How far, relatively, the update that the truth gives by this step is from the captured one, before any noise."""
    own = clean(seen.client, truth, seen.attacker.threat)
    return float(Attack.apart(seen.attacker.attack, seen.attacker.target, own, [seen.observation])[0])


def _record(found: Reconstruction, image: int) -> ImageRecord:
    """All that is to be said of an image without the truth."""
    used = None if found.labels is None else told(found.labels[0, image])
    return ImageRecord(victim=0, image=image, label_used=used, **course(found, 0))


def _match(found: Reconstruction) -> float | None:
    """The final matching loss; None where the search diverged or there was nothing to match."""
    (outcome,) = found.outcomes
    nothing = outcome in (Outcome.LABELS, Outcome.ZERO_UPDATE) or not found.match[0].isfinite()
    return None if nothing else float(found.match[0])
