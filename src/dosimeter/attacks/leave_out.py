"""An attacker who knows that one tensor of the update was tampered with, but not which one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dosimeter.attacks.masks import Except
from dosimeter.attacks.search import Search
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Target, ThreatModel, Watch


@dataclass(frozen=True, kw_only=True)
class LeaveOut:
    """`attack` without one of the weights, found by trying all (the bypass of Soteria; Bayes, Sec. 5).

    Each weight tensor is left out of a short search in turn; the one without which the rest matches best, over all
    victims, is left out of the long one. `probe` is the share of steps that a trial takes.
    """

    attack: Search
    probe: float = 0.1

    @property
    def name(self) -> str:
        return f"{self.attack.name} without a tensor"

    @property
    def at_once(self) -> int:
        return self.attack.at_once

    def needs(self) -> ThreatModel:
        return self.attack.needs()

    def check(self, target: Target, batch: int) -> None:
        if len(self.candidates(target)) < 2:
            raise SettingError("Leaving out a tensor needs a model with at least two weights; use the attack itself.")
        self.attack.check(target, batch)

    def candidates(self, target: Target) -> list[str]:
        """The tensors that may be left out: weights of any layer."""
        return [name for name, p in target.parameters.items() if p.ndim > 1]

    def suspect(self, target: Target, seen: Observation, *, seed: int) -> str:
        """The tensor without which a short search matches best."""
        stop = replace(self.attack.stop, steps=max(1, round(self.probe * self.attack.stop.steps)))
        short = replace(self.attack, stop=stop)
        matches = {
            name: float(replace(short, only=Except(names=(name,)))(target, [seen], seed=seed).match.mean())
            for name in self.candidates(target)
        }
        return min(matches, key=lambda name: matches[name])

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        left = self.suspect(target, observations[0], seed=seed)
        return replace(self.attack, only=Except(names=(left,)))(target, observations, seed=seed, watch=watch)

    def blind(self) -> Search:
        return self.attack.blind()
