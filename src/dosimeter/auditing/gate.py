"""A gate for pipelines: limits on what may leak, and whether an audit shows that they are kept."""

import math
from typing import NamedTuple

from dosimeter import checks
from dosimeter.auditing.captured.survey import Pooled
from dosimeter.auditing.captured.weighing import weigh_captured
from dosimeter.auditing.result import Captured, Result
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.errors import SettingError, unknown
from dosimeter.metrics import wilson

PASSES, FAILS, INCONCLUSIVE = 0, 1, 3
"""Exit codes; 2 is for what was asked for wrongly."""

RATES = ("read", "identified", "labels", "certain", "transformed", "nearer")
BY_CHANCE = ("identified", "labels", "nearer")
"""Rates that are not 0 where nothing leaks; whether they are more is for a test to say."""


class Gate(NamedTuple):
    code: int
    sentence: str


def limits(text: str) -> dict[str, float]:
    """`0.05`, of all rates that are measured, or `read=0.05,identified=0.1`, of these alone."""
    found: dict[str, float] = {}
    for word in text.split(","):
        name, _, share = word.rpartition("=")
        try:
            value = float(share)
        except ValueError:
            raise SettingError(
                f"A gate needs shares (--fail-above), 0.05 or read=0.05,identified=0.1, got {text!r}."
            ) from None
        checks.share("A gate", "a share (--fail-above)", value)
        if name and name not in RATES:
            raise SettingError(unknown("rate of --fail-above", name, RATES))
        if name in found:
            raise SettingError(f"The rate {name!r} of --fail-above is given twice; give it once.")
        found |= {name: value} if name else dict.fromkeys(RATES, value)
    return found


def check(asked: dict[str, float], images: int) -> None:
    """Refuse limits that no result of so many images could show to be kept."""
    least = min(asked.values())
    if least < 1 and wilson(0, images)[1] > least:
        z = 1.96
        needed = math.ceil(z * z * (1 - least) / least) if least else None
        raise SettingError(
            f"A gate at {least:g} cannot pass with {images:,} images, since 0 of {images:,} only shows a rate below "
            f"{wilson(0, images)[1]:.1%}; "
            + (f"use at least {needed:,} (--victims), or a higher limit." if needed else "no number shows a rate of 0.")
        )


def judge(result: Result | Pooled, asked: dict[str, float]) -> Gate:
    """Whether the limits are kept, broken, or neither is shown."""
    verdict = weigh(result)
    for name, limit in asked.items():
        for claim in verdict.claims:
            if claim.name == name and claim.leaks and claim.rate.rate > limit:
                return Gate(FAILS, f"Fails: {claim.words}, more than the {limit:.1%} that were allowed.")
    if verdict.doubt and min(asked.values()) < 1:  # whatever else leaks, of the rest it cannot be told
        return Gate(INCONCLUSIVE, f"Inconclusive: The audit cannot tell: {verdict.doubt}.")
    for name, limit in asked.items():
        for claim in verdict.claims:
            if claim.name == name and limit < 1 and claim.rate.high > limit and name not in BY_CHANCE:
                said = f"up to {claim.rate.high:.1%} may be {name}, with {claim.rate.hits:,} of {claim.rate.of:,}"
                return Gate(INCONCLUSIVE, f"Inconclusive: {said}; use more victims to show less than {limit:.1%}.")
    return Gate(PASSES, f"Passes: {verdict.sentence}")


def judge_captured(result: Captured) -> Gate:
    """Whether one captured update is shown to leak, is not, or neither can be told; it has no rates to limit."""
    found = weigh_captured(result)
    code, word = {
        Kind.LEAKS: (FAILS, "Fails"),
        Kind.NOT_SHOWN: (PASSES, "Passes"),
        Kind.INCONCLUSIVE: (INCONCLUSIVE, "Inconclusive"),
    }[found.kind]
    return Gate(code, f"{word}: {found.sentence}")
