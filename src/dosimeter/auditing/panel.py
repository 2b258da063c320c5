"""Every defense meets the attacks made for it: which these are, and an audit by all of them.

A defense judged by an attack that ignores it gets a false pass. A panel has the published attack, those that follow
from what the defense does (`attacks_on`, one function a kind of defense, and what holds for all models with secrets),
and a control: the same search with all that the defense hides revealed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dosimeter import defenses
from dosimeter.attacks import AverageRounds, LeaveOut, Search, degraded, likelihoods, masks, presets, treatments
from dosimeter.auditing.judge import Yardstick
from dosimeter.auditing.result import Result
from dosimeter.auditing.run import perform
from dosimeter.auditing.setting import Setting
from dosimeter.defenses import Around, Defense, Moment
from dosimeter.errors import DosimeterError, SettingError
from dosimeter.types import Attack, Gradient, Secretive, Victims

Role = Literal["published", "adaptive", "control"]

ROUNDS = 10
"""Updates of one batch that an attacker who averages waits for."""


class Contender(NamedTuple):
    """One attack of a panel."""

    attack: Attack
    role: Role
    about: str
    rounds: int = 1


class Trial(NamedTuple):
    """What came of a contender: a result, or why there is none."""

    contender: Contender
    result: Result | None
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class Revealed(Around):
    """A defense that hides nothing: its layers and its draws, but the plain batch and the plain update."""

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return images, labels

    def clips(self) -> None:
        return None

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        return gradient


def contenders(defense: Defense, *, steps: int, batch: int, secrets: bool) -> list[Contender]:
    """The panel for a defense.

    Args:
        steps: of every search.
        batch: images of an update.
        secrets: whether the defended model draws numbers inside it.
    """
    plain = presets.inverting_gradients(steps=steps)
    panel = [Contender(plain, "published", "Inverting Gradients, as if there were no defense")]
    if secrets:
        panel += _against_secrets(plain)
    for part in defenses.parts(defense):
        panel += attacks_on(part, plain, batch)
    if any(isinstance(part, defenses.RandomPruning) for part in defenses.parts(defense)):
        panel += _against_masked_noise(defense, plain)
    panel.append(Contender(presets.analytic(), "adaptive", "solved layer by layer, by ratio or by rank one"))
    known = replace(_joint(plain), secrets=treatments.Known()) if secrets else plain
    known = replace(known, name="all revealed")
    panel.append(Contender(known, "control", "all that the defense hides is given to the attacker"))
    return list(dict.fromkeys(panel))


def _against_secrets(plain: Search) -> list[Contender]:
    return [
        Contender(
            replace(presets.ignoring(steps=plain.stop.steps), name="ignore"),
            "published",
            "only tensors that the draws do not touch",
        ),
        Contender(
            replace(plain, name="averaged", secrets=treatments.Resampled(draws=4)),
            "adaptive",
            "the mean over four draws at every step",
        ),
        Contender(_joint(plain), "adaptive", "image and draws searched together"),
        Contender(presets.eliminate(), "adaptive", "the draws solved for in closed form"),
    ]


def _joint(plain: Search, restarts: int = 1) -> Search:
    steps = plain.stop.steps
    return presets.joint(steps=steps, plateau=max(1, steps // 8), restarts=restarts)


@singledispatch
def attacks_on(defense: Defense, plain: Search, batch: int) -> list[Contender]:
    """What follows from the kind of a defense; nothing for those that are unknown."""
    return []


@attacks_on.register
def _(defense: defenses.GaussianNoise, plain: Search, batch: int) -> list[Contender]:
    return _densities("gaussian", defense.sigma, plain)


@attacks_on.register
def _(defense: defenses.LaplaceNoise, plain: Search, batch: int) -> list[Contender]:
    return _densities("laplace", defense.scale, plain)


@attacks_on.register
def _(defense: defenses.DpSgd, plain: Search, batch: int) -> list[Contender]:
    return _densities("gaussian", defense.sigma * defense.clip / batch, plain)


def _densities(kind: Literal["gaussian", "laplace"], scale: float, plain: Search) -> list[Contender]:
    if not scale:
        return []
    mean = AverageRounds(attack=replace(plain, name="ig"))
    return [
        Contender(_density(kind, scale, plain), "adaptive", "the noise's own density"),
        Contender(mean, "adaptive", f"the mean of {ROUNDS} updates of the same batch", ROUNDS),
    ]


def _density(kind: Literal["gaussian", "laplace"], scale: float, plain: Search) -> Search:
    return replace(presets.bayes(density=kind, scale=scale, steps=plain.stop.steps), name="density")


@attacks_on.register
def _(defense: defenses.Pruning, plain: Search, batch: int) -> list[Contender]:
    match = replace(plain, name="survived", likelihood=likelihoods.Survived())
    return [Contender(match, "adaptive", "entries that survived, bounds on those that did not")]


@attacks_on.register
def _(defense: defenses.RandomPruning, plain: Search, batch: int) -> list[Contender]:
    match = replace(plain, name="survived", likelihood=degraded.Zeroed(by="places"))
    return [Contender(match, "adaptive", "only entries that survived")]


def _against_masked_noise(defense: Defense, plain: Search) -> list[Contender]:
    """The density of a random mask with noise on top of it, where both are there (Bayes, Sec. 6)."""
    rates = [part.rate for part in defenses.parts(defense) if isinstance(part, defenses.RandomPruning)]
    for part in defenses.parts(defense):
        if isinstance(part, defenses.GaussianNoise) and part.sigma and 0 < rates[0] < 1:
            mixture = presets.bayes(density="prune-gaussian", rate=rates[0], scale=part.sigma, steps=plain.stop.steps)
            return [Contender(replace(mixture, name="mixture"), "adaptive", "the density with the mask integrated out")]
    return []


@attacks_on.register
def _(defense: defenses.Quantisation, plain: Search, batch: int) -> list[Contender]:
    match = replace(plain, name="interval", likelihood=likelihoods.Interval(bits=defense.bits))
    return [Contender(match, "adaptive", "every entry within half a step of what is seen")]


@attacks_on.register
def _(defense: defenses.Ppp, plain: Search, batch: int) -> list[Contender]:
    if defense.prune is not None or not defense.sigma:
        return []
    weighted = replace(
        plain,
        name="noise-weighted",
        likelihood=likelihoods.SquaredL2(),
        only=masks.InverseVariance(sigma=defense.sigma),
        secrets=treatments.Joint(),
    )
    return [Contender(weighted, "adaptive", "all tensors, each by how noisy it is, with the draws searched")]


@attacks_on.register
def _(defense: defenses.KeyLock, plain: Search, batch: int) -> list[Contender]:
    wrong = replace(plain, name="wrong key", secrets=treatments.Guessed())
    signs = replace(_joint(plain, restarts=4), name="joint, four starts")
    panel = [
        Contender(wrong, "published", "a random key"),
        Contender(signs, "adaptive", "image, scale and shift searched together, from several signs"),
        Contender(presets.unlock(), "adaptive", "scale and shift solved for in closed form"),
    ]
    if defense.share in ("lock", "both"):
        read = presets.recover_key(steps=plain.stop.steps)
        panel.append(Contender(read, "adaptive", "the key read off the lock's gradient"))
    return panel


@attacks_on.register
def _(defense: defenses.Soteria, plain: Search, batch: int) -> list[Contender]:
    return [Contender(LeaveOut(attack=plain), "adaptive", "without the defended tensor, found by trying all")]


def audit_panel(
    model: nn.Module,
    victims: Victims,
    setting: Setting,
    yardstick: Yardstick,
    *,
    steps: int,
    names: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> Iterator[Trial]:
    """Audit by every attack of the panel in turn; the attack of the setting does not count."""
    defended = setting.defense.on_model(model, victims.shape)
    secrets = any(isinstance(layer, Secretive) for layer in defended.modules())
    for one in contenders(setting.defense, steps=steps, batch=victims.batch, secrets=secrets):
        defense = Revealed(inner=setting.defense) if one.role == "control" else setting.defense
        each = replace(setting, attack=one.attack, defense=defense, rounds=one.rounds)
        try:
            yield Trial(one, perform(model, victims, each, yardstick, names=names, progress=progress))
        except SettingError as reason:
            if one.attack.name == "ig":
                raise  # what keeps the plain attack from running keeps all others from it
            yield Trial(one, None, str(reason))


def strongest(trials: list[Trial]) -> Trial:
    """The attack that reads most images, of these the one with the highest mean SSIM; controls do not count."""
    ran = [t for t in trials if t.result is not None and t.contender.role != "control"]
    if not ran:
        raise DosimeterError("No attack of the panel could be run; see the reasons above.")
    return max(ran, key=_strength)


def _strength(trial: Trial) -> tuple[int, float]:
    assert trial.result is not None
    scores = trial.result.scores
    mean = scores["scores"]["ssim"]["mean"]
    return scores["success"]["hits"], mean if math.isfinite(mean) else -1.0


def rows(trials: list[Trial]) -> list[dict[str, Any]]:
    """The panel as plain values, one a contender."""
    found = []
    for contender, result, refused in trials:
        row: dict[str, Any] = {"attack": contender.attack.name, "role": contender.role, "about": contender.about}
        row["rounds"] = contender.rounds
        if result is None:
            found.append(row | {"refused": refused})
            continue
        scores = result.scores
        row |= {"success": scores["success"], "ssim": scores["scores"]["ssim"]["mean"]}
        row |= {"psnr": scores["scores"]["psnr"]["mean"], "worst": scores["worst"]}
        found.append(row | {"recovered": scores["recovered"]} if "recovered" in scores else row)
    return found


def conclude(trials: list[Trial]) -> Result:
    """The strongest attack's result with the whole panel beside it."""
    best = strongest(trials).result
    assert best is not None
    seen = [(t.contender.attack.name, t.result.images) for t in trials if t.result is not None]
    return replace(best, panel=rows(trials), verdict=verdict(trials), seen=seen)


def verdict(trials: list[Trial]) -> str:
    """What was tried, what the best attack reached, and whether the attack itself works here."""
    best = strongest(trials)
    assert best.result is not None
    scores, tried = best.result.scores, sum(t.result is not None and t.contender.role != "control" for t in trials)
    hit = scores["success"]
    words = (
        f"{tried} attacks were tried. The best, {best.contender.attack.name} ({best.contender.about}), reads "
        f"{hit['hits']} of {hit['of']} images ({100 * hit['rate']:.0f} %, 95 % interval {100 * hit['low']:.0f}-"
        f"{100 * hit['high']:.0f} %); the most exposed one has an SSIM of {scores['worst']['ssim']:.2f}."
    )
    control = next((t.result for t in trials if t.contender.role == "control" and t.result is not None), None)
    if control is None:
        return words
    seen = control.scores["success"]
    revealed = f" With all that the defense hides revealed, {seen['hits']} of {seen['of']} are read"
    if 2 * seen["hits"] >= seen["of"]:
        return words + revealed + ", so the attack itself works here."
    return words + revealed + ": here even that fails, so a low rate says little of the defense."
