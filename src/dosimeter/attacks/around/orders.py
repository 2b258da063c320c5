"""What an attacker makes of clients that shuffle: the order of their images is theirs alone."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dosimeter import checks, rng
from dosimeter.attacks.base import Around, Cost
from dosimeter.attacks.labels import Known
from dosimeter.attacks.search.search import searching
from dosimeter.errors import SettingError
from dosimeter.types import Gradient, Observation, Reconstruction, Shuffling, Step, Target, Watch


@dataclass(frozen=True, kw_only=True)
class AverageOrders(Around):
    """A search that simulates clients that shuffle by the mean of their updates over orders of the attacker's own.

    Without it a search assumes that the images come as they are. That does little harm where all local batches are of
    one size and the rate is small, as every epoch then adds up to nearly the same; but in a last batch that is smaller
    an image counts for more, and the mean is nearer to the truth than a wrong guess of which one it was. A step costs
    `draws` times as much.
    """

    draws: int = 4
    """Orders of every epoch that are averaged; the same for all victims."""

    def __post_init__(self) -> None:
        searching(self.attack)
        checks.count("An average over orders", "draws", self.draws, most=1000)

    @property
    def name(self) -> str:
        return f"{self.attack.name}-orders"

    def cost(self, target: Target, batch: int) -> Cost:
        return super().cost(target, batch)._replace(updates=self.draws)

    def check(self, target: Target, batch: int) -> None:
        """Refuse clients that do not shuffle."""
        self._shuffling(target)
        super().check(target, batch)

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        step, search = self._shuffling(target), self.attack
        if search.labels is not None and not search.labels.classes(target):  # a mean of steps does not tell them
            seen = seen._replace(labels=search.labels.find(target, seen))
            search = search.relabelled(Known())
        drawn = tuple(step.shuffled(seen.batch, rng.stream(seed, "assumed order", k)) for k in range(self.draws))
        return search(replace(target, step=_Mean(drawn)), [seen], seed=seed, watch=watch)

    def _shuffling(self, target: Target) -> Shuffling:
        if not isinstance(target.step, Shuffling) or not target.step.shuffle:
            raise SettingError(
                "Orders are averaged where clients shuffle, and these do not; use shuffle=true or do not."
            )
        return target.step


@dataclass(frozen=True)
class _Mean:
    """The mean of several steps' updates."""

    steps: tuple[Step, ...]

    def __call__(self, target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
        updates = [step(target, parameters, images, labels) for step in self.steps]
        return {name: torch.stack([u[name] for u in updates]).mean(0) for name in updates[0]}
