"""Which attacks a defense has to meet.

The published attack, those that follow from what the defense does (`attacks_on`, one function a kind of defense, and
what holds for all models with secrets), and a control: the same search with all that the defense hides revealed.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any, Literal, NamedTuple

from dosimeter import defenses
from dosimeter.attacks import AverageRounds, LeaveOut, Search, degraded, likelihoods, masks, presets, treatments
from dosimeter.defenses import Defense
from dosimeter.types import Attack

Role = Literal["published", "adaptive", "control"]

ROUNDS = 10
"""Updates of one batch that an attacker who averages waits for."""
UPDATES = 4
"""Updates of one client, each of another batch, that an attacker who ties them together waits for."""


class Contender(NamedTuple):
    """One attack of a panel."""

    attack: Attack
    role: Role
    about: str
    rounds: int = 1
    same_client: int = 1


def contenders(defense: Defense, *, steps: int, batch: int, scopes: Collection[str] = ()) -> list[Contender]:
    """The panel for a defense.

    Args:
        steps: of every search.
        batch: images of an update.
        scopes: of the numbers that the defended model draws inside it; none where it draws none.
    """
    plain = presets.inverting_gradients(steps=steps)
    panel = [Contender(plain, "published", "Inverting Gradients, as if there were no defense")]
    knowing = replace(plain, secrets=treatments.Joint()) if scopes else plain
    if scopes:
        panel += _against_secrets(plain)
    parts = defenses.parts(defense)
    for part in parts:
        panel += attacks_on(part, knowing, batch)
        if noise := _noise(part, batch):
            # What is drawn anew for every image is another one in every round.
            panel += [_density(noise, knowing), _averaged(plain if set(scopes) - {"client"} else knowing)]
    panel += _against_masked_noise(parts, knowing, batch)
    panel.append(Contender(presets.analytic(), "adaptive", "solved layer by layer, by ratio or by rank one"))
    known = replace(_joint(plain), secrets=treatments.Known()) if scopes else plain
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


class Noise(NamedTuple):
    """On every entry of an update, of its own in every round."""

    kind: Literal["gaussian", "laplace"]
    scale: float


def _noise(defense: Defense, batch: int) -> Noise | None:
    found = None
    if isinstance(defense, defenses.GaussianNoise):
        found = Noise("gaussian", defense.sigma)
    elif isinstance(defense, defenses.LaplaceNoise):
        found = Noise("laplace", defense.scale)
    elif isinstance(defense, defenses.DpSgd):
        found = Noise("gaussian", defense.sigma * defense.clip / batch)
    return found if found and found.scale else None


def _averaged(attack: Search) -> Contender:
    about = f"the mean of {ROUNDS} updates of the same batch"
    return Contender(AverageRounds(attack=attack), "adaptive", about, rounds=ROUNDS)


def _density(noise: Noise, plain: Search) -> Contender:
    found = presets.bayes(density=noise.kind, scale=noise.scale, steps=plain.stop.steps)
    found = replace(found, name="density", secrets=plain.secrets)
    return Contender(found, "adaptive", "the noise's own density")


@attacks_on.register
def _(defense: defenses.Pruning, plain: Search, batch: int) -> list[Contender]:
    match = replace(plain, name="survived", likelihood=likelihoods.Survived())
    return [Contender(match, "adaptive", "entries that survived, bounds on those that did not")]


@attacks_on.register
def _(defense: defenses.RandomPruning, plain: Search, batch: int) -> list[Contender]:
    match = replace(plain, name="survived", likelihood=degraded.Zeroed(by="places"))
    return [Contender(match, "adaptive", "only entries that survived")]


def _against_masked_noise(parts: Sequence[Defense], plain: Search, batch: int) -> list[Contender]:
    """The density of what a mask and noise leave together (Bayes, Sec. 6).

    Under noise a mask is not seen and has to be integrated out; on top of it its zeros show it. A mask by magnitude is
    taken for a random one.
    """
    dropping = [(at, share) for at, part in enumerate(parts) if 0 < (share := _dropped(part)) < 1]
    noises = [(at, noise) for at, part in enumerate(parts) if (noise := _noise(part, batch))]
    if not dropping or not noises:
        return []
    (mask, share), (at, noise) = dropping[0], noises[0]
    settings: dict[str, Any] = {"rate": share, "scale": noise.scale, "steps": plain.stop.steps}
    if at > mask:
        found = presets.bayes(density="prune-gaussian" if noise.kind == "gaussian" else "prune-laplace", **settings)
        name, about = "mixture", "the density with the mask integrated out"
    elif noise.kind == "gaussian":
        found = presets.bayes(density="known-mask", **settings)
        name, about = "masked density", "the density of the entries that no zero hides"
    else:
        return []
    return [Contender(replace(found, name=name, secrets=plain.secrets), "adaptive", about)]


def _dropped(defense: Defense) -> float:
    """The share of entries that a mask drops."""
    if isinstance(defense, defenses.RandomPruning):
        return defense.rate
    return defense.ratio if isinstance(defense, defenses.Pruning) else 0.0


@attacks_on.register
def _(defense: defenses.Quantisation, plain: Search, batch: int) -> list[Contender]:
    match = replace(plain, name="interval", likelihood=likelihoods.Interval(bits=defense.bits))
    return [Contender(match, "adaptive", "every entry within half a step of what is seen")]


@attacks_on.register
def _(defense: defenses.Ppp, plain: Search, batch: int) -> list[Contender]:
    if defense.prune is not None:
        match = replace(plain, name="survived", likelihood=likelihoods.Survived(), secrets=treatments.Joint())
        return [Contender(match, "adaptive", "entries that survived, bounds on those that did not, draws searched")]
    if not defense.sigma:
        return []
    weighted = replace(
        plain,
        name="noise-weighted",
        likelihood=likelihoods.SquaredL2(),
        only=masks.InverseVariance(sigma=defense.sigma),
        secrets=treatments.Joint(),
    )
    return [
        Contender(weighted, "adaptive", "all tensors, each by how noisy it is, with the draws searched"),
        _averaged(replace(presets.ignoring(steps=plain.stop.steps), name="ignore")),
    ]


@attacks_on.register
def _(defense: defenses.KeyLock, plain: Search, batch: int) -> list[Contender]:
    wrong = replace(plain, name="wrong key", secrets=treatments.Guessed())
    signs = replace(_joint(plain, restarts=4), name="joint, four starts")
    panel = [
        Contender(wrong, "published", "a random key"),
        Contender(signs, "adaptive", "image, scale and shift searched together, from several signs"),
        Contender(presets.unlock(), "adaptive", "scale and shift solved for in closed form"),
    ]
    tied = replace(signs, name="joint, one client's updates")
    panel.append(
        Contender(tied, "adaptive", f"the same, scale and shift shared by {UPDATES} updates", same_client=UPDATES)
    )
    if defense.reveals:
        given = replace(_joint(plain), name="with the key", secrets=treatments.Known())
        panel.append(Contender(given, "adaptive", "with the key that the client sends"))
    if defense.share in ("lock", "both"):
        read = presets.recover_key(steps=plain.stop.steps)
        panel.append(Contender(read, "adaptive", "the key read off the lock's gradient"))
    return panel


@attacks_on.register
def _(defense: defenses.Soteria, plain: Search, batch: int) -> list[Contender]:
    return [Contender(LeaveOut(attack=plain), "adaptive", "without the defended tensor, found by trying all")]
