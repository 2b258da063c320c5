"""Utility and privacy together: what a defense hides, and what it costs (PPP, Fig. 6; CVB, Fig. 11)."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter import checks
from dosimeter.auditing import Result, Setting, Yardstick, audit_panel, conclude
from dosimeter.defenses import (
    Defense,
    DpSgd,
    Dropout,
    GaussianNoise,
    LaplaceNoise,
    NoDefense,
    Ppp,
    Pruning,
    RandomPruning,
    parts,
)
from dosimeter.errors import SettingError
from dosimeter.federated.accounting import privacy
from dosimeter.federated.audited import as_audited
from dosimeter.federated.federation import Federation
from dosimeter.federated.training import Training, train
from dosimeter.types import Victims


class Balance(NamedTuple):
    """A defense's two sides. Spreads are over seeds of training."""

    defense: str
    accuracy: float  # the mean over seeds of the best round's
    accuracy_spread: float
    ssim: float  # of the strongest attack
    attack: str
    success: dict[str, Any]
    verdict: str
    added: float  # share of parameters that it adds
    bytes: int  # that a client sends in a round
    seconds: float  # of a round
    privacy: dict[str, Any] | None = None  # epsilon and delta of the first training as a whole, under DP-SGD


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How defenses are compared: the same model, data, protocol, victims and panel of attacks for all of them."""

    federation: Callable[[int], Federation]
    """Of a seed, undefended; other seeds have other weights to begin with."""
    victims: Victims
    setting: Setting
    yardstick: Yardstick
    steps: int
    seeds: int = 1
    trained: bool = False
    """Whether the trained model is attacked; the untrained one otherwise, which leaks most."""
    _audits: dict[tuple[str, int], Result] = field(default_factory=dict, repr=False, compare=False)

    def balance(self, name: str, defense: Defense, folder: Path | None = None) -> Balance:
        """Train with the defense, then have it meet its whole panel of attacks."""
        trainings = []
        for seed in range(self.seeds):
            task = replace(self.federation(self.setting.seed + seed), defense=defense)
            trainings.append((task, train(task, folder=folder and folder / f"seed-{task.seed}")))
        task, first = trainings[0]
        result = self.audit(task, first if self.trained else Training(task.initial(), {}, []))
        best = [max(entry["accuracy"] for entry in found.history) for _, found in trainings]
        rounds = [entry["seconds"] for _, found in trainings for entry in found.history]
        return Balance(
            name,
            statistics.mean(best),
            statistics.stdev(best) if len(best) > 1 else 0.0,
            result.scores["scores"]["ssim"]["mean"],
            result.settings["attack_name"],
            result.scores["success"],
            result.verdict,
            _parameters(task) / max(1, _parameters(replace(task, defense=NoDefense()))) - 1,
            first.history[-1]["bytes"],
            statistics.median(rounds),
            privacy(task, len(first.history)) or None,
        )

    def audit(self, task: Federation, at: Training) -> Result:
        """Every attack made for the defense on the victims' updates at this moment; an audit is not done twice."""
        key = (repr(task.defense), len(at.history))
        if key not in self._audits:
            setting = replace(self.setting, defense=as_audited(task, at))
            trials = audit_panel(task.model, self.victims, setting, self.yardstick, steps=self.steps)
            self._audits[key] = conclude(list(trials))
        return self._audits[key]

    def strongest(self, defense: Defense) -> dict[str, Any]:
        """The rate, name and mean SSIM of the attack of the whole panel that reads most of the untrained model."""
        task = replace(self.federation(self.setting.seed), defense=defense)
        result = self.audit(task, Training(task.initial(), {}, []))
        rate: dict[str, Any] = result.scores["success"]
        mean, left = result.scores["scores"]["ssim"]["mean"], result.unmeasured
        return rate | {"attack": result.settings["attack_name"], "ssim": mean, "unmeasured": left}


def _parameters(task: Federation) -> int:
    return sum(p.numel() for p in task.template.parameters())


GRIDS: dict[type[Defense], tuple[str, tuple[float, ...]]] = {
    GaussianNoise: ("sigma", (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)),
    LaplaceNoise: ("scale", (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)),
    Ppp: ("sigma", (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)),
    DpSgd: ("sigma", (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)),
    Pruning: ("ratio", (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)),
    RandomPruning: ("rate", (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)),
    Dropout: ("rate", (0.1, 0.3, 0.5, 0.7, 0.9)),
}
"""The setting that makes a defense stronger, from weak to strong."""


class Tried(NamedTuple):
    """One strength of a defense against its whole panel."""

    value: float
    stopped: bool
    success: dict[str, Any]


class Calibration(NamedTuple):
    """The weakest strength that stops every attack, if there is one."""

    setting: str
    tried: list[Tried]  # in the order in which they were tried
    weakest: float | None
    defense: Defense | None


def calibrate(
    comparison: Comparison,
    defense: Defense,
    *,
    allowed: float,
    kept: Mapping[float, dict[str, Any]] | None = None,
    told: Callable[[str, Tried], None] | None = None,
) -> Calibration:
    """Find the weakest setting of a defense that stops its whole panel, by halving its grid.

    What stops the panel is taken to stop it when made stronger, and the strength below the one that is found was seen
    not to.

    Args:
        allowed: share of images that may be read.
        kept: what the strongest attack reached at strengths that were tried before.
        told: of every strength as it is tried.
    """
    checks.share("A calibration", "a share of images that may be read", allowed)
    key, grid = _grid(defense)
    tried: list[Tried] = []

    def stops(at: int) -> bool:
        success = (kept or {}).get(grid[at]) or comparison.strongest(_with(defense, key, grid[at]))
        tried.append(Tried(grid[at], success["rate"] <= allowed and not success.get("unmeasured"), success))
        if told:
            told(key, tried[-1])
        return tried[-1].stopped

    low, high = -1, len(grid)  # seen not to stop, seen to stop; the ends stand for nothing and everything
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if stops(middle) else (middle, high)
    if high == len(grid):
        return Calibration(key, tried, None, None)
    return Calibration(key, tried, grid[high], _with(defense, key, grid[high]))


def _grid(defense: Defense) -> tuple[str, tuple[float, ...]]:
    found = parts(defense)
    if len(found) != 1:
        raise SettingError("One defense is calibrated at a time; leave out what is joined by |.")
    for kind, grid in GRIDS.items():
        if type(found[0]) is kind:
            return grid
    known = ", ".join(sorted(kind.__name__ for kind in GRIDS))
    raise SettingError(f"{type(found[0]).__name__} has no strength to calibrate; expected one of {known}.")


def _with(defense: Defense, key: str, value: float) -> Defense:
    assert key in {each.name for each in fields(defense)}
    return replace(defense, **{key: value})
