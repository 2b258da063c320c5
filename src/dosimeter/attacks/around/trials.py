"""A search by somebody who tries several suppositions first, each for a short while."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dosimeter.attacks.base import Around, Cost
from dosimeter.attacks.labels import usable
from dosimeter.attacks.search.search import Search, searching
from dosimeter.attacks.stages import Stages, only
from dosimeter.engine import Matcher, Products
from dosimeter.types import Observation, Reconstruction, Target, Watch


class Supposition(Protocol):
    """What may be true of the victims."""

    @property
    def seen(self) -> Observation:
        """Their updates, if it is."""
        ...

    def search(self, search: Search, seen: Observation, seed: int, watch: Watch) -> Reconstruction: ...

    def apart(self, found: Reconstruction) -> Tensor:
        """(V,): how badly the images of a short search agree with it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trying(Around):
    """For each victim the supposition that a short search agrees with best; the whole search runs with it."""

    attack: Search

    def __post_init__(self) -> None:
        searching(self.attack)

    @property
    def short(self) -> Search:
        """The search that tries a supposition."""
        raise NotImplementedError

    def suppositions(self, target: Target, seen: Observation) -> Sequence[Supposition]:
        raise NotImplementedError

    def number(self, target: Target) -> int:
        """Of suppositions."""
        raise NotImplementedError

    def cost(self, target: Target, batch: int) -> Cost:
        whole = super().cost(target, batch)
        tried = self.number(target) * self.short.cost(target, batch).steps
        return whole._replace(steps=whole.steps + tried, least=whole.least + tried, tried=tried)

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        supposed, short = self.suppositions(target, seen), self.short
        steps, trial, victims = self.attack.stop.steps, short.stop.steps, len(seen.ids)
        stages = Stages(watch, len(supposed) * trial + steps)
        apart = []
        for one in supposed:
            found = stages.ended(one.search(short, one.seen, seed, stages.next(trial)))
            if stages.cut:
                return found
            apart.append(one.apart(found))
        best = torch.stack(apart).argmin(0).tolist()  # (V,)
        groups = [[v for v in range(victims) if best[v] == which] for which in range(len(supposed))]

        def run(which: int, _part: Observation, tell: Watch) -> Reconstruction:
            return supposed[which].search(self.attack, only(supposed[which].seen, groups[which]), seed, tell)

        return stages.each(target, seen, run, groups=groups, share=steps / victims)


def compared(target: Target, seen: Observation, found: Reconstruction) -> Products:
    """The products (V, P) of the updates that found images would cause with the observed ones."""
    assert found.labels is not None
    owner = torch.arange(len(found.images), device=found.images.device)
    matcher = Matcher(target, seen.gradient, statistics=seen.statistics)
    with torch.no_grad():
        products = matcher(found.images, usable(found.labels), owner)
    return Products(*(p.detach() for p in products))
