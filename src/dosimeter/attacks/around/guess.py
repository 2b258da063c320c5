"""Guessing how clients train locally, where the threat model does not say.

The number of local steps is a small integer, so that it can be found by trying (Inverting Gradients, App. B.2).
"""

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.attacks.around.trials import Trying, compared
from dosimeter.attacks.base import Cost
from dosimeter.attacks.search.search import Search
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Target, ThreatModel, Trained, Untold, Watch


@dataclass(frozen=True, kw_only=True)
class GuessSteps(Trying):
    """A search by an attacker who was not told how many local steps an update holds, or at which learning rate.

    Every guess gets a short search. For each victim the guess is kept whose images simulate the update best, direction
    and size alike,

        |simulated - observed|^2 / (|simulated| |observed|)  =  2 (1 - cos) + (sqrt(r) - 1 / sqrt(r))^2,

    where r is the ratio of their norms; the whole search runs with it. A cosine alone would not do: several steps at a
    small rate point where one does, only further. Over |observed|^2 a short search, still far off, would favour guesses
    that are too small.

    Where both are guessed, n steps at a rate r and m at a rate n r / m change the weights nearly alike while rates are
    small. Then only the product can be told, and either guess gives the images.
    """

    guesses: tuple[int, ...] = tuple(range(1, 11))
    """Numbers of local steps to try; none where the number is granted."""
    rates: tuple[float, ...] = ()
    """Learning rates to try; none where the rate is granted."""
    trial: int = 100
    """Steps of a short search."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.guesses or self.rates):
            raise SettingError("Guessing needs numbers of local steps or learning rates to try, got none.")
        for steps in self.guesses:
            checks.count("Guessing", "numbers of local steps", steps, most=100_000)
        for rate in self.rates:
            checks.positive("Guessing", "learning rates", rate)
        checks.count("Guessing", "steps of a trial", self.trial)

    @property
    def name(self) -> str:
        return f"{self.attack.name}-guess"

    @property
    def short(self) -> Search:
        stop = replace(self.attack.stop, steps=min(self.trial, self.attack.stop.steps), leg=None)
        return replace(self.attack, stop=stop, restarts=1)

    def cost(self, target: Target, batch: int) -> Cost:
        return super().cost(target, batch)._replace(passes=max(self.guesses, default=1))

    def needs(self) -> ThreatModel:
        return replace(self.attack.needs(), local_steps=not self.guesses, local_lr=not self.rates)

    def check(self, target: Target, batch: int) -> None:
        """Refuse a target of which nothing, or something else, is to be guessed."""
        self.candidates(target)
        super().check(target, batch)

    def number(self, target: Target) -> int:
        return len(self.candidates(target))

    def suppositions(self, target: Target, seen: Observation) -> list["_Guess"]:
        return [_Guess(target, seen, trained) for trained in self.candidates(target)]

    def candidates(self, target: Target) -> list[Trained]:
        """What is tried; the most local steps first, so that the first steps of an estimate are the costliest."""
        step = target.step
        if not isinstance(step, Untold):
            known = "one gradient" if step is None else repr(step)
            raise SettingError(
                f"There is nothing to guess, the attacker knows that clients send {known}; do not guess."
            )
        for what, told, tried in (("steps", step.steps, self.guesses), ("learning rates", step.lr, self.rates)):
            if (told is None) != bool(tried):
                kind = "neither granted nor guessed" if told is None else "both granted and guessed"
                raise SettingError(f"The local {what} are {kind}; do one of the two.")
        steps = self.guesses if step.steps is None else (step.steps,)
        rates = self.rates if step.lr is None else (step.lr,)
        return [Trained(*pair) for pair in product(sorted(set(steps), reverse=True), rates)]


class _Guess:
    """The updates of all victims, on the assumption that clients trained in one way."""

    def __init__(self, target: Target, seen: Observation, trained: Trained) -> None:
        assert isinstance(target.step, Untold)
        self.trained, self.seen = trained, seen
        self.target = replace(target, step=target.step.assume(steps=trained.steps, lr=trained.lr))
        if target.step.lr is None:  # the update is the plain difference of weights
            self.seen = seen._replace(gradient={name: g / trained.lr for name, g in seen.gradient.items()})

    def search(self, search: Search, seen: Observation, seed: int, watch: Watch) -> Reconstruction:
        found = search(self.target, [seen], seed=seed, watch=watch)
        return found._replace(trained=(self.trained,) * len(seen.ids))

    def apart(self, found: Reconstruction) -> Tensor:
        """(V,): how far the simulated updates are from the observed ones, on the scale of both."""
        products = compared(self.target, self.seen, found)
        difference, simulated, observed = (
            p.sum(1) for p in (products.difference, products.simulated, products.observed)
        )
        return (difference / (simulated * observed).sqrt()).nan_to_num(torch.inf, posinf=torch.inf)
