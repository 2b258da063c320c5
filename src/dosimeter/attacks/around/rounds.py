"""An attacker who sees several updates of the same batch and takes their mean, in which noise is smaller."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dosimeter.attacks.base import Around
from dosimeter.types import Observation, Reconstruction, Target, Watch


@dataclass(frozen=True, kw_only=True)
class AverageRounds(Around):
    """`attack` on the mean of all rounds' updates. Independent noise of deviation s is s / sqrt(R) there."""

    @property
    def name(self) -> str:
        return f"{self.attack.name}, rounds averaged"

    def blind(self) -> "AverageRounds":
        return AverageRounds(attack=self.attack.blind())

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        return self.attack(target, [average(observations)], seed=seed, watch=watch)

    def apart(self, target: Target, clean: Sequence[Observation], seen: Sequence[Observation]) -> Tensor:
        return self.attack.apart(target, [average(clean)], [average(seen)])


def average(observations: Sequence[Observation]) -> Observation:
    """One observation whose update is the mean of all; whatever else was seen is the first round's."""
    first = observations[0]
    mean = {name: g.clone() for name, g in first.gradient.items()}
    for each in observations[1:]:
        for name, g in each.gradient.items():
            mean[name] += g
    return first._replace(gradient={name: g / len(observations) for name, g in mean.items()})
