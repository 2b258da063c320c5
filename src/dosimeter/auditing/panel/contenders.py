"""Which attacks a defense has to meet: one table from the facts of its channel to the attacks that answer them.

The published attack, those that follow from what becomes of the update and from what the model draws, the closed forms,
and a control: the same search with all that the defense hides revealed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from dosimeter.attacks import Attack, AverageRounds, LeaveOut, Search, Steps, Undo, presets
from dosimeter.attacks.search import degraded, likelihoods, masks, treatments
from dosimeter.auditing.result import Role
from dosimeter.channel import Changing, Channel, Clip, Draws, Fact, Facts, Hides, Mask, Noise, Rounding, Transforms

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


def contenders(channel: Channel, *, steps: Steps, waves: bool = True) -> list[Contender]:
    """The panel for a defense; its searches take so many steps, or as many as they need.

    Args:
        waves: whether the model's images may be searched from coarse to fine.
    """
    plain = presets.inverting_gradients(steps=steps)
    draws = [fact for fact in channel.facts if isinstance(fact, Draws)]
    knowing = replace(plain, secrets=treatments.Joint()) if draws else plain
    panel = [Contender(plain, "published", "Inverting Gradients, as if there were no defense")]
    if waves:
        coarse = presets.inverting_gradients(steps=steps, coarse="auto")
        coarse = replace(coarse, name="coarse to fine", secrets=knowing.secrets)
        panel.append(Contender(coarse, "adaptive", "the same, a quarter of an image's waves first, then half of them"))
    if draws:
        panel += _against_draws(plain)
    for fact in channel.facts:
        panel += _against(fact, plain, knowing)
    panel += _against_noise(channel.facts, plain, knowing)
    panel += _against_masked_noise(channel.facts, knowing)
    solved = "solved layer by layer, by ratio, by rank one or by patches"
    panel.append(Contender(presets.analytic(), "adaptive", solved))
    if any(isinstance(fact, Noise) for fact in channel.facts):
        about = f"solved likewise, the mean of {ROUNDS} updates of the same batch"
        panel.append(Contender(AverageRounds(attack=presets.analytic()), "adaptive", about, rounds=ROUNDS))
    for fact in channel.facts:  # after it, so that it has had the time for both
        if isinstance(fact, Transforms) and fact.by is not None:
            about = "solved, then what was done to the images is undone"
            panel.append(Contender(Undo(attack=presets.analytic(), by=fact.by), "adaptive", about))
    known = replace(_joint(plain), secrets=treatments.Known()) if draws else plain
    about = "all that the defense hides is given to the attacker"
    panel.append(Contender(replace(known, name="all revealed"), "control", about))
    return list(dict.fromkeys(panel))


def _against(fact: Fact, plain: Search, knowing: Search) -> Iterator[Contender]:
    """What follows from one fact alone."""
    match fact:
        case Mask(by="size"):
            match = replace(knowing, name="survived", likelihood=likelihoods.Survived())
            yield Contender(match, "adaptive", "entries that survived, bounds on those that did not")
        case Mask(by="random"):
            match = replace(knowing, name="survived", likelihood=degraded.Zeroed(by="places"))
            yield Contender(match, "adaptive", "only entries that survived")
        case Rounding(step, relative):
            match = replace(knowing, name="interval", likelihood=likelihoods.Interval(step=step, relative=relative))
            yield Contender(match, "adaptive", "every entry within half a step of what is seen")
        case Clip(of="tensor"):
            match = replace(knowing, name="direction", likelihood=likelihoods.MeanCosine())
            yield Contender(match, "adaptive", "the direction of every tensor, which clipping leaves")
        case Hides(on) if on is not None:
            without = replace(knowing, name="without", only=masks.Except(names=tuple(sorted(on))))
            yield Contender(without, "adaptive", "all tensors but those that are changed")
            yield Contender(LeaveOut(attack=plain), "adaptive", "without the defended tensor, found by trying all")
        case Transforms(by) if by is not None:
            yield from _against_transforms(by, plain)
        case Draws(scope="client"):
            yield from _against_keys(fact, plain)


def _against_transforms(by: Changing, plain: Search) -> Iterator[Contender]:
    """Against images that a defense changed in ways that it states: what is read is undone."""
    undone = "the images that clients trained on are read, then what was done to them is undone"
    yield Contender(Undo(attack=plain, by=by), "adaptive", undone)
    about = "the images of before are searched through what was done to them"
    yield Contender(Undo(attack=plain, by=by, jointly=True), "adaptive", about)


def _against_draws(plain: Search) -> list[Contender]:
    averaged = replace(plain, name="averaged", secrets=treatments.Resampled(draws=4))
    return [
        Contender(_ignoring(plain), "published", "only tensors that the draws do not touch"),
        Contender(averaged, "adaptive", "the mean over four draws at every step"),
        Contender(_joint(plain), "adaptive", "image and draws searched together"),
        Contender(presets.eliminate(), "adaptive", "the draws solved for in closed form"),
    ]


def _against_keys(fact: Draws, plain: Search) -> Iterator[Contender]:
    """Against numbers that a client draws once and keeps."""
    wrong = replace(plain, name="wrong key", secrets=treatments.Guessed())
    signs = replace(_joint(plain, restarts=4), name="joint, four starts")
    yield Contender(wrong, "published", "a random key")
    yield Contender(signs, "adaptive", "image, scale and shift searched together, from several signs")
    yield Contender(presets.unlock(), "adaptive", "scale and shift solved for in closed form")
    tied = replace(signs, name="joint, one client's updates")
    about = f"the same, scale and shift shared by {UPDATES} updates"
    yield Contender(tied, "adaptive", about, same_client=UPDATES)
    if fact.sent:
        given = replace(_joint(plain), name="with the key", secrets=treatments.Known())
        yield Contender(given, "adaptive", "with the key that the client sends")
    if fact.trained:
        read = presets.recover_key(steps=plain.stop.asked)
        yield Contender(read, "adaptive", "the key read off the lock's gradient")


def _against_noise(facts: Facts, plain: Search, knowing: Search) -> Iterator[Contender]:
    """The noise's own density where one noise is on all, tensors by how noisy they are where it is not; and averages.

    What is drawn anew for every image is another one in every round, so that a mean of rounds cannot suppose one draw.
    """
    noises = [fact for fact in facts if isinstance(fact, Noise)]
    if not noises:
        return
    fresh = any(isinstance(fact, Draws) and fact.scope == "image" for fact in facts)
    if len(noises) == 1 and noises[0].on is None:
        (noise,) = noises
        found = presets.bayes(density=noise.kind, scale=noise.scale, steps=plain.stop.asked)
        if noise.kind == "gaussian" and any(isinstance(fact, Clip) and fact.of == "update" for fact in facts):
            found = replace(found, likelihood=degraded.Clipped(likelihood=likelihoods.Gaussian(sigma=noise.scale)))
        density = replace(found, name="density", secrets=knowing.secrets)
        yield Contender(density, "adaptive", "the noise's own density")
        yield _averaged(plain if fresh else knowing)
        return
    each = {name: noise.scale for noise in noises for name in noise.on or ()}
    weighted = replace(
        knowing,
        name="noise-weighted",
        likelihood=likelihoods.SquaredL2(),
        only=masks.InverseVariance(each=tuple(sorted(each.items()))),
    )
    yield Contender(weighted, "adaptive", "all tensors, each by how noisy it is")
    yield _averaged(_ignoring(plain) if fresh else knowing)


def _against_masked_noise(facts: Facts, plain: Search) -> Iterator[Contender]:
    """The density of what a mask and noise leave together (Bayes, Sec. 6).

    Under noise a mask is not seen and has to be integrated out; on top of it its zeros show it. A mask by magnitude is
    taken for a random one.
    """
    dropping = [(at, f.rate) for at, f in enumerate(facts) if isinstance(f, Mask) and f.on is None and 0 < f.rate < 1]
    noises = [(at, fact) for at, fact in enumerate(facts) if isinstance(fact, Noise) and fact.on is None]
    if not dropping or not noises:
        return
    (mask, share), (at, noise) = dropping[0], noises[0]
    settings: dict[str, Any] = {"scale": noise.scale, "steps": plain.stop.asked}
    if at > mask:
        kind: Literal["prune-gaussian", "prune-laplace"]
        kind = "prune-gaussian" if noise.kind == "gaussian" else "prune-laplace"
        found = presets.bayes(density=kind, rate=share, **settings)
        name, about = "mixture", "the density with the mask integrated out"
    elif noise.kind == "gaussian":
        found = presets.bayes(density="known-mask", **settings)
        name, about = "masked density", "the density of the entries that no zero hides"
    else:
        return
    yield Contender(replace(found, name=name, secrets=plain.secrets), "adaptive", about)


def _averaged(attack: Search) -> Contender:
    about = f"the mean of {ROUNDS} updates of the same batch"
    return Contender(AverageRounds(attack=attack), "adaptive", about, rounds=ROUNDS)


def _ignoring(plain: Search) -> Search:
    return replace(presets.ignoring(steps=plain.stop.asked), name="ignore")


def _joint(plain: Search, restarts: int = 1) -> Search:
    stop = plain.stop
    return presets.joint(steps=stop.asked, plateau=max(1, stop.steps // 8), restarts=restarts)
