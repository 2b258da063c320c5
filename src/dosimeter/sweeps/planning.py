"""What a sweep would take before it runs: every trial's steps, core-seconds and memory, and when all would be done."""

import heapq
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter.auditing.panel.panel import audits_of
from dosimeter.sweeps.costs import Cost, Prices, Span, cost_of, prices, training_cost
from dosimeter.sweeps.places import HERE, Here, Place, place_of
from dosimeter.sweeps.store import FILE, Status, Store
from dosimeter.sweeps.trial import Course, Prepared, Trained, Trial

TO_RUN = "to run"
STANDING = {Status.DONE: "kept", Status.FAILED: "failed", Status.RUNNING: "running"}


class Planned(NamedTuple):
    """A trial, or a training that trials share, before it is run."""

    words: Mapping[str, Any]
    digest: str
    kind: str
    status: str  # to run, kept, failed or running
    attacks: int = 0
    refused: int = 0  # of these, attacks that do not fit
    steps: Span = Span()  # of its longest search
    images: Span = Span()  # image-steps
    seconds: Span = Span()  # of cores
    wall: Span = Span()  # by the clock, once it is begun
    bytes: int = 0  # above those of the program
    shared: int = 0  # by how many audits


class Plan(NamedTuple):
    """A sweep before it is run."""

    rows: list[Planned]
    seconds: Span  # of cores, of all that is to run
    wall: Span  # by the clock, on the place that was asked for
    bytes: int  # at most at once
    machine: str  # whose prices these are

    @property
    def left(self) -> list[Planned]:
        return [each for each in self.rows if each.status == TO_RUN]


def plan(trials: Iterable[Trial | Course], store: str | Path, *, on: str = HERE) -> Plan:
    """What `sweep` would run, for how long and in what memory; first steps are taken, and nothing is written."""
    priced, place = prices(), place_of(on)
    prepared = list({each.digest: each for each in (one.prepare() for one in trials)}.values())
    rows = _rows(prepared, _standing(Path(store)), priced, place)
    left = [each for each in rows if each.status == TO_RUN]
    workers = max(1, min(place.workers, len(left)))
    apart = not isinstance(place, Here)
    ends = [apart * priced.start + last_end([each.wall[at] for each in left], workers) for at in range(3)]
    highest = sorted((each.bytes for each in left), reverse=True)[:workers]
    held = sum(highest) + (workers + apart) * priced.resident
    seconds = Span.total([each.seconds for each in left])
    return Plan(rows, seconds, Span(*ends) if left else Span(), held if left else 0, priced.machine)


def foreseen(items: Sequence[Prepared | Trained], place: Place) -> dict[str, float]:
    """Seconds that each trial is likely to take, where they are unlike each other; nothing where they are not.

    A training counts in equal parts for the trials that share it.
    """
    prepared = [each for each in items if isinstance(each, Prepared)]
    if len({_like(each) for each in prepared}) < 2:
        return {}
    rows = {each.digest: each for each in _rows(prepared, {}, prices(), place)}
    found = {each.digest: rows[each.digest].wall.likely for each in prepared}
    for each in prepared:
        if each.needs:
            training = rows[each.needs.digest]
            found[each.digest] += training.wall.likely / training.shared
    return found


def _rows(
    items: Sequence[Prepared | Trained], standing: Mapping[str, str], priced: Prices, place: Place
) -> list[Planned]:
    """Trainings, then audits, in the order in which they come; what is alike is counted once."""
    threads = place.threads if isinstance(place, Here) else 1
    prepared = [each for each in items if isinstance(each, Prepared)]
    shared = [each.needs for each in prepared if each.needs]
    alone = [each for each in items if isinstance(each, Trained)]
    trainings = {each.digest: each for each in [*shared, *alone]}.values()
    rows = [_training(each, shared, standing, priced, threads) for each in trainings]
    known: dict[Trial, list[Cost]] = {}
    for each in prepared:
        if each.digest not in standing and _like(each) not in known:
            known[_like(each)] = costs_of(each, priced, threads=threads)
    return rows + [_audit(each, known.get(_like(each), []), standing, priced) for each in prepared]


def costs_of(prepared: Prepared, priced: Prices, *, threads: int | None) -> list[Cost]:
    """What each attack of a trial would take on so many threads."""
    audit = prepared.audit
    audit = replace(audit, resources=replace(audit.resources, workers=threads))
    audits = [audit] if prepared.steps is None else audits_of(audit, steps=prepared.steps)
    return [cost_of(each, priced) for each in audits]


def last_end(times: Iterable[float], workers: int) -> float:
    """When the last of some items is done, which so many workers take in their order."""
    busy = [0.0] * workers
    for each in times:
        heapq.heappush(busy, heapq.heappop(busy) + each)
    return max(busy)


def _like(prepared: Prepared) -> Trial:
    """What takes as long: the same with another seed or with other numbers of its defense, but for 0."""
    asked = prepared.asked
    return replace(asked, seed=0, defense=re.sub(r"=(?!0(?![.\d]))[\d.e+-]+", "=1", asked.defense))


def _standing(store: Path) -> dict[str, str]:
    """What a store says of its trials; nothing where there is none yet."""
    if not (store / FILE).is_file():
        return {}
    with Store(store, create=False) as kept:
        return {digest: STANDING[status] for digest, (status, _) in kept.standing().items()}


def _audit(one: Prepared, costs: Sequence[Cost], standing: Mapping[str, str], priced: Prices) -> Planned:
    row = Planned(one.words, one.digest, one.kind, standing.get(one.digest, TO_RUN))
    if row.status != TO_RUN:
        return row
    both = Span(*[priced.trial + priced.keeping(one.asked.victims * one.asked.batch)] * 3)
    return row._replace(
        attacks=len(costs),
        refused=sum(bool(each.refused) for each in costs),
        steps=max((each.steps for each in costs), default=Span()),
        images=Span.total([each.images for each in costs]),
        seconds=Span.total([both, *(each.seconds for each in costs)]),
        wall=Span.total([both, *(each.wall for each in costs)]),
        bytes=max((each.bytes for each in costs), default=0),
    )


def _training(
    one: Trained, users: Sequence[Trained], standing: Mapping[str, str], priced: Prices, threads: int | None
) -> Planned:
    row = Planned(one.words, one.digest, one.kind, standing.get(one.digest, TO_RUN))
    row = row._replace(shared=sum(each.digest == one.digest for each in users))
    if row.status != TO_RUN:
        return row
    core = training_cost(one.federation, priced, rounds=one.loaded().last)
    beside = min(threads or os.cpu_count() or 1, one.federation.protocol.taking_part())
    return row._replace(seconds=Span(core, core, core), wall=Span(*[core / beside] * 3))
