"""One verdict from all the evidence: an update leaks, that was not shown, or the audit cannot tell.

What an attack reaches is held against what it reaches without the update, claim by claim, each by an exact test; with
several claims and several attacks each has its share of `ALPHA`. That nothing was shown counts only where the search
did its work: every image was hidden from every attack that fits, the attack itself works here, and the dose of the
updates, where it was measured, does not say that far more could be read.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import exp, lgamma, log, log1p
from typing import TYPE_CHECKING, NamedTuple

from dosimeter.auditing.evidence import Evidence
from dosimeter.auditing.records import AsTrained, Identification, ImageRecord
from dosimeter.metrics import Rate
from dosimeter.types import Outcome

if TYPE_CHECKING:
    from dosimeter.auditing.captured.survey import Pooled
    from dosimeter.auditing.result import Result

ALPHA = 0.05
"""How often a verdict may say that something leaks where nothing does."""

ENOUGH = 20_000
"""Steps of which more are advised only to who asked for as many; searches that go on by themselves take fewer."""

SHOWS = {"ssim": 0.02, "lpips": -0.05}
"""By how much the median image must be nearer to its original than without the update, for that to be a leak."""

ORDER = ("certain", "read", "transformed", "identified", "labels", "nearer")
"""Claims, the gravest first."""

CAUGHT, MORE = 0.95, 4
"""How surely a leak would have been seen that is said to have been; times as many steps as a search that fell short."""


class Kind(StrEnum):
    LEAKS = "leaks"
    NOT_SHOWN = "not shown"
    INCONCLUSIVE = "inconclusive"


class Claim(NamedTuple):
    """One way in which updates may leak."""

    name: str  # read, identified, labels, certain or nearer
    rate: Rate  # of images or labels, those left out that need no update
    p: float  # how likely it is that a useless update gives as much
    leaks: bool
    words: str


class Verdict(NamedTuple):
    kind: Kind
    sentence: str
    claims: tuple[Claim, ...]
    doubt: str = ""  # why it would be no evidence if nothing leaked
    details: tuple[str, ...] = ()
    """What else leaks and for whom, or what was tried and would have been caught."""
    settles: str = ""  # the command that would settle what cannot be told, where one may and the one before is known


def weigh(result: "Result | Pooled") -> Verdict:
    """What an audit, a panel of attacks or the audit of a whole federation says of the updates."""
    tried = [(t.attack, t.result) for t in result.panel if t.result is not None and t.role != "control"]
    attacks: list[tuple[str, Result | Pooled]] = list(tried) or [
        (result.settings.get("attack_name", "the attack"), result)
    ]
    level = ALPHA / max(1, sum(len(list(_claims(found, 1.0))) for _, found in attacks))
    claims = [(name, claim) for name, found in attacks for claim in (*_claims(found, level), *found.alone)]
    flat, doubt = tuple(claim for _, claim in claims), _doubt(result, [found for _, found in attacks])
    dosed = "" if result.dosed is None else f" {result.dosed.sentence}"
    leaking = sorted(
        ((name, claim) for name, claim in claims if claim.leaks),
        key=lambda each: (ORDER.index(each[1].name), -each[1].rate.rate),
    )
    if leaking:
        words = [f"{claim.words}{f' ({name})' if len(attacks) > 1 else ''}" for name, claim in leaking]
        first = {claim.name: said for (_, claim), said in reversed(list(zip(leaking, words, strict=True)))}
        details = [f"Also, {said}." for said in reversed(first.values()) if said != words[0]]
        details.append(result.most_exposed)
        return Verdict(Kind.LEAKS, f"The updates leak: {words[0]}.{dosed}", flat, doubt, tuple(details))
    if doubt:
        # A doubt that is the dose's own says already what the dose does.
        more = "" if result.dosed is not None and doubt == result.dosed.doubt else dosed
        said = f"The audit cannot tell: {doubt}.{more}"
        return Verdict(Kind.INCONCLUSIVE, said, flat, doubt, settles=_settles(result, attacks))
    seen = f"by {len(attacks)} attacks" if len(attacks) > 1 else f"by {attacks[0][0]}"
    images = len(result.records)
    words_ = f"No leak was shown {seen}; what was found explains the updates of all {images:,} images.{dosed}"
    share = 1 - (1 - CAUGHT) ** (1 / images)
    caught = (
        f"Had these attacks read {share:.1%} of such images or more, {CAUGHT:.0%} of audits like this one would have "
        f"shown it. Tried: {', '.join(name for name, _ in attacks)}."
    )
    return Verdict(Kind.NOT_SHOWN, words_, flat, details=(caught,))


def _settles(result: "Result | Pooled", attacks: Sequence[tuple[str, "Result | Pooled"]]) -> str:
    """The command of the audit with more steps."""
    took = max((record.steps for _, found in attacks for record in found.records), default=0)
    command = result.command.splitlines()[0] if result.command else ""
    if not took or not command:
        return ""
    words = shlex.split(command)
    if "--out" in words:  # which is taken
        del words[words.index("--out") : words.index("--out") + 2]
    steps, own = str(MORE * took), [at for at, word in enumerate(words) if re.search(r"\bsteps=\d+", word)]
    if "--steps" in words:
        words[words.index("--steps") + 1] = steps
    elif own and words[own[0] - 1] == "--attack":
        words[own[0]] = re.sub(r"\bsteps=\d+", f"steps={steps}", words[own[0]])
    else:
        words += ["--steps", steps]
    return shlex.join(words)


def _claims(result: "Result | Pooled", level: float) -> Iterator[Claim]:
    scores, records = result.scores, result.records
    blind = [r.blind_ssim >= scores.success.threshold for r in records]
    gained = sum(bool(r.read) and not b for r, b in zip(records, blind, strict=True))
    lost = sum(not r.read and b for r, b in zip(records, blind, strict=True))
    p = _sign(gained, lost)
    words = f"{gained:,} of {len(records):,} images are read that the attack does not read without the update"
    if records:  # without the truth there are none
        yield Claim("read", Rate(gained, len(records)), p, gained > 0 and (not lost or p < level), words)
    yield from _close("their originals", scores.identification, records, level)
    if made := scores.transformed:
        trained = [r.transformed for r in records if r.transformed is not None]
        blind = [r.baseline["ssim"] >= scores.success.threshold for r in trained]
        gained = sum(r.read and not b for r, b in zip(trained, blind, strict=True))
        words = f"{gained:,} of {made.of:,} images that clients trained on are read, which their defense made"
        yield Claim("transformed", Rate(gained, made.of), 0.0, gained > 0, words)
        yield from _close("what clients trained on", made.identification, trained, level)
    if labels := scores.labels:
        p = _tail(labels.hits, labels.of, labels.guess)
        words = f"{labels.hits:,} of {labels.of:,} labels are recovered, where an even guess gets {labels.guess:.1%}"
        words = words if labels.guess else f"{labels.hits:,} of {labels.of:,} labels are certain"
        yield Claim("labels", labels, p, p < level, words)
    if certain := scores.recovered:
        words = f"{certain.hits:,} of {certain.of:,} images are recovered with certainty"
        yield Claim("certain", certain, 0.0, certain.hits > 0, words)


def _close(
    what: str, told: Identification | None, records: Sequence[ImageRecord | AsTrained], level: float
) -> Iterator[Claim]:
    """Whether what was found is nearer to `what` than without the update, and is told from decoys by it."""
    for key, least in SHOWS.items():
        pairs = [(r.scores[key], r.baseline[key]) for r in records if r.baseline and key in r.baseline]
        if pairs:
            yield _nearer(key, what, pairs, least, level)
    if told is not None:
        p = _tail(told.hits, told.of, told.chance)
        words = f"{told.hits:,} of {told.of:,} images are told from decoys, where chance is {told.chance:.1%}"
        yield Claim("identified", told, p, p < level and told.hits > (told.blind or 0), words)


def _nearer(key: str, what: str, pairs: Sequence[tuple[float, float]], least: float, level: float) -> Claim:
    """Whether images are nearer to `what` than those without the update, by a score of which `least` shows."""
    gains = sorted((with_ - without) * (1 if least > 0 else -1) for with_, without in pairs)
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    p, median = _sign(better, worse), gains[len(gains) // 2]
    words = f"{better:,} of {len(gains):,} images are nearer to {what} ({key.upper()}) than without the update"
    return Claim("nearer", Rate(better, len(gains)), p, p < level and median > abs(least), words)


def _doubt(result: "Result | Pooled", attacks: Sequence["Result | Pooled"]) -> str:
    """Why a result in which nothing leaks is no evidence that nothing does; nothing where it is."""
    if result.unmeasured:
        late = any(Outcome.OUT_OF_TIME in found.scores.unmeasured for found in attacks)
        minutes = result.settings.get("minutes")
        more = f"; give it more time (--minutes {2 * minutes:g})" if late and minutes else ""
        return result.unmeasured.rstrip(".") + more
    control = next((t.result for t in result.panel if t.role == "control" and t.result is not None), None)
    if control is not None and 2 * control.scores.success.hits < control.scores.success.of:
        why = "with all that the defense hides revealed the attack still fails, so it fails of itself"
        return f"{why}; {_longer(attacks)}"
    if result.records and not any(found.scores.evidence for found in attacks):
        return "images were not looked for; use an attack on them (--attack ig, or auto)"
    fitting = [found for found in attacks if Evidence.UNFIT not in found.scores.evidence]
    short = max((found.scores.evidence.get(Evidence.FELL_SHORT, 0) for found in fitting), default=0)
    if short:
        return (
            f"of {short:,} of {len(result.records):,} images the client's own step explains the update better than "
            f"what was found, so the search fell short; {_longer(attacks)}, or use an attack made for the defense"
        )
    if not fitting:
        return (
            "no attack fits these updates, since noise breaks its equations or its generator has no such images; use a "
            "search among all images (--attack ig)"
        )
    return "" if result.dosed is None else result.dosed.doubt


def _longer(attacks: Sequence["Result | Pooled"]) -> str:
    """What to do about searches that ended too soon."""
    asked = [found.settings["steps"] for found in attacks if found.settings.get("steps")]
    few = any(isinstance(steps, int) and steps < ENOUGH for steps in asked)
    if few:
        return "let it go on until it stops improving (--steps auto)"
    return f"use more steps (--steps {max([ENOUGH, *(2 * n for n in asked if isinstance(n, int))])})"


def _sign(more: int, less: int) -> float:
    """The chance of so many heads or more, by the sign test."""
    return _tail(more, more + less, 0.5)


def _tail(hits: int, n: int, chance: float) -> float:
    """P(at least so many hits of n), each by chance."""
    if not hits or chance >= 1:
        return 1.0
    if chance <= 0:
        return 0.0
    ways = (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) for k in range(hits, n + 1))
    each = (w + k * log(chance) + (n - k) * log1p(-chance) for k, w in enumerate(ways, hits))
    return min(1.0, sum(map(exp, each)))
