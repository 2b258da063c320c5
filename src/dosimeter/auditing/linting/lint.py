"""`lint`: what of a model leaks by its structure, in a second and without data."""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn

from dosimeter import checks, rng
from dosimeter.attacks import presets
from dosimeter.auditing.case import clipping, resolve
from dosimeter.auditing.linting import beside, images
from dosimeter.auditing.linting.findings import Leak, Level, Linted
from dosimeter.auditing.linting.layers import layer_ranks
from dosimeter.auditing.linting.subject import Subject
from dosimeter.auditing.panel.channels import channel_of
from dosimeter.auditing.setting import MOST_BATCH, Audit, Updates, part
from dosimeter.defenses import Defense
from dosimeter.errors import ModelError
from dosimeter.networks.remember import remembering
from dosimeter.types import BatchNorm, Shape, Step


def lint(
    model: nn.Module,
    shape: Shape,
    *,
    defense: Defense | str | None = None,
    batch: int = 1,
    step: Step | str | None = None,
    batch_norm: BatchNorm = "running",
    seed: int = 0,
) -> Linted:
    """What an update of this model gives away by the model's structure; nobody is attacked and no data is read.

    Images are taken to be classified under cross-entropy. An empty list of leaks is no pass: searches need none of
    what is looked for here.

    Args:
        model: any module that takes images (B, C, H, W) in [0, 1]; it is copied and run in evaluation mode.
        shape: (C, H, W) of the images.
        defense: what clients do to their updates; nothing by default.
        batch: images in every update.
        step: what clients send; one gradient by default.
        batch_norm: as in `Updates`.
        seed: of what a defense draws when it changes the model.
    """
    checks.count("Lint", "a batch", batch, most=MOST_BATCH)
    whole = Audit(
        model=model, attack=presets.inverting_gradients(), defense=part("defense", defense or "none"),
        step=part("step", step), seed=seed, updates=Updates(batch_norm=batch_norm),
    )  # fmt: skip
    try:
        with remembering():
            subject = _subject(clipping(whole), shape, batch)
            layers = tuple(layer_ranks(subject.trace))
            solved, refused = images.solved(subject)
            leaks = sorted((*solved, *_others(subject, solved)), key=lambda leak: -leak.level)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as reason:
        why = (str(reason) or type(reason).__name__).splitlines()[0]
        raise ModelError(f"The model cannot be traced: {why}; lint its plain module, or audit it.") from reason
    return Linted(leaks=tuple(leaks), layers=layers, channel=subject.channel.words(), refused=refused)


def _others(subject: Subject, solved: list[Leak]) -> Iterator[Leak]:
    """All but closed forms; where the image leaks as a whole, features of it say nothing more."""
    rules = [images.tampered, beside.labels, beside.keys, beside.shortcuts, beside.batch_norms]
    if not any(leak.level == Level.ERROR or leak.rule == "first-layer" for leak in solved):
        rules.insert(0, images.features)
    return chain.from_iterable(rule(subject) for rule in rules)


def _subject(audit: Audit, shape: Shape, batch: int) -> Subject:
    """The model as clients run it, checked as in an audit."""
    with rng.scoped(audit.seed, "defense", "model"):
        defended = audit.defense.on_model(audit.model, shape)
    labels = torch.zeros(batch, dtype=torch.long)
    client, attacker = resolve(audit, defended, shape, batch, labels=labels)
    channel = channel_of(audit.defense, client.target, labels, audit.seed)
    return Subject(client.target, channel, batch, attacker.threat.statistics)
