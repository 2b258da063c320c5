"""An audit by every attack made for a defense, and what they say together.

A defense judged by an attack that ignores it gets a false pass.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dosimeter import fingerprint
from dosimeter.attacks import Attack, Steps, presets
from dosimeter.auditing.job import Job
from dosimeter.auditing.observe import like
from dosimeter.auditing.panel.channels import channel_of
from dosimeter.auditing.panel.contenders import Contender, contenders
from dosimeter.auditing.records import COMPLETE, INTERRUPTED
from dosimeter.auditing.result import Interrupted, Result, Trial
from dosimeter.auditing.run import PATIENCE, estimate, perform
from dosimeter.auditing.setting import Audit
from dosimeter.auditing.watches import Place
from dosimeter.channel import Channel
from dosimeter.defenses import Around, Moment
from dosimeter.errors import DosimeterError, ModelError, SettingError
from dosimeter.networks import has_tokens
from dosimeter.types import Gradient, Outcome

LEAST = 60.0
"""Seconds that an attack that solves has at first; one that needs longer has as long as all others took together."""


@dataclass(frozen=True, kw_only=True)
class Revealed(Around):
    """A defense that hides nothing: its layers and its draws, but the plain batch and the plain update."""

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return images, labels

    def clips(self) -> None:
        return None

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        return gradient


def audit_panel(
    audit: Audit, *, steps: Steps, kept: Mapping[str, Result] | None = None, by: Callable[..., Result] = perform
) -> Iterator[Trial]:
    """Audit by every attack of the panel in turn; the attack of the audit does not count.

    What solves or knows the defense comes first, for searches begin anew only for victims that none before them read.
    After Ctrl-C the last one has what was found by then. `kept` are results of before, which stand for their attacks;
    `by` gives those that are not.
    """
    job, channel = _seen_through(audit, steps)
    words, panel = {"channel": channel.words()}, _in_turn(job, channel, steps)
    queue, times, read, end = deque(panel), list[float](), set[int](), time.monotonic() + audit.resources.seconds
    number, waited = 0, 0
    while queue:
        one, number = queue.popleft(), number + 1
        limit = math.inf if _searches(one, job) else max(LEAST, sum(times))
        share = (end - time.monotonic()) / (len(queue) + 1)  # what an attack leaves, those after it have
        place = Place(number, len(panel), len(times), sum(times), min(limit, share), frozenset(read))
        trial = Trial(
            attack=one.attack.name, role=one.role, about=one.about, rounds=one.rounds, same_client=one.same_client
        )
        each = _by(one, audit)
        made = "" if kept is None else made_by(each)
        try:
            found = (kept or {}).get(made) or by(each, place=place)
        except Interrupted as cut:
            found = cut.result
        except SettingError as reason:
            if one.attack.name == "ig":
                raise  # what keeps the plain attack from running keeps all others from it
            yield replace(trial, refused=str(reason))
            continue
        late = Outcome.OUT_OF_TIME in found.scores.unmeasured
        if late and len(queue) > waited and not _searches(one, job):
            queue.append(one)  # after the searches, whose time it may take then
            number, waited = number - 1, waited + 1
            continue
        times.append(found.seconds)
        if one.role != "control":  # which is told what the defense hides, so that what it reads is not read yet
            hidden = {record.victim for record in found.records if not record.read}
            read |= {record.victim for record in found.records} - hidden
        made = "" if late and share < limit else made
        yield replace(trial, result=replace(found, settings=found.settings | words, made=made))
        if found.status == INTERRUPTED or (audit.resources.until_read and len(read) == len(job.victims.ids)):
            return


def _in_turn(job: Job, channel: Channel, steps: Steps) -> list[Contender]:
    """The panel, cheap and strong attacks first."""
    turns = {"adaptive": 1, "published": 2, "control": 3}
    panel = contenders(channel, steps=steps, waves=_has_waves(job))
    return sorted(panel, key=lambda one: _searches(one, job) and turns[one.role])


def _has_waves(job: Job) -> bool:
    """Whether images may be searched from coarse to fine: not tiny ones, nor patch by patch, where that does harm."""
    target = job.client.target
    return min(target.shape[1:]) >= 8 and not has_tokens(target.model, target.shape)


def _searches(one: Contender, job: Job) -> bool:
    return one.attack.cost(job.client.target, job.victims.batch).steps > 0


def made_by(audit: Audit, **more: object) -> str:
    """The fingerprint of all that determines a result; nothing where a part cannot be told from others."""
    parts = [fingerprint.code(), audit.made, audit.model, audit.scoring, dict(audit.names), more]
    try:
        return fingerprint.of(parts)
    except ModelError:
        return ""


def audit_all(audit: Audit, *, steps: Steps, by: Callable[..., Result] = perform) -> Result:
    """What all attacks of the panel say together; Ctrl-C raises `Interrupted` with what they say by then."""
    whole = conclude(list(audit_panel(audit, steps=steps, by=by)))
    if whole.status == INTERRUPTED:
        raise Interrupted(whole)
    return whole


def _by(one: Contender, audit: Audit) -> Audit:
    """The same audit by a contender; a control has all revealed."""
    defense = Revealed(inner=audit.defense) if one.role == "control" else audit.defense
    tied = max(audit.updates.same_client, one.same_client)
    updates = replace(audit.updates, rounds=one.rounds, same_client=tied)
    return replace(audit, attack=one.attack, defense=defense, updates=updates)


def _seen_through(audit: Audit, steps: Steps) -> tuple[Job, Channel]:
    """An audit by the plain attack, and what becomes of updates in it."""
    job = Job(replace(audit, attack=presets.inverting_gradients(steps=steps)))
    target = job.client.target
    labels = like(job.victims.labels[0], target)
    form = torch.zeros_like(labels) if target.classification else labels
    return job, channel_of(audit.defense, target, form, audit.seed)


def attacks_of(audit: Audit, *, steps: Steps) -> list[Attack]:
    """The attacks of the panel."""
    return [one.attack for one in audits_of(audit, steps=steps)]


def audits_of(audit: Audit, *, steps: Steps) -> list[Audit]:
    """The same audit by every attack of the panel, in their order."""
    return [_by(one, audit) for one in _in_turn(*_seen_through(audit, steps), steps)]


def estimate_panel(audit: Audit, *, steps: Steps) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """What each attack of the panel would take, as `estimate` says it, or why it would be refused."""
    panel = audits_of(audit, steps=steps)
    for one in panel:
        try:
            yield one.attack.name, estimate(one, patience=PATIENCE / len(panel))
        except SettingError as reason:
            yield one.attack.name, str(reason)


def strongest(trials: Sequence[Trial]) -> tuple[Trial, Result]:
    """The attack that reads most images, of these the one with the highest mean SSIM; controls do not count.

    Where clients train on transformed images, either those or the originals count, whichever are nearer. Its interval
    allows for its having been picked among all.
    """
    ran = [(t, t.result) for t in trials if t.result is not None and t.role != "control"]
    if not ran:
        raise DosimeterError("No attack of the panel could be run; see the reasons above.")
    trial, best = max(ran, key=lambda both: (both[1].scores.success.hits, both[1].scores.nearest["ssim"].mean))
    success = replace(best.scores.success, picked_from=len(ran))
    return trial, replace(best, scores=replace(best.scores, success=success))


def conclude(trials: Sequence[Trial]) -> Result:
    """The strongest attack's result with the whole panel beside it."""
    ran = [t.result for t in trials if t.result is not None]
    best = strongest(trials)[1]
    status = INTERRUPTED if any(each.status == INTERRUPTED for each in ran) else COMPLETE
    seconds = sum(each.seconds for each in ran)
    return replace(best, panel=tuple(trials), verdict=verdict(trials), seconds=seconds, status=status, made="")


def verdict(trials: Sequence[Trial]) -> str:
    """What was tried, what the best attack reached, and whether the attack itself works here."""
    best, result = strongest(trials)
    attacks = [t for t in trials if t.role != "control"]
    tried = sum(t.result is not None for t in attacks)
    unfit = len(attacks) - tried
    beside = f" ({unfit} more {'does' if unfit == 1 else 'do'} not fit)" if unfit else ""
    hit, worst = result.scores.success, result.scores.worst
    words = (
        f"{tried} attack{' was' if tried == 1 else 's were'} tried{beside}. The best, {best.attack} ({best.about}), "
        f"reads {hit.hits} of {hit.of} images ({100 * hit.rate:.0f} %, 95 % interval {100 * hit.low:.0f}-"
        f"{100 * hit.high:.0f} %); the most exposed one, number {worst.index} of the data, has an SSIM of "
        f"{worst.ssim:.2f}."
    )
    if made := result.scores.transformed:
        words += f" {made.hits} are read as clients trained on them, {hit.originals} as they were."
        ran = [(t.attack, t.result.scores.success) for t in attacks if t.result is not None]
        name, most = max(ran, key=lambda each: each[1].originals or 0)
        if (most.originals or 0) > (hit.originals or 0):
            words += f" Of the originals {name} reads most, {most.originals} of {most.of}."
    words += f" What they answer: {result.settings['channel']}."
    control = next((t.result for t in trials if t.role == "control" and t.result is not None), None)
    if control is None:
        return words
    seen = control.scores.success
    revealed = f" With all that the defense hides revealed, {seen.hits} of {seen.of} are read"
    if 2 * seen.hits >= seen.of:
        return words + revealed + ", so the attack itself works here."
    if hit.hits > seen.hits:
        return words + revealed + " by that search, so the best attack needs none of it."
    return words + revealed + ": here even that fails, so a low rate says little of the defense."
