"""The one search loop: minimise  -log p(g | x, y, u) - log p(x) - log p(u)  for all victims and restarts at once."""

from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dosimeter import rng, trees
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.search import schedules
from dosimeter.attacks.search.moves import Moved
from dosimeter.attacks.search.objective import Draws, Objective, Terms, Unknowns, Values
from dosimeter.attacks.search.states import Done, State
from dosimeter.attacks.search.stopping import Ends
from dosimeter.attacks.search.together import stacked
from dosimeter.attacks.search.tracing import Tracer
from dosimeter.attacks.stages import Beat, unheard
from dosimeter.types import Curve, Ended, Observation, Outcome, Reconstruction, Target, Watch

if TYPE_CHECKING:
    from dosimeter.attacks.search.search import Search

CURVE_POINTS = 200


def every(steps: int) -> int:
    """Steps between two points of a curve."""
    return max(1, steps // CURVE_POINTS)


class Run:
    """A search on one observation, of which it takes all labels, from some of the starts; or several `settings` of it
    side by side, which agree in all that is `shared` and meet the numbers that each would meet alone."""

    def __init__(
        self, settings: Sequence["Search"], target: Target, seen: Observation, seed: int, restarts: range
    ) -> None:
        settings = [each.fitted(target, seen.batch) for each in settings]
        search = settings[0]
        self.settings, self.search, self.seen, self.seed, self.restarts = settings, search, seen, seed, restarts
        self.beside = len(settings) * len(restarts)
        """Candidates of a victim: of every setting those of all restarts."""
        self.target = target if search.penalty else replace(target, penalised=False)
        self.unknowns = Unknowns(
            self.target, seen.batch, search.space, search.labels.classes(target), searched=search.secrets.searched
        )
        self.objective = Objective(
            self.unknowns,
            seen,
            likelihood=search.likelihood,
            only=[each.only for each in settings],
            secrets=search.secrets,
        )
        each = [(name, restart) for name in seen.ids for _ in settings for restart in restarts]
        self.streams = [rng.stream(seed, "draws", name, restart) for name, restart in each]
        assert seen.labels is not None
        self.labels = seen.labels
        self.legs = search.stop.legs
        self.groups = self._groups()
        self.curve: list[tuple[int, Tensor]] = []
        self.tracer = Tracer(self.objective, len(seen.ids) * self.beside) if search.trace else None
        self._asked: tuple[Tensor, Search] | None = None

    def _groups(self) -> Tensor:
        """(N,): candidates that go on together, since they share numbers of one client or a prior looks at them all."""
        victims, beside = len(self.seen.ids), self.beside
        whole = torch.arange(victims) if self.objective.senders is None else self.objective.senders
        restart = torch.zeros(beside).long() if self.search.prior.siblings else torch.arange(beside)
        return (whole[:, None] * beside + restart).flatten().to(self.target.mean.device)

    def _setting(self, row: Tensor) -> Tensor:
        """(n,) the number of each candidate's setting."""
        return row % self.beside // len(self.restarts)

    def _of(self, row: Tensor) -> "Search":
        """The search whose numbers are those of the candidates in these rows; the same while the rows are."""
        if len(self.settings) == 1:
            return self.search
        if self._asked is None or self._asked[0] is not row:
            self._asked = (row, stacked(self.settings, self._setting(row), self.target.mean))
        return self._asked[1]

    def _terms(self, step: int, row: Tensor) -> Terms:
        search = self._of(row)
        left = 1 - 2 * (step + 1) / self.legs[0].end  # of the first half
        ramp = search.ramp ** max(0.0, left)
        return Terms(search.prior, ramp, self._setting(row) if len(self.settings) > 1 else None)

    def run(self, watch: Watch | None) -> Reconstruction:
        """Step all candidates until each has stopped; Ctrl-C ends the search with what it has."""
        work = self.going(watch, frozenset())
        try:
            next(work)
        except StopIteration as ended:
            found: Reconstruction = ended.value
            return found
        raise AssertionError("A search without pauses has paused.")

    def going(self, watch: Watch | None, pauses: Collection[int]) -> Generator[Tensor, Collection[int], Reconstruction]:
        """The same with pauses before these steps: images so far (V, S, R, B, C, H, W) go out, and the numbers of
        settings come in that are to leave."""
        steps = self.search.stop.steps
        state = self._begin()
        n = len(state.row)
        done = Done(
            state.x.clone(), torch.full_like(state.best, torch.inf), torch.zeros_like(state.row), [Outcome.STEPS] * n
        )
        latest = done.match.clone()
        step = 0
        try:
            for step in range(steps + 1):
                draws = self._draws(state.row)
                restart, terms = state.row % self.beside, self._terms(step, state.row)
                values = self.objective(state.x, state.labels, state.owner, draws, terms, restart=restart)
                latest[state.row] = values.match
                state = self._remember(state, values)
                state, settled = self._come_to(step, state, values)
                if step in pauses:
                    done.x[state.row] = state.x
                    out = torch.tensor(sorted((yield self._paused(done.x))), device=state.row.device)
                    settled = settled | torch.isin(self._setting(state.row), out)
                state, values, draws = self._release(step, state, values, draws, settled, done)
                if step % every(steps) == 0 or not len(state.row):
                    self._note(step, latest, state, draws)
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
            self._note(step, latest, trees.rows(state, torch.zeros(0, dtype=torch.long)), None)
        return self._choose(done)

    def _note(self, step: int, latest: Tensor, state: State, draws: Draws | None) -> None:
        """A point of the curve, and of every tensor's where that is asked for."""
        self.curve.append((step, latest.clone()))
        if self.tracer is not None:
            self.tracer.look(state, draws or Draws({}, None))

    def _paused(self, x: Tensor) -> Tensor:
        victims, images = len(self.seen.ids), self.unknowns.found(x).detach()
        return images.reshape(victims, len(self.settings), len(self.restarts), *images.shape[1:])

    def _begin(self) -> State:
        """Starts are drawn one candidate at a time, each from the stream of its victim and restart."""
        like = self.target.mean
        owner = torch.arange(len(self.seen.ids)).repeat_interleave(self.beside)
        senders = self.seen.clients or self.seen.ids
        draws = [
            self._draw(name, sender, restart)
            for name, sender in zip(self.seen.ids, senders, strict=True)
            for _ in self.settings
            for restart in self.restarts
        ]
        x = torch.stack(draws).to(like.device)
        owner = owner.to(like.device)
        n = len(draws)
        worst = torch.full((n,), torch.inf, dtype=like.dtype, device=like.device)
        return State(
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
            ends=Ends(start=worst, sum=torch.zeros_like(worst), loss=worst, match=worst, x=x),
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

    def _remember(self, state: State, values: Values) -> State:
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

    def _come_to(self, step: int, state: State, values: Values) -> tuple[State, Tensor]:
        """What the leg under way comes to, and for which candidates it was the last."""
        ends, groups = state.ends, self.groups[state.row]
        if len(self.legs) == 1:
            return state, torch.zeros_like(values.loss, dtype=torch.bool)
        leg = next(each for each in self.legs if step <= each.end)
        ends, settled = ends.after(step, leg, values.loss, values.match, state.x, groups)
        waited = torch.zeros_like(state.waited) if step == leg.end else state.waited
        return state._replace(ends=ends, waited=waited), settled

    def _release(
        self, step: int, state: State, values: Values, draws: Draws, settled: Tensor, done: Done
    ) -> tuple[State, Values, Draws]:
        """Candidates that are done leave the batch."""
        stop, (match, loss, slope) = self.search.stop, values
        over = torch.full_like(loss, step >= stop.steps, dtype=torch.bool)
        reached = loss <= (-torch.inf if stop.target is None else stop.target)
        reached = reached | (match <= (-torch.inf if stop.match is None else stop.match))
        tired = state.waited >= (stop.steps + 1 if stop.patience is None else stop.patience)
        lost = ~loss.isfinite() | ~slope.isfinite().all(1)
        gone = over | settled | reached | tired | lost
        if not gone.any():
            return state, values, draws
        for why, who in (
            (Outcome.DIVERGED, lost),
            (Outcome.TARGET, reached & ~lost),
            (Outcome.PATIENCE, tired & ~reached & ~lost),
            (Outcome.SETTLED, settled & ~tired & ~reached & ~lost),
            (Outcome.STEPS, over & ~settled & ~tired & ~reached & ~lost),
        ):
            self._leave(state, who, match, step, why, done)
        stay = (~gone).nonzero().squeeze(1)
        return trees.rows(state, stay), trees.rows(values, stay), draws.rows(stay)

    def _leave(self, state: State, who: Tensor, match: Tensor, step: int, why: Outcome, done: Done) -> None:
        rows, x = state.row[who], state.x
        if self.search.keep == "best":
            x, match = state.best_x, state.best_match
        elif why in (Outcome.SETTLED, Outcome.STEPS, Outcome.INTERRUPTED):
            ended = state.ends.loss.isfinite()  # a leg; what a later one is at in its midst is not better for that
            x, match = torch.where(ended[:, None], state.ends.x, x), torch.where(ended, state.ends.match, match)
        done.x[rows] = x[who]
        # One that diverged keeps an infinite match, so that no other restart loses to it.
        done.match[rows] = torch.inf if why is Outcome.DIVERGED else match[who]
        done.steps[rows] = step
        for row in rows.tolist():
            done.why[row] = why

    def _move(self, step: int, state: State, values: Values, draws: Draws, beat: Beat) -> State:
        def evaluate(x: Tensor, who: Tensor, *, slopes: bool = True) -> tuple[Tensor, Tensor]:
            beat()
            if not len(x):  # a model need not take a batch of nothing
                return values.loss[:0], x
            row, given = state.row[who], (state.labels[who], state.owner[who], draws.rows(who))
            terms = self._terms(step, row)
            _, loss, slope = self.objective(x, *given, terms, restart=row % self.beside, slopes=slopes)
            return loss, slope

        search, leg = self._of(state.row), next(each for each in reversed(self.legs) if each.begin <= step)
        schedule = schedules.init(len(values.loss), values.loss) if step == leg.begin else state.schedule
        shrinks = search.schedule if len(self.legs) == 1 else search.schedule.within(leg.end - leg.begin)
        schedule = shrinks.update(step - leg.begin, leg.end - leg.begin, values.loss, schedule)
        x, moments = search.optimiser.step(
            state.x, values.slope, schedule.scale, state.moments, loss=values.loss, evaluate=evaluate
        )
        at = Moved(step, schedule.scale, [self.streams[r] for r in state.row.tolist()], self.unknowns)
        for move in search.moves:
            x = move(x, at)
        # Slopes are tied too, but rates that each candidate finds for itself would part what one client keeps.
        x = self.objective.tied(x, state.owner, state.row % self.beside)
        return state._replace(x=x, moments=moments, schedule=schedule)

    def _choose(self, done: Done) -> Reconstruction:
        """Of every victim's restarts the one with the lowest matching loss; victims are there once a setting."""
        restarts, victims = len(self.restarts), len(self.seen.ids) * len(self.settings)
        kept = done.match.reshape(victims, restarts).argmin(1)
        rows = torch.arange(victims, device=kept.device) * restarts + kept
        unknowns, x, given = self.unknowns, done.x[rows], self.labels.repeat_interleave(len(self.settings), 0)
        return Reconstruction(
            images=unknowns.found(x).detach(),
            labels=unknowns.logits(x).detach().argmax(-1) if unknowns.classes else given,
            match=done.match[rows],
            steps=done.steps[rows],
            restart=self.restarts.start + kept,
            stopped=tuple(Ended(done.why[row]) for row in rows.tolist()),
            curve=Curve(
                tuple(step for step, _ in self.curve),
                torch.stack([m for _, m in self.curve], 1)[rows],
                {} if self.tracer is None else self.tracer.of(rows),
            ),
        )
