"""A whole federation: what every update that a server kept gives away, by client and round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from dosimeter import metrics, plain
from dosimeter.auditing.captured.weighing import weigh_captured
from dosimeter.auditing.records import Finding, Identification, ImageRecord, Labels, Success, Summary, Worst
from dosimeter.auditing.result import Captured
from dosimeter.auditing.verdict import Claim, Kind, Verdict, weigh
from dosimeter.metrics import Rate

FITS = 0.05
"""The relative error of the truth's own update up to which a client trained as it was taken to have."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One client's update of one round: what was known of it, what was tried, and what came of it."""

    round: int
    node: int
    client: str  # as tables call it
    images: int
    trained: str  # how, in words
    doubts: tuple[str, ...] = ()  # where what was kept and what was said contradict each other
    attack: str | None = None  # that searched for its images
    left_out: dict[str, str] = field(default_factory=dict)  # what was not tried: why
    finding: Finding | None = None
    pool: Identification | None = None  # its images told from those of a pool
    named: tuple[int, ...] = ()  # images of the pool that are in it for certain
    nearest: tuple[int, ...] = ()  # images of the pool that explain most of it
    left: float | None = None  # the share of the last layer's gradient that the pool does not explain

    @property
    def key(self) -> str:
        """Its name in the folder of a run."""
        return f"round-{self.round}-node-{self.node}"

    @property
    def beware(self) -> tuple[str, ...]:
        """Why the update may not be what it was taken for: what contradicts itself, and what no such update can be."""
        odd = None if self.finding is None else self.finding.labels.doubt
        return (*self.doubts, odd) if odd else self.doubts

    @property
    def certain(self) -> float:
        """The share of its image that equations determine."""
        return 0.0 if self.finding is None else self.finding.certificate.share

    @property
    def ssim(self) -> float | None:
        """Of its images beside the truth, where that was given and they were searched for."""
        judged = None if self.finding is None else self.finding.judged
        return None if judged is None or self.attack is None else judged.nearest["ssim"].mean

    @property
    def labels(self) -> Rate | None:
        """Its labels that are right, beside the truth, or else certain; None where nothing says."""
        if self.finding is None:
            return None
        if self.finding.judged is not None:
            return self.finding.judged.labels
        least = self.finding.labels.least
        return None if least is None else Rate(min(self.images, sum(least.values())), self.images)

    @property
    def exposed(self) -> float:
        """How much of its images is known to be out, from 0 to 1: SSIM or else certain, or read on shadows like it."""
        beside = None if self.finding is None or not self.finding.shadows.rank else self.finding.shadows
        # All of them, where it matches better than each.
        rate = None if beside is None or self.ssim is not None else beside.as_well or beside.success
        like = 0.0 if rate is None else rate.rate
        named = len(self.named) / self.images
        told = 0.0 if self.pool is None else (self.pool.rate - self.pool.chance) / (1 - self.pool.chance)
        return max(self.certain, self.ssim or 0.0, like, named, told)


class Pooled(NamedTuple):
    """All updates as one result, for a verdict."""

    settings: dict[str, Any]
    records: list[ImageRecord]
    scores: Summary
    unmeasured: str
    most_exposed: str
    command: str
    alone: tuple[Claim, ...]  # what updates show without the truth
    panel: tuple[()] = ()
    dosed: None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Survey:
    """What was made of every kept update of a federation."""

    settings: dict[str, Any]
    entries: tuple[Entry, ...]
    results: Mapping[str, Captured]  # of entries whose images were searched for, by their keys
    seconds: float
    environment: dict[str, str]
    status: str
    command: str = ""
    made: str = ""

    @property
    def rounds(self) -> list[int]:
        return sorted({each.round for each in self.entries})

    @property
    def clients(self) -> list[str]:
        """By their numbers."""
        return sorted({each.client for each in self.entries}, key=lambda name: (len(name), name))

    def of(self, client: str, round_: int) -> Entry | None:
        return next((each for each in self.entries if (each.client, each.round) == (client, round_)), None)

    @property
    def worst(self) -> Entry | None:
        """The most exposed update."""
        known = [each for each in self.entries if each.finding is not None]
        return max(known, key=lambda e: (e.exposed, e.labels.rate if e.labels else 0.0), default=None)

    @cached_property
    def pooled(self) -> Pooled:
        judged = [(each, found) for each in self.entries if (found := self.results.get(each.key)) and found.judged]
        records = [record for _, found in judged if found.judged for record in found.judged.records]
        one = self.worst
        most = "" if one is None else f"The most exposed client is {one.client}, in round {one.round}."
        doubts = " ".join(_doubts(self))
        return Pooled(self.settings, records, _summary(self, records), doubts, most, self.command, _alone(self))

    @property
    def verdict(self) -> Verdict:
        return weigh(self.pooled)

    def document(self) -> dict[str, Any]:
        """As plain values; what came of images in full is in the folder of each update."""
        found = self.verdict
        claims = {each.name: {"hits": each.rate.hits, "of": each.rate.of, "p": each.p} for each in found.claims}
        said = {"kind": found.kind.value, "sentence": found.sentence, "claims": claims}
        head = {"format": 1, "status": self.status, "survey": True, "settings": self.settings, "conclusion": said}
        worst = {"worst": {"round": self.worst.round, "node": self.worst.node}} if self.worst else {}
        return head | worst | {"entries": [plain.of(each) for each in self.entries]}


def _untold(survey: Survey) -> list[tuple[Entry, Verdict]]:
    """Updates whose images were searched for and whose truth is not known, with what they say by themselves."""
    found = [(each, survey.results.get(each.key)) for each in survey.entries if each.attack and each.ssim is None]
    return [(each, weigh_captured(result)) for each, result in found if result is not None]


def _alone(survey: Survey) -> tuple[Claim, ...]:
    """Leaks that shadows show, and parts of images that are certain."""
    untold, claims = _untold(survey), list[Claim]()
    like = [
        (each, said)
        for each, verdict in untold
        if verdict.kind is Kind.LEAKS and each.finding and (said := each.finding.shadows.leaks)
    ]
    if like:
        words = f"{len(like):,} of {len(untold):,} updates leak as those of other images like them do: {like[0][1]}"
        claims.append(Claim("read", Rate(len(like), len(untold)), 0.0, True, words))
    part = [each for each in survey.entries if 0 < each.certain < 1]
    if part:
        most, many = 100 * max(each.certain for each in part), len(survey.entries)
        words = f"of {len(part):,} of {many:,} updates a part of the image is certain, up to {most:.0f} %"
        claims.append(Claim("certain", Rate(len(part), many), 0.0, True, words))
    return tuple(claims)


def _summary(survey: Survey, records: Sequence[ImageRecord]) -> Summary:
    """Rates over all updates: what is read and told from decoys beside the truth, what is certain without it."""
    images = sum(each.images for each in survey.entries)
    threshold = float(survey.settings["threshold"])
    judged = [found for each in survey.entries if each.finding and (found := each.finding.judged)]
    values = torch.tensor([record.ssim for record in records] or [0.0])
    best = max(records, key=lambda record: record.ssim, default=None)
    score = {"ssim": metrics.summarise(values)}
    evidence: dict[str, int] = {}
    for record in records:
        if record.evidence:
            evidence[record.evidence] = evidence.get(record.evidence, 0) + 1
    told = [one for each in survey.entries if (one := each.pool)] + [
        s.identification for s in judged if s.identification
    ]
    return Summary(
        images=images,
        unmeasured={},
        evidence=evidence,
        scores=score,
        baseline=score,
        success=Success(sum(bool(r.read) for r in records), len(records) or 1, threshold=threshold),
        identification=_identified(told),
        labels=_labels(survey.entries),
        recovered=_certain(survey.entries),
        worst=Worst(victim=0, image=best.image, index=best.index or 0, ssim=best.ssim)
        if best
        else Worst(victim=0, image=0, index=0, ssim=0.0),
        steps=metrics.summarise(torch.zeros(1)),
    )


def _identified(told: Sequence[Identification]) -> Identification | None:
    of = sum(one.of for one in told)
    if not of:
        return None
    chance, blind = sum(one.chance * one.of for one in told) / of, sum(one.blind or 0 for one in told)
    return Identification(sum(one.hits for one in told), of, chance=chance, blind=blind)


def _labels(entries: Sequence[Entry]) -> Labels | None:
    """Labels that are right or, where the truth is not known, certain, which no guess is."""
    known = [(each, one) for each in entries if (one := each.labels)]
    of = sum(one.of for _, one in known)
    if not of:
        return None
    guess = sum(one.guess * one.of for _, one in known if isinstance(one, Labels)) / of
    whole = Rate(sum(one.hits == one.of for _, one in known), len(known))
    return Labels(sum(one.hits for _, one in known), of, guess=guess, updates=whole)


def _certain(entries: Sequence[Entry]) -> Rate | None:
    """Images that are certain, of all whose updates were solved for."""
    solved = [each for each in entries if each.finding and not each.finding.certificate.refused]
    sure = sum(each.certain == 1.0 for each in solved) + sum(len(each.named) for each in entries)
    of = sum(each.images for each in entries if each in solved or each.named)
    return Rate(min(sure, of), of) if of else None


def _doubts(survey: Survey) -> list[str]:
    """Why it would be no evidence if nothing leaked, sentence by sentence."""
    entries, many = survey.entries, len(survey.entries)
    unread = [each for each in entries if each.finding is None]
    unsearched = [each for each in entries if each.finding and each.attack is None]
    untold = [verdict.doubt for _, verdict in _untold(survey) if verdict.doubt]
    plain = survey.settings["defense"] == "none"  # else noise is what sets them apart
    other = [each for each in entries if plain and each.finding and (each.finding.apart or 0.0) > FITS]
    unlike = [each for each in entries if each.beware]
    said = []
    if unread:
        why = next(iter(unread[0].left_out.values()), "")
        said.append(f"{len(unread):,} of {many:,} updates were not audited ({why.rstrip('.')}).")
    if unsearched:
        why = next(iter(unsearched[0].left_out.values()), "")
        said.append(f"The images of {len(unsearched):,} of {many:,} updates were not searched for ({why.rstrip('.')}).")
    if untold:
        said.append(f"Of {len(untold):,} of {many:,} updates it cannot be told: {untold[0]} (--truth, --data).")
    if other:
        said.append(f"{len(other):,} of {many:,} updates are not what the truth gives by this training (--step).")
    if unlike:
        said.append(f"{unlike[0].client} in round {unlike[0].round}: {unlike[0].beware[0]}.")
    measured = [found.unmeasured for found in survey.results.values() if found.unmeasured]
    return said + list(dict.fromkeys(measured))
