"""What one process does of a tuning: it takes settings, tries them together, and tells what came of each."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from dosimeter import rng, spec
from dosimeter.attacks import Search, presets
from dosimeter.auditing import part
from dosimeter.errors import SettingError
from dosimeter.tuning import journal
from dosimeter.tuning.ground import Ground, Tried
from dosimeter.tuning.journal import Journal, State
from dosimeter.tuning.setting import Tuning
from dosimeter.tuning.spaces import Choice, Span

UNTUNED, COARSE, FINE, WHOLE = "untuned", "coarse", "fine", "whole"
"""What a setting is tried for: to be compared with; to find a space's factor, coarsely and finely; all of it."""


class Outcome(NamedTuple):
    """One setting that was tried."""

    number: int
    words: str
    settings: dict[str, Any]
    tried: Tried
    seconds: float


class Work:
    """A tuning as this process sees it."""

    def __init__(self, asked: Tuning, ground: Ground, kept: Journal) -> None:
        self.asked, self.ground, self.kept, self.space = asked, ground, kept, asked.space
        self.held = spec.parse("attack", asked.trial.attack, presets.BY_NAME)[1]
        steps = asked.search({}).stop.steps
        self.pauses = [] if asked.prune == "none" else sorted({steps // 4, steps // 2} - {0})
        kept.study.pruner = journal.pruner(asked.prune, self.pauses[0] if self.pauses else 1)

    @property
    def factor(self) -> float | None:
        """That was found before the space itself is tried."""
        found = self.kept.study.user_attrs.get("factor")
        return None if found is None else float(found)

    def _counted(self) -> list[Any]:
        """All but those that were put back."""
        return [each for each in self.kept.trials() if each.state != State.FAIL or "tried" in each.user_attrs]

    def take(self) -> list[Any] | None:
        """The next settings; none where others are trying the last ones, and None where all is done."""
        with self.kept.turn():
            for trial in self.kept.left_behind():
                if "tried" in trial.user_attrs:
                    self._conclude(trial)
                else:
                    self.kept.put_back(trial)
            running = bool(self.kept.trials(State.RUNNING))
            if not self.kept.trials(State.WAITING) and not self._goes_on(running):
                return []
            counted, waiting = self._counted(), self.kept.trials(State.WAITING)
            many = min(self._room(counted), self.asked.at_once)
            if self.asked.sampler == "grid" or any(stage_of(each) != WHOLE for each in waiting):
                many = min(many, len(waiting))
            if many <= 0:
                return [] if running else None
            seed = rng.derive(self.asked.trial.seed, "sampler", len(counted)) % 2**32
            self.kept.study.sampler = journal.sampler(self.asked.sampler, seed)
            return [self._taken() for _ in range(many)]

    def _taken(self) -> Any:
        trial = self.kept.take()
        if stage_of(trial) == WHOLE:
            for key, axis in self.space.axes.items():
                _suggest(trial, key, axis)
        return trial

    def _goes_on(self, running: bool) -> bool:
        """Once all of a stage is done, have the next one wait; whether there may be anything to take."""
        if self.kept.study.user_attrs.get("begun"):
            return True
        if running:
            return False
        if self.space.factors and self._wait(COARSE, self.space.factors):
            return True
        if self.space.factors and self._wait(FINE, self.space.around(self._best(COARSE))):
            return True
        if self.space.factors:
            self.kept.study.set_user_attr("factor", self._best(FINE))
        there = [each.system_attrs.get("fixed_params") for each in self.kept.trials()]
        for values in self.asked.grid() if self.asked.sampler == "grid" else ():
            if values not in there:
                self.kept.wait(values, {"stage": WHOLE})
        self.kept.study.set_user_attr("begun", True)
        return True

    def _wait(self, stage: str, factors: Sequence[float]) -> bool:
        """Have those tried that nobody has asked for yet; whether there are any."""
        there = {each.user_attrs["factor"] for each in self.kept.trials() if stage_of(each) == stage}
        missing = [factor for factor in factors if factor not in there]
        for factor in missing:
            self.kept.wait({}, {"stage": stage, "factor": factor})
        return bool(missing)

    def _best(self, stage: str) -> float:
        """The factor with the highest score; coarsely the mean of those that are as good to a thousandth."""
        mine = [each.user_attrs for each in self.kept.trials() if stage_of(each) == stage]
        scores = [(Tried(*each["tried"]).score(self.asked.by), each["factor"]) for each in mine if "tried" in each]
        high = max(score for score, _ in scores)
        best = [factor for score, factor in scores if high - score < 1e-3]
        return float(sum(best) / len(best)) if stage == COARSE else float(best[0])

    def _room(self, counted: Sequence[Any]) -> int:
        """How many more may be tried."""
        asked = self.asked
        begun = sum(each.state != State.WAITING for each in counted)
        left = asked.at_once if asked.trials is None else asked.trials - begun
        if asked.budget is not None:
            spent = sum(each.user_attrs.get("tried", [0] * 5)[4] for each in counted)
            most = self.ground.cost_of(asked.search({})) * self.space.restarts
            running = sum(each.state == State.RUNNING for each in counted)
            left = min(left, (asked.budget - spent) // most - running)
        return int(left)

    def settings_of(self, trial: Any) -> dict[str, Any]:
        if (stage := stage_of(trial)) == UNTUNED:
            return {}
        if stage == WHOLE:
            return self.space.settings(trial.params, self.factor, self.held)
        return self.space.settings(self.space.before, trial.user_attrs["factor"], self.held)

    def attempt(self, taken: Sequence[Any]) -> None:
        """Try settings together and tell what came of each."""
        searches, trials = list[Search](), []
        for trial in taken:
            words = self.asked.words(self.settings_of(trial))
            try:
                search: Search = part("attack", words)
                search.check(self.ground.job.attacker.target, self.ground.shadows.batch)
            except SettingError as error:  # a combination that the attack refuses
                if not searches and trial is taken[-1] and not any(each.settings for each in self.outcomes()):
                    raise  # as it refuses all of them
                trial.set_user_attr("why", str(error))
                self.kept.study.tell(trial, state=State.PRUNED)
                continue
            trial.set_user_attr("words", words)
            searches.append(search)
            trials.append(trial)
        whole = {n for n, trial in enumerate(trials) if stage_of(trial) == WHOLE}

        def decide(step: int, scores: Any) -> list[int]:
            for n in whole & scores.keys():
                trials[n].report(scores[n], step)
            return [n for n in sorted(whole & scores.keys()) if trials[n].should_prune()]

        began = time.monotonic()
        found = self.ground.attempt(searches, self.pauses, decide, by=self.asked.by) if searches else []
        each = (time.monotonic() - began) / max(1, len(found))
        for trial, tried in zip(trials, found, strict=True):
            trial.set_user_attr("seconds", each)
            trial.set_user_attr("tried", [*tried])
            self._conclude(trial)

    def _conclude(self, trial: Any) -> None:
        """Tell of a setting that was tried; of those outside the space the sampler hears nothing."""
        tried, whole = Tried(*trial.user_attrs["tried"]), stage_of(trial) == WHOLE
        if whole and not tried.left:
            self.kept.study.tell(trial.number, tried.score(self.asked.by))
        else:
            self.kept.study.tell(trial.number, state=State.PRUNED if whole else State.FAIL)

    def outcomes(self) -> list[Outcome]:
        found = []
        for trial in self.kept.trials():
            about = trial.user_attrs
            if "tried" in about and trial.state.is_finished():
                tried = Tried(*about["tried"])
                found.append(Outcome(trial.number, about["words"], self.settings_of(trial), tried, about["seconds"]))
        return found

    def standing(self) -> tuple[int, int | None, float]:
        """How many settings are done, of how many, and the best score so far."""
        done, total = self.outcomes(), self.asked.total
        whole = [each.tried.score(self.asked.by) for each in done if not each.tried.left]
        return len(done), total, max(whole, default=float("nan"))


def stage_of(trial: Any) -> str:
    """What a setting is tried for; what the sampler proposed is of the space."""
    return str(trial.user_attrs.get("stage", WHOLE))


def _suggest(trial: Any, key: str, axis: Span | Choice) -> None:
    if isinstance(axis, Choice):
        trial.suggest_categorical(key, axis.values)
    elif axis.whole:
        trial.suggest_int(key, int(axis.low), int(axis.high), log=axis.log)
    else:
        trial.suggest_float(key, axis.low, axis.high, log=axis.log)
