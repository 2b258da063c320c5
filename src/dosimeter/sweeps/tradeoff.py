"""Utility and privacy together: what a defense hides, and what it costs (PPP, Fig. 6; CVB, Fig. 11)."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dosimeter import checks, fingerprint, plain, spec
from dosimeter.auditing import part
from dosimeter.auditing.verdict import weigh
from dosimeter.defenses import Chain, Defense, NoDefense, parts
from dosimeter.errors import SettingError, unknown
from dosimeter.federated import Federation
from dosimeter.federated.accounting import privacy
from dosimeter.federated.checkpoint import read_history
from dosimeter.federated.training import picked
from dosimeter.sweeps.store import Entry, Store
from dosimeter.sweeps.trial import Course, Trial


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

    trial: Trial
    """Whom to attack and how, and the protocol; each defense takes the place of its own."""
    seeds: int = 1
    """Trainings of each; other seeds have other weights to begin with."""
    trained: bool = False
    """Whether the trained model is attacked; the untrained one otherwise, which leaks most."""

    def trials(self, defense: str) -> list[Trial | Course]:
        """The audit by the panel, and a training with every seed."""
        seeds = range(self.trial.seed, self.trial.seed + self.seeds)
        return [self.audit(defense), *(replace(self.training(defense), seed=seed) for seed in seeds)]

    def training(self, defense: str) -> Course:
        training = replace(self.trial, defense=defense).training
        assert training is not None
        return training

    def audit(self, defense: str) -> Trial:
        return replace(self.trial, defense=defense, protocol=self.trial.protocol if self.trained else None)

    def balance(self, defense: str, found: Sequence[Entry], store: Store) -> Balance:
        """Both sides, of what came of all trials of a defense."""
        audit, *trainings = found
        result, task = store.result(audit.digest), self.training(defense).prepare().federation
        weighed = weigh(result)
        histories = [read_history(store.place(each.digest))["rounds"] for each in trainings]
        accuracies = [picked(history)["accuracy"] for history in histories]
        return Balance(
            defense,
            statistics.mean(accuracies),
            statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
            result.scores.nearest["ssim"].mean,
            result.settings["attack_name"],
            plain.of(result.scores.success),
            weighed.kind.value,
            result.scores.evidence,
            f"{weighed.sentence} {result.verdict}",
            _parameters(task) / max(1, _parameters(replace(task, defense=NoDefense()))) - 1,
            histories[0][-1]["bytes"],
            statistics.median(entry["seconds"] for history in histories for entry in history),
            result.scores["ssim"].mean if result.scores.transformed else None,
            privacy(task, len(histories[0])) or None,
        )


def strongest(found: Entry, store: Store) -> dict[str, Any]:
    """The rate, name and mean SSIM of the attack of the whole panel that reads most."""
    result = store.result(found.digest)
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

    def nearest(self, value: float) -> int:
        """The place of the weakest strength that is no weaker; of the strongest where all are."""
        rising = self.grid[-1] > self.grid[0]
        strong = (at for at, each in enumerate(self.grid) if (each >= value if rising else each <= value))
        return next(strong, len(self.grid) - 1)

    def words(self, defense: str, value: float) -> str:
        """The defense at this strength, in words."""
        written = self.part < len(defense.split("|"))
        said = spec.with_setting(defense, self.part, self.setting, f"{value:g}") if written else defense
        if fingerprint.of(part("defense", said)) != fingerprint.of(self.of(part("defense", defense), value)):
            raise SettingError(
                f"Expected a defense whose {self.setting} can be set in words, got {defense!r}; name the part that has "
                "it, joined to others by |."
            )
        return said

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
    defense: str | None


def calibrate(
    attacked: Callable[[str], dict[str, Any]],
    defense: str,
    *,
    allowed: float,
    vary: str | None = None,
    start: float | None = None,
    told: Callable[[str, Tried], None] | None = None,
) -> Calibration:
    """Find the weakest setting of a defense that stops its whole panel, by halving its grid or from a start on.

    What stops the panel is taken to stop it when made stronger, and the strength below the one that is found was not
    seen to: more was read, or searches fell short so that it cannot be told.

    Args:
        attacked: what the strongest attack on a defense reaches, as `strongest` says it.
        allowed: share of images that may be read.
        vary: the setting to turn up; the usual one of its last part by default (`Defense.strengths`).
        start: a strength that may be the one; from it steps are taken that double until it is passed.
        told: of every strength as it is tried.
    """
    checks.share("A calibration", "a share of images that may be read", allowed)
    strength = strength_of(part("defense", defense), vary)
    grid = strength.grid
    tried: list[Tried] = []

    def stops(at: int) -> bool:
        success = attacked(strength.words(defense, grid[at]))
        shown = success["rate"] <= allowed and not (success.get("doubt") and allowed < 1)
        tried.append(Tried(grid[at], shown, success))
        if told:
            told(strength.setting, tried[-1])
        return tried[-1].stopped

    low, high = -1, len(grid)  # seen not to stop, seen to stop; the ends stand for nothing and everything
    at, step = (low + high) // 2 if start is None else strength.nearest(start), 1
    while high - low > 1:
        low, high = (low, at) if stops(at) else (at, high)
        if start is not None and (low == -1 or high == len(grid)):  # one side is open
            at, step = (at - step if low == -1 else at + step), 2 * step
            at = min(max(at, 0), len(grid) - 1)
        else:
            at = (low + high) // 2
    if high == len(grid):
        return Calibration(strength, tried, None, None)
    return Calibration(strength, tried, grid[high], strength.words(defense, grid[high]))


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
