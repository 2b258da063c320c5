"""What a server sees of its clients' steps, and what clients trained on to make it."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dosimeter import clients, rng, trees
from dosimeter.auditing.case import Client
from dosimeter.types import (
    UNTOLD,
    Ended,
    Gradient,
    Observation,
    Outcome,
    Reconstruction,
    Secrets,
    Statistics,
    Target,
    ThreatModel,
    Victims,
)


def observe(client: Client, victims: Victims, threat: ThreatModel) -> list[Observation]:
    """One observation a round, in which clients take the same step on the same batch and draw anew."""
    return [_observe(client, victims, threat, at) for at in range(client.updates.rounds)]


def trained_on(client: Client, victims: Victims) -> Tensor:
    """(V, B, C, H, W) the images that clients trained on in the first round, where a defense changes them."""
    images = victims.images.clone()
    for at, name in enumerate(victims.ids):
        stream = rng.stream(client.seed, "batch", name)
        images[at] = client.defense.on_batch(victims.images[at], victims.labels[at], stream)[0]
    return images


def changed(client: Client, images: Tensor, victims: Victims) -> Tensor:
    """Other images (m, C, H, W) as clients would have trained on them, in batches of the victims' size."""
    made = []
    for at, batch in enumerate(torch.split(images, victims.batch)):
        labels = torch.zeros_like(victims.labels[0, : len(batch)])
        made.append(client.defense.on_batch(batch, labels, rng.stream(client.seed, "batch", "decoys", at))[0])
    return torch.cat(made)


def like(labels: Tensor, target: Target) -> Tensor:
    """Labels on the target's device; targets that are not classes also in its precision."""
    return labels.to(target.mean) if labels.is_floating_point() else labels.to(target.mean.device)


def noticed(found: Reconstruction, seen: Sequence[Observation]) -> Reconstruction:
    """What was found, with victims marked of whom it says nothing: their update is 0, or their images are not finite.

    Labels that were not granted are not told by an update that is 0.
    """
    parts = [g.flatten(1).any(1) for each in seen for g in each.gradient.values()]
    zero = ~torch.stack(parts).any(0)  # (V,)
    lost = ~found.images.isfinite().flatten(1).all(1)
    stopped = list(found.stopped)
    for v, outcome in enumerate(found.outcomes):
        if outcome is not Outcome.INTERRUPTED and (zero[v] or lost[v]):
            stopped[v] = Ended(Outcome.ZERO_UPDATE if zero[v] else Outcome.DIVERGED)
    labels = found.labels
    if labels is not None and seen[0].labels is None:
        labels = torch.where(zero.to(labels.device)[:, None], UNTOLD, labels)
    return found._replace(stopped=tuple(stopped), labels=labels)


def clean(client: Client, victims: Victims, threat: ThreatModel) -> list[Observation]:
    """What the server would see of the same steps, with the same draws, if no defense acted on the updates."""
    return [_observe(client, victims, threat, at, clean=True) for at in range(client.updates.rounds)]


def _observe(client: Client, victims: Victims, threat: ThreatModel, at: int, *, clean: bool = False) -> Observation:
    statistics: list[Statistics] = []
    secrets: list[Secrets] = []
    again = (f"round {at}",) if at else ()  # the first round's streams have no number
    target, defense, step, seed = client.target, client.defense, client.target.step, client.seed
    senders = tuple(victims.ids[v - v % client.updates.same_client] for v in range(len(victims.ids)))

    def updates() -> Iterator[Gradient]:
        for v, name in enumerate(victims.ids):
            streams = clients.Streams(
                **{
                    purpose: rng.stream(seed, purpose, name, *again)
                    for purpose in ("secrets", "defense", "batch", "order")
                }
            )
            fixed = clients.client_draws(target, defense, rng.stream(seed, "client", senders[v]))
            labels = like(victims.labels[v], target)
            made = clients.take_step(
                target,
                defense,
                victims.images[v],
                labels,
                streams,
                fixed=fixed,
                round_=at,
                perturb=not clean,
            )
            if threat.statistics == "sent":
                statistics.append(clients.statistics(target, made.images))
            secrets.append(made.drawn)
            sent = made.update
            trees.check_update(sent, target.parameters)
            if isinstance(step, clients.LocalTraining) and not threat.local_lr:
                sent = {key: step.lr * g for key, g in sent.items()}  # the plain difference of weights
            yield sent

    gradient = trees.stack(updates(), len(victims.ids))
    labels_seen = like(victims.labels, target) if threat.labels else None
    along = trees.stack_pairs(statistics) if statistics else None
    revealed = trees.stack(secrets) if threat.secrets else None
    return Observation(gradient, victims.batch, victims.ids, labels_seen, along, revealed, senders)
