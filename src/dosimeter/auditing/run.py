"""The audit itself: check everything, then step, attack and judge."""

import time
from dataclasses import replace
from typing import Any

import torch

from dosimeter import engine
from dosimeter.auditing.job import Job
from dosimeter.auditing.observe import changed, trained_on
from dosimeter.auditing.result import Interrupted, Result, environment
from dosimeter.auditing.score import judge
from dosimeter.auditing.setting import Audit
from dosimeter.auditing.watches import Place
from dosimeter.progress import bar

PATIENCE = 60.0
"""Seconds that an estimate may take."""


def perform(audit: Audit, *, place: Place | None = None) -> Result:
    """What comes of an audit; `place` is the attack's in a panel."""
    job = Job(audit)
    victims, name = job.victims, audit.attack.name
    began = time.perf_counter()
    title = f"{place.title(name) if place else name}, {len(victims.ids)} victims"
    with bar(title, None, show=audit.resources.progress) as advance:
        found, blind, truth = job.run(place.around(advance), limit=place.limit) if place else job.run(advance)
    seconds = time.perf_counter() - began
    reached = victims.take(slice(len(found.stopped)))
    made, std = trained_on(job.client, reached), job.client.target.std.cpu()
    other, scoring = None if torch.equal(made, reached.images) else made, audit.scoring
    if other is not None and scoring.decoys is not None:
        scoring = replace(scoring, changed=changed(job.client, scoring.decoys, reached))
    verdict = judge(
        reached,
        found,
        blind,
        scoring,
        std=std,
        trained=job.trained,
        classes=job.classes,
        transformed=other,
        truth=truth if audit.attack.reads_images else None,
    )
    result = Result(
        settings={"model": type(audit.model).__name__, "data": "the caller's"}
        | dict(audit.names)
        | job.settings()
        | {"victims": len(reached.ids)}
        | audit.scoring.settings(),
        threat=job.threat,
        records=verdict.records,
        scores=verdict.summary,
        victims=reached,
        raw=verdict.raw,
        raw_baseline=verdict.raw_baseline,
        std=std,
        transformed=other,
        curve=found.curve,
        seconds=seconds,
        environment=environment(),
        status="interrupted" if found.interrupted or blind.interrupted else "complete",
    )
    if result.status == "interrupted":
        raise Interrupted(result)
    return result


def explain(audit: Audit) -> list[engine.Explanation]:
    """Which tensor is compared in which way and why, found out on the first victim."""
    return Job(audit).explain()


def estimate(audit: Audit, *, patience: float = PATIENCE) -> dict[str, Any]:
    """Time and memory of an audit, from the plan and from the first three steps or victims of a tile, actually run.

    `done` of the `total` of that tile were done within `patience` seconds; with none of them done, `seconds` is less
    than what it takes.
    """
    job = Job(audit)
    marks, begun, whole, enough = [(time.perf_counter(), 0)], 0, 1, False

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        nonlocal begun, whole, enough
        whole = total
        marks.append((time.perf_counter(), done))
        if job.cost.steps and match != match:
            begun = len(marks) - 1  # the search itself has not begun
        began, first = marks[begun]
        enough = done >= first + 3 or marks[-1][0] > began + patience
        if enough:
            raise KeyboardInterrupt

    found = job.attack_first_tile(watch)
    if not enough:
        if found.interrupted:
            raise KeyboardInterrupt  # by somebody else
        marks.append((time.perf_counter(), whole))
    (began, first), (ended, last) = marks[begun], marks[-1]
    tiles = -(-len(job.victims.ids) // job.plan.victims)
    seconds = (ended - began) / max(1, last - first) * whole * -(-tiles // job.plan.workers)
    plan = {"bytes": job.plan.bytes, "tiles": tiles, "tile": job.plan.victims}
    unit = "steps" if job.cost.steps else "victims"
    said = {"unit": unit, "tried": job.cost.tried, "side_by_side": job.plan.restarts, "restarts": job.cost.restarts}
    return {"seconds": seconds, "done": last - first, "total": whole, **said, **plan}
