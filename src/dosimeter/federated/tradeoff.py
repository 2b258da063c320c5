"""Utility and privacy together: what a defense hides, and what it costs (PPP, Fig. 6; CVB, Fig. 11)."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter import checks, fingerprint, plain
from dosimeter.attacks import Steps
from dosimeter.auditing import Audit, Result, audit_all
from dosimeter.auditing.verdict import weigh
from dosimeter.defenses import Chain, Defense, NoDefense, parts
from dosimeter.errors import SettingError, unknown
from dosimeter.federated.accounting import privacy
from dosimeter.federated.audited import as_audited
from dosimeter.federated.federation import Federation
from dosimeter.federated.training import Training, picked, train


class Balance(NamedTuple):
    """A defense's two sides. Spreads are over seeds of training."""

    defense: str
    accuracy: float  # the mean over seeds; of the round with the lowest validation loss, else of the last
    accuracy_spread: float
    ssim: float  # of the strongest attack, against what clients trained on where that is nearer
    attack: str
    success: dict[str, Any]
    kind: str  # of the verdict: leaks, not shown or inconclusive
    evidence: dict[str, int]  # images by what that attack says of privacy
    verdict: str
    added: float  # share of parameters that it adds
    bytes: int  # that a client sends in a round
    seconds: float  # of a round
    originals: float | None = None  # the same SSIM against their own images, where clients trained on others
    privacy: dict[str, Any] | None = None  # epsilon and delta of the first training as a whole, under DP-SGD


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How defenses are compared: the same model, data, protocol, victims and panel of attacks for all of them."""

    federation: Callable[[int], Federation]
    """Of a seed, undefended; other seeds have other weights to begin with."""
    whole: Audit
    """Whom to attack and how; each defense takes the place of its own."""
    steps: Steps
    seeds: int = 1
    trained: bool = False
    """Whether the trained model is attacked; the untrained one otherwise, which leaks most."""
    _audits: dict[tuple[str, int], Result] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def made(self) -> dict[str, Any]:
        """All that makes two comparisons the same, as plain values; defenses are what is compared."""
        task = {key: value for key, value in self.federation(self.whole.seed).made.items() if key != "defense"}
        return task | self.whole.made | {"steps": self.steps, "seeds": self.seeds, "trained": self.trained}

    def balance(self, name: str, defense: Defense, folder: str | Path | None = None) -> Balance:
        """Train with the defense, then have it meet its whole panel of attacks."""
        trainings = []
        for seed in range(self.seeds):
            task = replace(self.federation(self.whole.seed + seed), defense=defense)
            trainings.append((task, train(task, folder=folder and Path(folder) / f"seed-{task.seed}")))
        task, first = trainings[0]
        result = self.audit(task, first if self.trained else Training(task.initial(), {}, []))
        weighed = weigh(result)
        accuracies = [picked(found.history)["accuracy"] for _, found in trainings]
        rounds = [entry["seconds"] for _, found in trainings for entry in found.history]
        return Balance(
            name,
            statistics.mean(accuracies),
            statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
            result.scores.nearest["ssim"].mean,
            result.settings["attack_name"],
            plain.of(result.scores.success),
            weighed.kind.value,
            result.scores.evidence,
            f"{weighed.sentence} {result.verdict}",
            _parameters(task) / max(1, _parameters(replace(task, defense=NoDefense()))) - 1,
            first.history[-1]["bytes"],
            statistics.median(rounds),
            result.scores["ssim"].mean if result.scores.transformed else None,
            privacy(task, len(first.history)) or None,
        )

    def audit(self, task: Federation, at: Training) -> Result:
        """Every attack made for the defense on the victims' updates at this moment; an audit is not done twice."""
        key = (fingerprint.of(task.defense), len(at.history))
        if key not in self._audits:
            whole = replace(self.whole, model=task.model, defense=as_audited(task, at))
            self._audits[key] = audit_all(whole, steps=self.steps)
        return self._audits[key]

    def strongest(self, defense: Defense) -> dict[str, Any]:
        """The rate, name and mean SSIM of the attack of the whole panel that reads most of the untrained model."""
        task = replace(self.federation(self.whole.seed), defense=defense)
        result = self.audit(task, Training(task.initial(), {}, []))
        rate: dict[str, Any] = plain.of(result.scores.success)
        mean, weighed = result.scores.nearest["ssim"].mean, weigh(result)
        told = {"kind": weighed.kind.value, "doubt": weighed.doubt, "evidence": result.scores.evidence}
        return rate | {"attack": result.settings["attack_name"], "ssim": mean} | told


def _parameters(task: Federation) -> int:
    return sum(p.numel() for p in task.template.parameters())


class Tried(NamedTuple):
    """One strength of a defense against its whole panel."""

    value: float
    stopped: bool  # which was shown: few enough images are read, and that is no fault of the searches
    success: dict[str, Any]


class Strength(NamedTuple):
    """What of a defense is turned up: a setting of one of its parts, from weak to strong."""

    part: int
    setting: str
    grid: tuple[float, ...]

    def of(self, defense: Defense, value: float) -> Defense:
        """The defense at this strength, all else as it is."""
        found = list(parts(defense))
        found[self.part] = replace(found[self.part], **{self.setting: value})
        return found[0] if len(found) == 1 else Chain(parts=tuple(found))


class Calibration(NamedTuple):
    """The weakest strength that stops every attack, if there is one."""

    strength: Strength
    tried: list[Tried]  # in the order in which they were tried
    weakest: float | None
    defense: Defense | None


def calibrate(
    comparison: Comparison,
    defense: Defense,
    *,
    allowed: float,
    vary: str | None = None,
    kept: Mapping[float, dict[str, Any]] | None = None,
    told: Callable[[str, Tried], None] | None = None,
) -> Calibration:
    """Find the weakest setting of a defense that stops its whole panel, by halving its grid.

    What stops the panel is taken to stop it when made stronger, and the strength below the one that is found was not
    seen to: more was read, or searches fell short so that it cannot be told.

    Args:
        allowed: share of images that may be read.
        vary: the setting to turn up; the usual one of its last part by default (`Defense.strengths`).
        kept: what the strongest attack reached at strengths that were tried before.
        told: of every strength as it is tried.
    """
    checks.share("A calibration", "a share of images that may be read", allowed)
    strength = strength_of(defense, vary)
    grid = strength.grid
    tried: list[Tried] = []

    def stops(at: int) -> bool:
        success = (kept or {}).get(grid[at]) or comparison.strongest(strength.of(defense, grid[at]))
        shown = success["rate"] <= allowed and not (success.get("doubt") and allowed < 1)
        tried.append(Tried(grid[at], shown, success))
        if told:
            told(strength.setting, tried[-1])
        return tried[-1].stopped

    low, high = -1, len(grid)  # seen not to stop, seen to stop; the ends stand for nothing and everything
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if stops(middle) else (middle, high)
    if high == len(grid):
        return Calibration(strength, tried, None, None)
    return Calibration(strength, tried, grid[high], strength.of(defense, grid[high]))


def strength_of(defense: Defense, vary: str | None = None) -> Strength:
    """The setting that was asked for, or the usual one of the last part that has any."""
    found = [
        Strength(at, setting, grid)
        for at, part in reversed(list(enumerate(parts(defense))))
        for setting, grid in part.strengths().items()
    ]
    if not found:
        names = " | ".join(type(part).__name__ for part in parts(defense))
        raise SettingError(
            f"{names} has no strength to calibrate; expected a defense whose `strengths` name a setting."
        )
    if vary is None:
        return found[0]
    chosen = next((each for each in found if each.setting == vary), None)
    if chosen is None:
        raise SettingError(unknown("strength", vary, {each.setting for each in found}))
    return chosen
