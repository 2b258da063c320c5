"""Searches that fell short are begun anew, from another start and for longer.

The truth decides only where more time is spent: an auditor who knows it wants evidence of every victim. What a search
finds, and which of its finds is kept, is decided by its own match alone, as among restarts.
"""

import math
import time
from collections.abc import Collection

from torch import Tensor

from dosimeter import trees
from dosimeter.attacks.search.stopping import SETTLED
from dosimeter.auditing.evidence import Evidence
from dosimeter.auditing.job import Job, Ran
from dosimeter.auditing.score import Scoring, judge
from dosimeter.progress import bar
from dosimeter.types import Ended, Outcome, Reconstruction

TIMES = 2
"""How often a search is begun anew at most; more than once only where that lowered its match by the share `SETTLED`."""


def search_again(
    job: Job, ran: Ran, made: Tensor | None, *, limit: float = math.inf, spare: Collection[int] = ()
) -> Reconstruction:
    """What was found, for victims that fell short the best match of several searches.

    Args:
        made: (V, B, C, H, W) what clients trained on, where that is not their images.
        limit: seconds after which no search is begun, and one that is under way counts for nothing.
        spare: victims of whom nothing more is to be known.
    """
    found, end, spare = ran.found, time.monotonic() + limit, set(spare)
    for number in range(1, TIMES + 1):
        attack = job.attacker.attack.again(number)
        if attack is None or found.interrupted or time.monotonic() >= end:
            break
        who = _fell_short(job, ran._replace(found=found), made, spare)
        if not who:
            break
        title = f"{attack.name}, {len(who)} victims from another start"
        with bar(title, None, show=job.audit.resources.progress) as advance:
            try:
                other = job.run_again(attack, who, advance, limit=end - time.monotonic())
            except KeyboardInterrupt:
                return _interrupted(found, who)
        before = found.match[who[: len(other.match)]]
        helped = before - other.match > SETTLED * before.abs()
        spare |= {v for v, better in zip(who, helped.tolist(), strict=False) if not better}
        found = _lower(found, other, who)
        if other.interrupted:
            return _interrupted(found, who)
    return found


def _fell_short(job: Job, ran: Ran, made: Tensor | None, spare: Collection[int]) -> list[int]:
    """Victims of whom not all is read although the truth explains their update better; with all updates of a client."""
    if not job.audit.attack.reads_images:
        return []
    victims = job.victims.take(slice(len(ran.found.stopped)))
    lean = Scoring(threshold=job.audit.scoring.threshold)
    std = job.client.target.std.cpu()
    judged = judge(victims, ran.found, ran.blind, lean, std=std, transformed=made, truth=ran.truth)
    short = {each.victim for each in judged.records if each.evidence == Evidence.FELL_SHORT} - set(spare)
    tied = job.audit.updates.same_client
    return [v for v in range(len(victims.ids)) if short & set(range(v - v % tied, v - v % tied + tied))]


def _lower(found: Reconstruction, other: Reconstruction, who: list[int]) -> Reconstruction:
    """What was found, with victims of `who` replaced whom the other search matched better before its time was up."""
    rows, times = list(range(len(found.stopped))), list(found.again or (0,) * len(found.stopped))
    for at, (v, outcome) in enumerate(zip(who, other.outcomes, strict=False)):
        if outcome.measured and outcome is not Outcome.INTERRUPTED:
            times[v] += 1
            rows[v] = len(rows) + at if other.match[at] < found.match[v] else v
    both = trees.join([found._replace(again=()), other])
    return trees.chosen(both, rows)._replace(again=tuple(times))


def _interrupted(found: Reconstruction, who: list[int]) -> Reconstruction:
    """The same, marked as cut short where it was being searched for."""
    return found._replace(
        stopped=tuple(Ended(Outcome.INTERRUPTED) if v in who else each for v, each in enumerate(found.stopped))
    )
