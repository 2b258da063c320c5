"""An attacker who knows that one tensor of the update was tampered with, but not which one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.attacks.labels import usable
from dosimeter.attacks.masks import Except
from dosimeter.attacks.search import Search
from dosimeter.attacks.stages import Stages, group_by_group, only
from dosimeter.engine import Matcher
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Target, ThreatModel, Watch


@dataclass(frozen=True, kw_only=True)
class LeaveOut:
    """`attack` without one of the weights, found by trying all (the bypass of Soteria; Bayes, Sec. 5).

    Each weight is left out of a short search in turn. For each victim the one that then stands out most is left out of
    the long one: the others agree with the images and it does not. `probe` is the share of steps that a trial takes.
    """

    attack: Search
    probe: float = 0.1

    def __post_init__(self) -> None:
        checks.share("A trial of every tensor", "a share of steps (probe)", self.probe, zero=False)

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

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        (seen,) = observations
        names, steps, everyone = self.candidates(target), self.attack.stop.steps, range(len(seen.ids))
        tried = max(1, round(self.probe * steps))
        short = replace(self.attack, stop=replace(self.attack.stop, steps=tried))
        stages = Stages(watch, len(names) * tried + steps)

        def without(name: str, search: Search, part: Observation, share: float) -> Reconstruction:
            search = replace(search, only=Except(names=(name,)))
            return stages.ended(search(target, [part], seed=seed, watch=stages.next(share)))

        apart = []
        for name in names:
            found = without(name, short, seen, tried)
            if stages.cut:
                return found
            apart.append(stands_out(name, target, seen, found))
        best = torch.stack(apart).argmax(0).tolist()  # (V,)
        groups = [[v for v in everyone if best[v] == which] for which in range(len(names))]

        def run(which: int) -> Reconstruction:
            part = only(seen, groups[which])
            return without(names[which], self.attack, part, steps * len(part.ids) / len(everyone))

        return group_by_group(groups, run)

    def blind(self) -> Search:
        return self.attack.blind()


def stands_out(name: str, target: Target, seen: Observation, found: Reconstruction) -> Tensor:
    """(V,): how much worse a tensor agrees with what images would cause than the others do, by 1 - cos of each.

    Numbers that are drawn inside the model are taken at their mean.
    """
    assert found.labels is not None
    owner = torch.arange(len(seen.ids), device=found.images.device)
    matcher = Matcher(target, seen.gradient, statistics=seen.statistics)
    products = matcher(found.images, usable(found.labels), owner)
    apart = 1 - (products.cross / (products.simulated * products.observed).sqrt()).detach().nan_to_num()  # (V, P)
    own = torch.tensor([each == name for each in target.parameters], device=apart.device)
    return apart[:, own].mean(1) / apart[:, ~own].mean(1).clamp_min(1e-24)
