"""What becomes of updates under a defense on a certain model: stated, or measured on an image of the auditor's own."""

from dataclasses import replace

import torch

from dosimeter import clients, rng
from dosimeter.channel import Channel, Clip, Draws, Fact, Transforms
from dosimeter.defenses import Defense, Moment, parts
from dosimeter.defenses.probe import facts_of
from dosimeter.types import Secretive, Target


def channel_of(defense: Defense, target: Target, labels: torch.Tensor, seed: int) -> Channel:
    """All facts, in the order in which they come about.

    Args:
        target: the defended model as clients run it.
        labels: (B, ...) of the form that the loss takes.
    """
    found: list[Fact] = []
    if any(type(part).on_batch is not Defense.on_batch for part in parts(defense)):
        found.append(Transforms())
    found += dict.fromkeys(
        Draws(secret.scope, defense.reveals, any(p.requires_grad for p in layer.parameters()))
        for layer in target.model.modules()
        if isinstance(layer, Secretive)
        for secret in layer.secrets().values()
    )
    images = torch.rand(len(labels), *target.shape, generator=rng.stream(seed, "probe", "image")).to(target.mean)
    ran = replace(target, drawn=clients.draw_secrets(target, len(images), rng.stream(seed, "probe", "draws")))
    update = clients.gradient(ran, images, labels, rng.stream(seed, "probe", "order"))
    facts, measured = facts_of(defense, update, Moment(0, len(images), ran, images, labels), seed)
    bound = defense.clips()
    if bound is not None and not any(isinstance(fact, Clip) for fact in facts):
        found.append(Clip(bound))
    return Channel((*found, *facts), measured)
