"""The one search loop: minimise  -log p(g | x, y, u) - log p(x) - log p(u)  for all victims and restarts at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dosimeter import checks, rng, trees
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.base import Attack, Cost
from dosimeter.attacks.search import likelihoods, masks, optimisers, priors, schedules, spaces, starts, treatments
from dosimeter.attacks.search.moves import Box, Move, Moved
from dosimeter.attacks.search.objective import Draws, Objective, Unknowns, Values
from dosimeter.attacks.search.sampling import Ball
from dosimeter.attacks.stages import Beat, Stages, unheard
from dosimeter.engine import Products
from dosimeter.errors import SettingError, unknown
from dosimeter.types import BatchNorm, Curve, Ended, Observation, Outcome, Reconstruction, Target, ThreatModel, Watch

CURVE_POINTS = 200
BLIND_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a candidate is done. Its loss is the whole objective, match and prior."""

    steps: int
    patience: int | None = None
    """Stop after so many steps without a lower loss."""
    target: float | None = None
    """Stop once the loss is at most this."""

    def __post_init__(self) -> None:
        checks.count("A search", "steps", self.steps)
        checks.count("A search", "a patience", self.patience)
        checks.at_least("A search", "a target of its loss", self.target, 0)


class _State(NamedTuple):
    """Candidates still in the batch, one a row."""

    x: Tensor  # (n, D) all unknowns; see `objective.Unknowns`
    labels: Tensor  # (n, B) given labels
    owner: Tensor  # (n,) which victim
    row: Tensor  # (n,) which candidate
    moments: Any  # the optimiser's own state
    schedule: schedules.State
    best: Tensor  # (n,) lowest loss so far
    best_match: Tensor  # (n,) the match there
    best_x: Tensor  # (n, D) where that was
    waited: Tensor  # (n,) steps since then


class _Done(NamedTuple):
    """Results of all candidates, filled as they leave the batch."""

    x: Tensor  # (N, D)
    match: Tensor  # (N,)
    steps: Tensor  # (N,)
    why: list[Outcome]


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
    ball: Ball | None = None
    """Take the mean loss of points around a candidate instead of its own (Bayes, Alg. 1)."""
    penalty: bool = True
    """Whether the simulated loss counts the penalties that a defense's layers add, as the client's does."""
    side_by_side: int | None = field(default=None, repr=False, compare=False)
    """Restarts that run at once, all by default; it takes memory and changes no result."""

    def __post_init__(self) -> None:
        checks.count("A search", "restarts", self.restarts)
        checks.count("A search", "restarts side by side", self.side_by_side)
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
            restarts=self.restarts,
            candidates=self.samples * self.optimiser.population,
            together=self.prior.siblings,
            beside=self.space.footprint(target, batch, self.labels.classes(target)),
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

    def blind(self) -> "Search":
        """The same search without the update; a prior alone settles within `BLIND_STEPS`."""
        stop = replace(self.stop, steps=min(self.stop.steps, BLIND_STEPS))
        name = f"{self.name} without the update"
        return replace(self, name=name, likelihood=likelihoods.Nothing(), restarts=1, stop=stop, ball=None)

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

    def at_most(self, restarts: int) -> "Search":
        return replace(self, side_by_side=restarts)

    @property
    def _turns(self) -> list[range]:
        """The numbers of the restarts that run side by side, turn by turn."""
        many = min(self.restarts, self.side_by_side or self.restarts)
        return [range(first, min(first + many, self.restarts)) for first in range(0, self.restarts, many)]

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
            return _Run(self, target, known, seed, turns[0]).run(watch)
        stages = Stages(watch, len(turns) * steps)
        found = []
        for restarts in turns:
            found.append(stages.ended(_Run(self, target, known, seed, restarts).run(stages.next(steps))))
            if stages.cut:
                break
        best = lowest(found, every=_every(steps))
        ended = (Ended(Outcome.INTERRUPTED),) * len(known.ids)
        return best._replace(stopped=ended) if stages.cut else best


def searching(attack: Attack) -> Search:
    """The attack, on which something is built that needs a search; refused where it is none."""
    if not isinstance(attack, Search):
        raise SettingError(f"Local training is guessed by a search, and {attack.name!r} is none; use --attack ig.")
    return attack


def lowest(turns: list[Reconstruction], *, every: int) -> Reconstruction:
    """For each victim what the turn with the lowest match found, as if all had run at once."""
    best = torch.stack([found.match for found in turns]).argmin(0)  # (V,)
    victims = len(best)
    rows = best * victims + torch.arange(victims, device=best.device)
    whole = trees.join(turns)
    kept = trees.rows(whole, rows)
    end = max(whole.curve.steps)
    points = [at for at, step in enumerate(whole.curve.steps) if step % every == 0 or step == end]
    curve = Curve(tuple(whole.curve.steps[at] for at in points), kept.curve.match[:, points])
    return kept._replace(stopped=tuple(whole.stopped[row] for row in rows.tolist()), curve=curve)


def _every(steps: int) -> int:
    """Steps between two points of a curve."""
    return max(1, steps // CURVE_POINTS)


class _Run:
    """One search on one observation, of which it takes all labels, from some of the starts."""

    def __init__(self, search: Search, target: Target, seen: Observation, seed: int, restarts: range) -> None:
        self.search, self.seen, self.seed, self.restarts = search, seen, seed, restarts
        self.target = target if search.penalty else replace(target, penalised=False)
        self.unknowns = Unknowns(
            self.target, seen.batch, search.space, search.labels.classes(target), searched=search.secrets.searched
        )
        self.objective = Objective(
            self.unknowns,
            seen,
            likelihood=search.likelihood,
            prior=search.prior,
            only=search.only,
            secrets=search.secrets,
        )
        each = [(name, restart) for name in seen.ids for restart in restarts]
        self.streams = [rng.stream(seed, "draws", name, restart) for name, restart in each]
        assert seen.labels is not None
        self.labels = seen.labels
        self.curve: list[tuple[int, Tensor]] = []

    def run(self, watch: Watch | None) -> Reconstruction:
        """Step all candidates until each has stopped; Ctrl-C ends the search with what it has."""
        steps = self.search.stop.steps
        state = self._begin()
        n = len(state.row)
        done = _Done(
            state.x.clone(), torch.full_like(state.best, torch.inf), torch.zeros_like(state.row), [Outcome.STEPS] * n
        )
        latest = done.match.clone()
        step = 0
        try:
            for step in range(steps + 1):
                draws = self._draws(state.row)
                restart = state.row % len(self.restarts)
                values = self.objective(state.x, state.labels, state.owner, draws, restart=restart)
                latest[state.row] = values.match
                state = self._remember(state, values)
                state, values, draws = self._release(step, state, values, draws, done)
                if step % _every(steps) == 0 or not len(state.row):
                    self.curve.append((step, latest.clone()))
                if not len(state.row):
                    break
                beat = unheard
                if watch is not None:
                    mean = float(latest[latest.isfinite()].mean())
                    beat = partial(watch, done=step, total=steps, match=mean, active=len(state.row))
                beat()
                state = self._move(step, state, values, draws, beat)
        except KeyboardInterrupt:
            self._leave(
                state, torch.ones_like(state.row, dtype=torch.bool), latest[state.row], step, Outcome.INTERRUPTED, done
            )
            self.curve.append((step, latest.clone()))
        return self._choose(done)

    def _begin(self) -> _State:
        """Starts are drawn one candidate at a time, each from the stream of its victim and restart."""
        like = self.target.mean
        owner = torch.arange(len(self.seen.ids)).repeat_interleave(len(self.restarts))
        senders = self.seen.clients or self.seen.ids
        draws = [
            self._draw(name, sender, restart)
            for name, sender in zip(self.seen.ids, senders, strict=True)
            for restart in self.restarts
        ]
        x = torch.stack(draws).to(like.device)
        owner = owner.to(like.device)
        n = len(draws)
        worst = torch.full((n,), torch.inf, dtype=like.dtype, device=like.device)
        return _State(
            x=x,
            labels=labels_.usable(self.labels)[owner],
            owner=owner,
            row=torch.arange(n, device=like.device),
            moments=self.search.optimiser.init(x),
            schedule=schedules.init(n, like),
            best=worst,
            best_match=worst,
            best_x=x,
            waited=torch.zeros_like(owner),
        )

    def _draw(self, name: str, sender: str, restart: int) -> Tensor:
        """One candidate's first unknowns (D,)."""
        images, others = (rng.stream(self.seed, what, name, restart) for what in ("start", "labels"))
        client = rng.stream(self.seed, "client's", sender, restart)
        return self.unknowns.draw(self.search.start, images, others, client)

    def _draws(self, row: Tensor) -> Draws:
        """What this step draws for the candidates in these rows, each from a stream of its own."""
        search, ball, like = self.search, self.search.ball, self.target.mean
        wanted = {} if search.secrets.granted or search.secrets.searched else self.target.secrets
        if not wanted and ball is None:
            return Draws({}, None)
        k, streams = search.samples, [self.streams[r] for r in row.tolist()]
        secrets = {
            name: torch.stack([torch.randn(k, *secret.full_shape(self.seen.batch), generator=s) for s in streams])
            for name, secret in wanted.items()
        }
        shape = (self.seen.batch, *self.target.shape)
        nudge = None if ball is None else torch.stack([ball.draw(k, shape, s) for s in streams]).to(like)
        return Draws({name: value.to(like) for name, value in secrets.items()}, nudge)

    def _remember(self, state: _State, values: Values) -> _State:
        match, loss, _ = values
        better = loss < state.best
        state = state._replace(
            best=torch.where(better, loss, state.best), waited=torch.where(better, 0, state.waited + 1)
        )
        if self.search.keep == "last":
            return state
        return state._replace(
            best_match=torch.where(better, match, state.best_match),
            best_x=torch.where(better[:, None], state.x, state.best_x),
        )

    def _release(
        self, step: int, state: _State, values: Values, draws: Draws, done: _Done
    ) -> tuple[_State, Values, Draws]:
        """Candidates that are done leave the batch."""
        stop, (match, loss, slope) = self.search.stop, values
        over = torch.full_like(loss, step >= stop.steps, dtype=torch.bool)
        reached = loss <= (-torch.inf if stop.target is None else stop.target)
        tired = state.waited >= (stop.steps + 1 if stop.patience is None else stop.patience)
        lost = ~loss.isfinite() | ~slope.isfinite().all(1)
        gone = over | reached | tired | lost
        if not gone.any():
            return state, values, draws
        for why, who in (
            (Outcome.DIVERGED, lost),
            (Outcome.TARGET, reached & ~lost),
            (Outcome.PATIENCE, tired & ~reached & ~lost),
            (Outcome.STEPS, over & ~tired & ~reached & ~lost),
        ):
            self._leave(state, who, match, step, why, done)
        stay = (~gone).nonzero().squeeze(1)
        return trees.rows(state, stay), trees.rows(values, stay), draws.rows(stay)

    def _leave(self, state: _State, who: Tensor, match: Tensor, step: int, why: Outcome, done: _Done) -> None:
        rows = state.row[who]
        best = self.search.keep == "best"
        done.x[rows] = (state.best_x if best else state.x)[who]
        # One that diverged keeps an infinite match, so that no other restart loses to it.
        done.match[rows] = torch.inf if why is Outcome.DIVERGED else (state.best_match if best else match)[who]
        done.steps[rows] = step
        for row in rows.tolist():
            done.why[row] = why

    def _move(self, step: int, state: _State, values: Values, draws: Draws, beat: Beat) -> _State:
        def evaluate(x: Tensor, who: Tensor, *, slopes: bool = True) -> tuple[Tensor, Tensor]:
            beat()
            if not len(x):  # a model need not take a batch of nothing
                return values.loss[:0], x
            restart = state.row[who] % len(self.restarts)
            _, loss, slope = self.objective(
                x, state.labels[who], state.owner[who], draws.rows(who), restart=restart, slopes=slopes
            )
            return loss, slope

        search = self.search
        schedule = search.schedule.update(step, search.stop.steps, values.loss, state.schedule)
        x, moments = search.optimiser.step(
            state.x, values.slope, schedule.scale, state.moments, loss=values.loss, evaluate=evaluate
        )
        at = Moved(step, schedule.scale, [self.streams[r] for r in state.row.tolist()], self.unknowns)
        for move in search.moves:
            x = move(x, at)
        # Slopes are tied too, but rates that each candidate finds for itself would part what one client keeps.
        x = self.objective.tied(x, state.owner, state.row % len(self.restarts))
        return state._replace(x=x, moments=moments, schedule=schedule)

    def _choose(self, done: _Done) -> Reconstruction:
        """Of every victim's restarts the one with the lowest matching loss."""
        restarts, victims = len(self.restarts), len(self.seen.ids)
        kept = done.match.reshape(victims, restarts).argmin(1)  # (V,)
        rows = torch.arange(victims, device=kept.device) * restarts + kept
        unknowns, x = self.unknowns, done.x[rows]
        return Reconstruction(
            images=unknowns.images(x).detach(),
            labels=unknowns.logits(x).detach().argmax(-1) if unknowns.classes else self.labels,
            match=done.match[rows],
            steps=done.steps[rows],
            restart=self.restarts.start + kept,
            stopped=tuple(Ended(done.why[row]) for row in rows.tolist()),
            curve=Curve(tuple(step for step, _ in self.curve), torch.stack([m for _, m in self.curve], 1)[rows]),
        )
