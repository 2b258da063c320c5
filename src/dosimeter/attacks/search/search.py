"""A search as a value: its parts, what it needs, what it costs, and its restarts side by side or in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from dosimeter import checks, trees
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.base import Attack, Cost
from dosimeter.attacks.search import likelihoods, masks, optimisers, priors, schedules, spaces, starts, treatments
from dosimeter.attacks.search.moves import Box, Move
from dosimeter.attacks.search.running import Run, every
from dosimeter.attacks.search.sampling import Ball
from dosimeter.attacks.search.stopping import Steps, Stop
from dosimeter.attacks.search.weights import Rule
from dosimeter.attacks.stages import Stages, unheard
from dosimeter.engine import Products
from dosimeter.errors import SettingError, unknown
from dosimeter.types import BatchNorm, Curve, Ended, Observation, Outcome, Reconstruction, Target, ThreatModel, Watch

BLIND_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Search(Attack):
    """An attack put together from parts; see the package's docstring for what each part decides."""

    stop: Stop
    name: str = "search"
    likelihood: likelihoods.Likelihood = likelihoods.Cosine()
    prior: priors.Prior = priors.Prior()
    labels: labels_.Labels = labels_.Known()
    secrets: treatments.Treatment = treatments.Resampled()
    """What is supposed of numbers that clients draw inside the model."""
    space: spaces.Space = spaces.Pixels()
    start: starts.Start = starts.Normal()
    optimiser: optimisers.Optimiser[Any] = optimisers.Adam()
    schedule: schedules.Schedule = schedules.Constant()
    only: masks.Mask = masks.Everything()
    moves: tuple[Move, ...] = (Box(),)
    """What is done to candidates after every step, in this order."""
    restarts: int = 1
    """Searches from different starts; the one with the lowest matching loss is kept, the prior left out."""
    keep: Literal["last", "best"] = "last"
    """Return the last iterate or the one with the lowest loss on the way."""
    ramp: float = 1.0
    """How much the match counts at the first step; over the first half of them, or of the first leg, that goes to 1,
    exponentially (the Bayes paper's program)."""
    ball: Ball | None = None
    """Take the mean loss of points around a candidate instead of its own (Bayes, Alg. 1)."""
    penalty: bool = True
    """Whether the simulated loss counts the penalties that a defense's layers add, as the client's does."""
    first: int = 0
    """The number of the first restart: others have other starts."""
    shadows: tuple[str, ...] = field(default=(), repr=False)
    picked: str = field(default="", repr=False, compare=False)
    trace: bool = field(default=False, repr=False)
    """Whether norm, cosine and two entries of every tensor are recorded on the way; see `tracing`."""
    varies: ClassVar[tuple[str, ...]] = ("ramp",)
    side_by_side: int | None = field(default=None, repr=False, compare=False)
    """Restarts that run at once, all by default; it takes memory and changes no result."""

    def __post_init__(self) -> None:
        checks.count("A search", "restarts", self.restarts, most=10_000)
        checks.count("A search", "restarts side by side", self.side_by_side)
        checks.at_least("A search", "a number of its first restart", self.first, 0)
        checks.positive("A search", "a ramp", self.ramp)
        if self.keep == "best" and self.ramp != 1:
            raise SettingError(f"Losses before the end of a ramp do not compare, got ramp={self.ramp}; keep the last.")
        if self.keep not in ("last", "best"):
            raise SettingError(unknown("iterate to keep", self.keep, ("last", "best")))
        for move in self.moves:
            move.check(self.space)

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.likelihood.exact

    @property
    def samples(self) -> int:
        """Points at which a candidate's loss is taken in every step."""
        return max(self.secrets.draws, self.ball.samples if self.ball else 1)

    def cost(self, target: Target, batch: int) -> Cost:
        return Cost(
            steps=len(self._turns) * self.stop.steps,
            least=len(self._turns) * self.stop.least,
            restarts=self.restarts,
            candidates=self.samples * self.optimiser.population,
            together=self.prior.siblings,
            beside=self.space.footprint(target, batch, self.labels.classes(target)),
            entries=isinstance(self.likelihood, likelihoods.Entrywise),
        )

    def needs(self) -> ThreatModel:
        statistics: BatchNorm = "sent" if self.prior.needs_statistics else "running"
        return ThreatModel(
            labels=self.labels.granted,
            secrets=self.secrets.granted,
            statistics=statistics,
            defense=self.likelihood.informed or self.only.informed,
        )

    def check(self, target: Target, batch: int) -> None:
        """Refuse parts that do not fit the task, before any work."""
        super().check(target, batch)
        for part in (self.prior, self.only, self.space):
            part.check(target)
        for move in self.moves:
            move.check(self.space, target)

    def fitted(self, target: Target, batch: int) -> "Search":
        """With its prior weighed, where that was left open."""
        said = list[str]()

        def weigh(prior: priors.Prior, rule: Rule) -> priors.Prior:
            weight, why = rule.pick(self, prior, target, batch)
            said.append(f"{prior.title} {weight:g}, {why}")
            return weight * prior

        settled = self.prior.settled(weigh)
        return replace(self, prior=settled, picked="; ".join(said)) if said else self

    def blind(self) -> "Search":
        """The same search without the update; a prior alone settles within `BLIND_STEPS`."""
        stop = replace(self.stop, steps=min(self.stop.steps, BLIND_STEPS))
        name = f"{self.name} without the update"
        return replace(
            self, name=name, likelihood=likelihoods.Nothing(), restarts=1, stop=stop, ball=None, ramp=1.0, trace=False
        )

    def apart(self, target: Target, clean: Sequence[Observation], seen: Sequence[Observation]) -> Tensor:
        """By the likelihood, on the tensors that it matches."""
        mine, theirs = (
            {name: trees.flat(each[0].gradient[name]) for name in target.parameters} for each in (clean, seen)
        )
        observed = trees.squared_norms(theirs)
        weights = self.only.weights(target, observed)
        if isinstance(self.likelihood, likelihoods.Entrywise):
            entries = [self.likelihood.entry_loss(g, theirs[name]) for name, g in mine.items()]
            return (weights * torch.stack(entries, 1)).sum(1)
        cross = torch.stack([(g * theirs[name]).sum(1) for name, g in mine.items()], 1)
        gaps = trees.squared_norms({name: g - theirs[name] for name, g in mine.items()})
        parts = (cross, trees.squared_norms(mine), observed, gaps)
        return self.likelihood.loss(Products(*(weights * part for part in parts)))

    def nearest(self, target: Target, images: Tensor) -> Tensor | None:
        return self.space.nearest(target, self.start, images)

    def at_most(self, restarts: int) -> "Search":
        return replace(self, side_by_side=restarts)

    def again(self, number: int) -> "Search | None":
        stop = self.stop
        if stop.leg is None:
            return None
        return replace(self, first=number * self.restarts, stop=replace(stop, leg=2 * stop.leg))

    @property
    def steps(self) -> Steps:
        return self.stop.asked

    @property
    def _turns(self) -> list[range]:
        """The numbers of the restarts that run side by side, turn by turn."""
        many, end = min(self.restarts, self.side_by_side or self.restarts), self.first + self.restarts
        return [range(first, min(first + many, end)) for first in range(self.first, end, many)]

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        senders = seen.clients or seen.ids
        groups = [[v for v, sender in enumerate(senders) if sender == one] for one in dict.fromkeys(senders)]
        total = len(self._turns) * self.stop.steps * (len(groups) if self.optimiser.alone else 1)
        beat = unheard
        if watch is not None:
            beat = partial(watch, done=0, total=total, match=torch.nan, active=len(seen.ids))
        beat()
        known = seen._replace(labels=self.labels.find(target, seen, beat).to(target.mean.device))
        if not self.optimiser.alone:
            return self._in_turn(target, known, seed, watch)

        stages = Stages(watch, total)

        def run(_at: int, part: Observation, tell: Watch) -> Reconstruction:
            stages.begun(tell)
            return self._in_turn(target, part, seed, tell)

        return stages.each(target, known, run, groups=groups, share=total / len(senders))

    def _in_turn(self, target: Target, known: Observation, seed: int, watch: Watch | None) -> Reconstruction:
        """The best of all restarts, of which so many run side by side as may."""
        turns, steps = self._turns, self.stop.steps
        if len(turns) == 1:
            return Run([self], target, known, seed, turns[0]).run(watch)
        stages = Stages(watch, len(turns) * steps)
        found = []
        for restarts in turns:
            found.append(stages.ended(Run([self], target, known, seed, restarts).run(stages.next(steps))))
            if stages.cut:
                break
        best = lowest(found, every=every(steps))
        ended = (Ended(Outcome.INTERRUPTED),) * len(known.ids)
        return best._replace(stopped=ended) if stages.cut else best


def searching(attack: Attack, what: str = "Local training is guessed by a search") -> Search:
    """The attack, on which something is built that needs a search; refused where it is none."""
    if not isinstance(attack, Search):
        raise SettingError(f"{what}, and {attack.name!r} is none; use --attack ig.")
    return attack


def lowest(turns: list[Reconstruction], *, every: int) -> Reconstruction:
    """For each victim what the turn with the lowest match found, as if all had run at once."""
    best = torch.stack([found.match for found in turns]).argmin(0).tolist()  # (V,)
    whole = trees.join(turns)
    kept = trees.chosen(whole, [turn * len(best) + v for v, turn in enumerate(best)])
    end = max(whole.curve.steps)
    points = [at for at, step in enumerate(whole.curve.steps) if step % every == 0 or step == end]
    traces = {name: each[:, points] for name, each in kept.curve.traces.items()}
    curve = Curve(tuple(whole.curve.steps[at] for at in points), kept.curve.match[:, points], traces)
    return kept._replace(curve=curve)
