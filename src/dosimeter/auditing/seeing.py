"""One captured update and its model: whether they fit, and what an attack makes of them."""

from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dosimeter import trees
from dosimeter.attacks import LabelsOnly
from dosimeter.attacks import labels as labels_
from dosimeter.auditing.job import check_secrets
from dosimeter.auditing.observing import noticed
from dosimeter.auditing.setting import Setting
from dosimeter.auditing.target import as_attacked, given_statistics, make_target
from dosimeter.errors import SettingError
from dosimeter.types import (
    Attack,
    BatchNorm,
    Gradient,
    Loss,
    Observation,
    Reconstruction,
    Selective,
    Shape,
    Statistics,
    Step,
    Target,
)


class Capture(NamedTuple):
    """One captured update and all that is known of what is behind it."""

    update: Gradient  # {parameter name: tensor}
    shape: Shape  # (C, H, W) of the images
    batch: int = 1  # how many images
    labels: Tensor | None = None  # (B,) where they are granted
    statistics: Statistics | None = None  # {layer: mean and variance (C,)} where the client sent them
    lr: float = 1.0  # what was perturbed, the client's change of weights, was divided by to make the update


class Seen(NamedTuple):
    """A capture that fits its model: what the client ran, what the attacker simulates of it, and what it saw."""

    client: Target
    target: Target
    observation: Observation


def see(model: nn.Module, capture: Capture, setting: Setting) -> Seen:
    """Check that model, update and setting fit together, before any work."""
    update, shape, batch, labels, statistics, _ = capture
    client = make_target(model, shape, setting, batch=batch, labels=labels)
    check_secrets(client)
    target = as_attacked(client, setting.granted(), batch)
    if isinstance(setting.attack, Selective):
        setting.attack.check(target, batch)
    trees.check_update(update, target.parameters)
    stacked = trees.stack([{name: update[name].to(target.mean) for name in target.parameters}])
    known = None if labels is None else labels.to(target.mean.device)[None]
    along = given_statistics(target, setting.granted().statistics, statistics)
    return Seen(client, target, Observation(stacked, batch, ("update",), known, along))


def with_labels(attack: Attack, granted: Tensor | None) -> Attack:
    """The attack with the labels that were granted, or with labels recovered where it would want them granted."""
    if granted is None and not attack.needs().labels:
        return attack
    if isinstance(attack, LabelsOnly):
        raise SettingError(f"The attack {attack.name!r} finds the labels, which are granted; leave one of them out.")
    change: dict[str, Any] = {}
    for field in fields(attack):  # type: ignore[arg-type]
        if field.name == "attack":  # that another one is built around
            change["attack"] = with_labels(getattr(attack, field.name), granted)
        elif field.name == "labels":
            change["labels"] = labels_.Counts() if granted is None else labels_.Known()
    if not change:
        raise SettingError(f"The attack {attack.name!r} says not where its labels come from; use one of the presets.")
    return replace(attack, **change)  # type: ignore[type-var]


def reconstruct(
    model: nn.Module,
    update: Gradient,
    *,
    attack: Attack,
    shape: Shape,
    batch: int = 1,
    labels: Tensor | None = None,
    loss: Loss | None = None,
    step: Step | None = None,
    batch_norm: BatchNorm = "running",
    statistics: Statistics | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Reconstruction:
    """Run an attack on one captured update, with nothing known of the truth.

    Args:
        model: the model before the update.
        update: {parameter name: gradient}, exactly the model's trainable parameters.
        attack: a preset or a `Search` of your own.
        shape: (C, H, W) of the images.
        batch: how many images are behind the update.
        labels: (batch,) where they are known.
        loss: (output, labels) -> scalar; cross-entropy by default.
        step: how the client made it, such as `clients.LocalTraining`, whose update is the difference of weights before
            and after, divided by the learning rate; or `clients.UntoldTraining`, with an attack that guesses the rest
            (where that is the learning rate, the update is the plain difference). One gradient by default.
        batch_norm: how the client ran batch norm, as in `audit`.
        statistics: {layer: (mean, variance)} of the client's batch, where they were "sent"; the variance without
            correction, which is what batch norm divides by.
        seed: names every random stream.
        device: where the attack runs.
        dtype: float32 or float64.
    """
    setting = Setting(attack=attack, loss=loss, step=step, batch_norm=batch_norm, device=device, dtype=dtype)
    seen = see(model, Capture(update, shape, batch, labels, statistics), setting)
    return noticed(attack(seen.target, [seen.observation], seed=seed), [seen.observation])
