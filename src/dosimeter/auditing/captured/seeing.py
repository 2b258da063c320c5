"""One captured update and its model: whether they fit, and what an attack makes of them."""

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from dosimeter import trees
from dosimeter.attacks import Attack
from dosimeter.attacks import labels as labels_
from dosimeter.auditing.case import Attacker, Client, resolve
from dosimeter.auditing.observe import noticed
from dosimeter.auditing.planning import planned
from dosimeter.auditing.setting import Audit, Resources, Updates, part
from dosimeter.auditing.target import given_statistics
from dosimeter.types import (
    BatchNorm,
    Gradient,
    Loss,
    Observation,
    Reconstruction,
    Shape,
    Statistics,
    Step,
)


class Capture(NamedTuple):
    """One captured update and all that is known of what is behind it."""

    update: Gradient  # {parameter name: tensor}, exactly the model's trainable parameters
    shape: Shape  # (C, H, W) of the images
    batch: int = 1  # how many images
    labels: Tensor | None = None  # (B,) where they are granted
    statistics: Statistics | None = None  # {layer: mean and variance (C,)} where they were sent; not corrected
    lr: float | None = None  # what the client's change of weights was divided by to make it; by default the step's


class Seen(NamedTuple):
    """A capture that fits its model: what the client ran, what the attacker simulates of it, and what it saw."""

    client: Client
    attacker: Attacker
    observation: Observation


def see(audit: Audit, capture: Capture) -> Seen:
    """Check that audit and update fit together, before any work."""
    update, shape, batch, labels, statistics, _ = capture
    client, attacker = resolve(audit, audit.model, shape, batch, labels)
    target = attacker.target
    audit.attack.check(target, batch)
    trees.check_update(update, target.parameters)
    plan = planned(audit, client.target, target, attacker.threat, victims=1, batch=batch)
    fitted = audit.attack.at_most(plan.restarts).fitted(target, batch)
    target = replace(target, stretch=plan.stretch, part=plan.part)
    attacker = replace(attacker, target=target, attack=fitted)
    stacked = trees.stack([{name: update[name].to(target.mean) for name in target.parameters}])
    known = None if labels is None else labels.to(target.mean.device)[None]
    along = given_statistics(target, attacker.threat.statistics, statistics)
    return Seen(client, attacker, Observation(stacked, batch, ("update",), known, along))


def with_labels(attack: Attack, granted: Tensor | None) -> Attack:
    """The attack with the labels that were granted, or with labels recovered where it would want them granted."""
    if granted is None and not attack.needs().labels:
        return attack
    return attack.relabelled(labels_.Counts() if granted is None else labels_.Known())


def reconstruct(
    model: nn.Module,
    capture: Capture,
    *,
    attack: Attack | str,
    loss: Loss | str | None = None,
    step: Step | str | None = None,
    batch_norm: BatchNorm = "running",
    seed: int = 0,
    resources: Resources = Resources(),
) -> Reconstruction:
    """Run an attack on one captured update, with nothing known of the truth.

    Args:
        model: the model before the update.
        capture: the update and what is known of it.
        attack, loss, seed, resources: as in `audit`.
        step: how the client made it, such as `clients.LocalTraining`, whose update is the difference of weights before
            and after, divided by the learning rate; or `clients.UntoldTraining`, with an attack that guesses the rest
            (where that is the learning rate, the update is the plain difference). One gradient by default.
        batch_norm: how the client ran batch norm, as in `Updates`.
    """
    audit = Audit(
        model=model,
        attack=part("attack", attack),
        loss=part("loss", loss),
        step=part("step", step),
        seed=seed,
        updates=Updates(batch_norm=batch_norm),
        resources=resources,
    )
    seen = see(audit, capture)
    return noticed(seen.attacker.read([seen.observation]), [seen.observation])
