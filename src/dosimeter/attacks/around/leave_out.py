"""An attacker who knows that one tensor of the update was tampered with, but not which one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.attacks.around.trials import Trying, compared
from dosimeter.attacks.search.masks import Except
from dosimeter.attacks.search.search import Search
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Target, Watch


@dataclass(frozen=True, kw_only=True)
class LeaveOut(Trying):
    """`attack` without one of the weights, found by trying all (the bypass of Soteria; Bayes, Sec. 5).

    Each weight is left out of a short search in turn. For each victim the one that then stands out most is left out of
    the long one: the others agree with the images and it does not. `probe` is the share of steps that a trial takes, at
    most the first leg of a search that goes on in legs.
    """

    probe: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.share("A trial of every tensor", "a share of steps (probe)", self.probe, zero=False)

    @property
    def name(self) -> str:
        return f"{self.attack.name} without a tensor"

    @property
    def short(self) -> Search:
        stop = self.attack.stop
        steps = min(stop.leg or stop.steps, max(1, round(self.probe * stop.steps)))
        return replace(self.attack, stop=replace(stop, steps=steps, leg=None))

    def check(self, target: Target, batch: int) -> None:
        if self.number(target) < 2:
            raise SettingError("Leaving out a tensor needs a model with at least two weights; use the attack itself.")
        super().check(target, batch)

    def number(self, target: Target) -> int:
        return len(self.candidates(target))

    def candidates(self, target: Target) -> list[str]:
        """The tensors that may be left out: weights of any layer."""
        return [name for name, p in target.parameters.items() if p.ndim > 1]

    def apart(self, target: Target, clean: Sequence[Observation], seen: Sequence[Observation]) -> Tensor:
        """Without the tensor whose absence suits the truth best."""
        left = (replace(self.attack, only=Except(names=(name,))) for name in self.candidates(target))
        return torch.stack([search.apart(target, clean, seen) for search in left]).amin(0)

    def suppositions(self, target: Target, seen: Observation) -> list["_Without"]:
        return [_Without(name, target, seen) for name in self.candidates(target)]


class _Without(NamedTuple):
    """One tensor was tampered with."""

    name: str
    target: Target
    seen: Observation

    def search(self, search: Search, seen: Observation, seed: int, watch: Watch) -> Reconstruction:
        return replace(search, only=Except(names=(self.name,)))(self.target, [seen], seed=seed, watch=watch)

    def apart(self, found: Reconstruction) -> Tensor:
        return -stands_out(self.name, self.target, self.seen, found)


def stands_out(name: str, target: Target, seen: Observation, found: Reconstruction) -> Tensor:
    """(V,): how much worse a tensor agrees with what images would cause than the others do, by 1 - cos of each.

    Numbers that are drawn inside the model are taken at their mean.
    """
    products = compared(target, seen, found)
    apart = 1 - (products.cross / (products.simulated * products.observed).sqrt()).nan_to_num()  # (V, P)
    own = torch.tensor([each == name for each in target.parameters], device=apart.device)
    return apart[:, own].mean(1) / apart[:, ~own].mean(1).clamp_min(1e-24)
