"""The audit itself: check everything, then step, attack and judge."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dosimeter import engine
from dosimeter.auditing.again import TIMES, search_again
from dosimeter.auditing.evidence import out_of_reach
from dosimeter.auditing.job import Job, Ran
from dosimeter.auditing.observe import changed, trained_on
from dosimeter.auditing.result import Interrupted, Result, environment
from dosimeter.auditing.score import judge
from dosimeter.auditing.setting import Audit
from dosimeter.auditing.watches import Place
from dosimeter.progress import bar
from dosimeter.types import Victims

PATIENCE = 60.0
"""Seconds that an estimate may take."""


class Attacked(NamedTuple):
    """What an attack found, which is yet to be judged."""

    ran: Ran
    seconds: float


def perform(audit: Audit, *, place: Place | None = None, once: bool = False) -> Result:
    """What comes of an audit; `place` is the attack's in a panel, and `once` lets no search begin anew."""
    job = Job(audit)
    return judged(job, attack(job, place=place, once=once))


def attack(job: Job, *, place: Place | None = None, once: bool = False) -> Attacked:
    """What the attack finds of all victims, or of those reached before Ctrl-C."""
    audit, name = job.audit, job.audit.attack.name
    began = time.perf_counter()
    limit = place.limit if place else audit.resources.seconds
    title = f"{place.title(name) if place else name}, {len(job.victims.ids)} victims"
    with bar(title, None, show=audit.resources.progress) as advance:
        ran = job.run(place.around(advance) if place else advance, limit=limit)
    if not once:
        other = _changed(job, job.victims.take(slice(len(ran.found.stopped))))[1]
        left, spare = limit - (time.perf_counter() - began), place.read if place else ()
        ran = ran._replace(found=search_again(job, ran, other, limit=left, spare=spare))
    return Attacked(ran, time.perf_counter() - began)


def judged(job: Job, attacked: Attacked) -> Result:
    """What was found beside the truth; after Ctrl-C `Interrupted` is raised with it."""
    audit, scoring, (found, blind, truth) = job.audit, job.audit.scoring, attacked.ran
    reached = job.victims.take(slice(len(found.stopped)))
    (made, other), std = _changed(job, reached), job.client.target.std.cpu()
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
        beyond=out_of_reach(audit.attack, job.attacker.target, made, scoring.threshold, job.plan.victims),
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
        read_as=verdict.read_as,
        curve=found.curve,
        seconds=attacked.seconds,
        environment=environment(),
        status="interrupted" if found.interrupted or blind.interrupted else "complete",
    )
    if result.status == "interrupted":
        raise Interrupted(result)
    return result


def _changed(job: Job, victims: Victims) -> tuple[Tensor, Tensor | None]:
    """(V, B, C, H, W) what clients trained on, and the same or None where that is their images."""
    made = trained_on(job.client, victims)
    return made, None if torch.equal(made, victims.images) else made


def explain(audit: Audit) -> list[engine.Explanation]:
    """Which tensor is compared in which way and why, found out on the first victim."""
    return Job(audit).explain()


class Paced(NamedTuple):
    """What the first steps, or victims, of a tile took, in whatever a meter gives: seconds, or work that it counts."""

    before: Any  # what went before the first of them
    each: Any
    done: int
    total: int  # of the whole tile


def first_steps(job: Job, meter: Callable[[], Any], *, patience: float = PATIENCE, blind: bool = False) -> Paced:
    """The first three steps or victims of a tile, actually run, or those that `patience` seconds allow.

    `blind` takes those of the same attack without the update.
    """
    began = time.perf_counter()
    marks, begun, whole, waiting, enough = [(began, meter(), 0)], 0, 1, False, False

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        nonlocal begun, whole, waiting, enough
        whole = total
        marks.append((time.perf_counter(), meter(), done))
        before, waiting = waiting, job.cost.steps > 0 and match != match
        if waiting or before:
            begun = len(marks) - 1  # the search has not begun, or only now that all is looked at for the first time
        began, _, first = marks[begun]
        enough = done >= first + 3 or marks[-1][0] > began + patience
        if enough:
            raise KeyboardInterrupt

    found = job.attack_first_tile(watch, blind=blind)
    if not enough:
        if found.interrupted:
            raise KeyboardInterrupt  # by somebody else
        marks.append((time.perf_counter(), meter(), whole))
    (_, began_at, first), (_, ended_at, last) = marks[begun], marks[-1]
    return Paced(began_at - marks[0][1], (ended_at - began_at) / max(1, last - first), last - first, whole)


def estimate(audit: Audit, *, patience: float = PATIENCE) -> dict[str, Any]:
    """Time and memory of an audit, from the plan and from the first three steps or victims of a tile, actually run.

    `done` of the `total` of that tile were done within `patience` seconds; with none of them done, `seconds` is less
    than what it takes. A search that stops by itself takes from `least` on, and `seconds` if it never does and falls
    short on every victim, however often it begins anew.
    """
    job = Job(audit)
    paced = first_steps(job, time.perf_counter, patience=patience)
    tiles = -(-len(job.victims.ids) // job.plan.victims)
    once = (paced.before + paced.each * paced.total) * -(-tiles // job.plan.workers)
    steps, limit = max(1, job.cost.steps), audit.resources.seconds
    least, most = once * (job.cost.least or steps) / steps, once * (1 + TIMES * job.longer / steps)
    plan = {"bytes": job.bytes, "tiles": tiles, "tile": job.plan.victims}
    unit = "steps" if job.cost.steps else "victims"
    said = {"unit": unit, "tried": job.cost.tried, "side_by_side": job.plan.restarts, "restarts": job.cost.restarts}
    said |= {"least": min(least, limit), "seconds": min(most, limit), "again": TIMES if job.longer else 0}
    said |= {"picked": job.attacker.attack.picked}
    return {"done": paced.done, "fewest": round(paced.total * least / once), "total": paced.total, **said, **plan}
