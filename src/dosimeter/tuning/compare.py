"""Who chooses better at equal cost: a grid, or Optuna's samplers with as many image-steps; and what a batch saves."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dosimeter.auditing import part
from dosimeter.tuning import presets
from dosimeter.tuning.ground import Ground
from dosimeter.tuning.presets import OnVictims
from dosimeter.tuning.setting import Tuning
from dosimeter.tuning.spaces import Space
from dosimeter.tuning.tune import Told, ground_of, tune


class Compared(NamedTuple):
    """What one way of choosing came to with one seed."""

    way: str
    seed: int
    tried: int
    stopped: int  # of these, early
    cost: int  # image-steps
    seconds: float
    shadows: float  # the score of the best
    untuned: float  # and of the attack as it was
    victims: OnVictims
    before: OnVictims  # the untuned attack on the same victims


def compare(
    asked: Tuning, grid: Space, samplers: Sequence[str], seeds: Sequence[int], folder: Path, told: Told | None = None
) -> Iterator[Compared]:
    """A grid, and samplers that stop poor settings early and may take as many image-steps as the grid did."""
    for seed in seeds:
        budget, trial = None, replace(asked.trial, seed=seed)
        for way in ("grid", *samplers):
            mine = replace(asked, trial=trial, space=grid, sampler="grid", prune="none", trials=None)
            if budget is not None:
                mine = replace(asked, trial=trial, sampler=way, trials=None, budget=budget)
            place = folder / f"seed-{seed}" / way
            found = tune(mine, place, told)
            budget = budget or found.cost
            presets.write(presets.preset_of(way, mine, found), place / "best.toml")
            both = presets.on_victims(mine, place / "best.toml", folder / "victims")
            stopped = sum(each.tried.left for each in found.outcomes)
            scores = found.best.tried.score(asked.by), found.untuned.tried.score(asked.by)
            counts = len(found.outcomes), stopped, found.cost, found.seconds
            yield Compared(way, seed, *counts, *scores, both["tuned"], both["untuned"])


class Saved(NamedTuple):
    """Seconds of a core for one setting, and for many in batches."""

    settings: int
    shadows: int
    one: float
    many: float

    @property
    def times(self) -> float:
        return self.many / self.one


def saved(asked: Tuning, settings: int = 64, turns: int = 3) -> Saved:
    """How much longer so many settings of a grid take than one, whose time is the least of a few turns."""
    ground: Ground = ground_of(replace(asked, workers=1), None)
    grid = [part("attack", asked.words(asked.space.settings(each, 1.0, {}))) for each in asked.grid()]
    chosen = [grid[at % len(grid)] for at in range(settings)]

    def seconds(many: int) -> float:
        began = time.process_time()  # whatever else runs here
        ground.attempt(chosen[:many])
        return time.process_time() - began

    seconds(1)
    one = min(seconds(1) for _ in range(turns))
    return Saved(settings, len(ground.shadows.ids), one, seconds(settings))
