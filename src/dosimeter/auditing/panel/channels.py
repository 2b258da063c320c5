"""What becomes of updates under a defense on a certain model: stated, or measured on an image of the auditor's own."""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import torch

from dosimeter import clients, rng, trees
from dosimeter.channel import Channel, Clip, Draws, Fact, Mask, Noise, Rounding, Transforms
from dosimeter.defenses import Chain, Defense, Moment, parts
from dosimeter.defenses.probe import facts_of
from dosimeter.types import Secretive, Target


def channel_of(defense: Defense, target: Target, labels: torch.Tensor, seed: int) -> Channel:
    """All facts, in the order in which they come about.

    Args:
        target: the defended model as clients run it.
        labels: (B, ...) of the form that the loss takes.
    """
    found: list[Fact] = []
    if changing := tuple(part for part in parts(defense) if type(part).on_batch is not Defense.on_batch):
        by = changing[0] if len(changing) == 1 else Chain(parts=changing)
        found.append(Transforms(by if by.changes(target.shape) else None))
    found += dict.fromkeys(
        Draws(secret.scope, defense.reveals, any(p.requires_grad for p in layer.parameters()))
        for layer in target.model.modules()
        if isinstance(layer, Secretive)
        for secret in layer.secrets().values()
    )
    images = torch.rand(len(labels), *target.shape, generator=rng.stream(seed, "probe", "image")).to(target.mean)
    ran = replace(target, drawn=clients.draw_secrets(target, len(images), rng.stream(seed, "probe", "draws")))
    update = clients.gradient(ran, images, labels, rng.stream(seed, "probe", "order"))
    trees.check_update(update, update)  # noise that is measured on NaN would seem to hide everything
    facts, measured = facts_of(defense, update, Moment(0, len(images), ran, images, labels), seed)
    bound = defense.clips()
    if bound is not None and not any(isinstance(fact, Clip) for fact in facts):
        found.append(Clip(bound))
    step = target.step
    if isinstance(step, clients.LocalTraining) and step.perturbed == "steps":
        facts = _summed(facts, step.count(len(labels)))
    return Channel((*found, *facts), measured)


def _summed(facts: Sequence[Fact], steps: int) -> tuple[Fact, ...]:
    """What is left of facts about every local step in the sum of their moves: noise adds up, zeros and grids are gone.

    Of optimisers other than plain SGD the noise is of about that size.
    """
    kept = [fact for fact in facts if not isinstance(fact, Mask | Rounding)]
    return tuple(f._replace(scale=f.scale * sqrt(steps)) if isinstance(f, Noise) else f for f in kept)
