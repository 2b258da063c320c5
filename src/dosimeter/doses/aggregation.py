"""Secure aggregation: the server sees the mean of n clients' updates and none of them alone.

What the others sent is one of two things to who reads the mean, and a dose says which:

- images: further unknown images, by the same prior, each client with as many as the victim. One Jacobian of all of
  them, [J_1 ... J_n] / n, and a Schur complement. The reader is told the slopes at the others' images and their labels,
  so this is from above; its matrices grow with n.
- noise: Gaussian noise of covariance (n - 1) C, C that of updates of public images, added to n times what each client
  adds itself (of the sum, which tells the same as the mean):

      M = J^T (D + (n - 1) C)^-1 J      by Woodbury, from J^T g of every public update g

  C has the rank of so many updates at most, so more of them hide more. Of all noise with that covariance Gaussian noise
  tells least, so a reader who knows more of the others' updates sees more.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp, vmap

from dosimeter import checks, clients, rng
from dosimeter.auditing.case import Client
from dosimeter.auditing.observe import like
from dosimeter.channel import Channel, Clip, Draws, Mask, Rounding
from dosimeter.doses.channels import survivors
from dosimeter.doses.others import Others
from dosimeter.doses.slopes import Network
from dosimeter.errors import SettingError
from dosimeter.types import Gradient, Step, Target, Victims

UPDATES = 1000
"""Public updates whose covariance is taken."""
ROWS = 64
"""Backward derivatives at a time."""
HELD = 20
"""Bytes of a number of a public update while covariances are made: in double precision twice, in single once."""

Picture = Literal["images", "noise"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Aggregation:
    """The mean over n clients, the victim and others that hold public images (m, C, H, W) with labels (m, ...)."""

    clients: int
    images: Tensor
    labels: Tensor
    others: Picture = "images"
    updates: int = UPDATES

    def __post_init__(self) -> None:
        checks.count("Secure aggregation", "clients", self.clients)
        checks.count("Secure aggregation", "public updates", self.updates)

    @property
    def joint(self) -> bool:
        """Whether the images of all clients are unknowns."""
        return self.others == "images" and self.clients > 1

    def gathered(self, victims: Victims) -> Victims:
        """Every victim with the images of all others behind its own, where these are unknowns."""
        if not self.joint:
            return victims
        more = (self.clients - 1) * victims.batch
        _enough(self.images, more, f"{self.clients} clients of {victims.batch}")
        many = len(victims.ids)
        images = self.images[:more].to(victims.images).expand(many, -1, -1, -1, -1)
        labels = self.labels[:more].to(victims.labels)
        labels = labels.expand(many, *labels.shape)
        indices = torch.full((many, more), -1, dtype=victims.indices.dtype)
        return victims._replace(
            images=torch.cat([victims.images, images], 1),
            labels=torch.cat([victims.labels, labels], 1),
            indices=torch.cat([victims.indices, indices], 1),
        )

    def words(self, batch: int) -> tuple[str, ...]:
        """What is supposed, for a report."""
        if self.clients == 1:
            return ()
        if self.joint:
            said = "their images are unknown too, by the same prior, and their labels and slopes known: from above"
        else:
            said = (
                f"their updates are Gaussian noise with the covariance of {self.many(batch):,} public updates, which "
            )
            said += "hides so many directions at most; who knows more of them than that reads more"
        return (f"the server sees the mean of {self.clients:,} clients; of the others, {said}",)

    def many(self, batch: int) -> int:
        """Public updates that there are."""
        return min(self.updates, len(self.images) // batch)


def check(channel: Channel, aggregation: Aggregation) -> None:
    """Refuse what the mean of several clients makes of a channel that is no longer linear."""
    if aggregation.clients == 1:
        return
    for fact in channel.facts:
        drawn = isinstance(fact, Mask) and fact.by == "random"
        if drawn:
            _refuse("masks that each client draws are mixed with what others send")
        if not aggregation.joint:
            continue
        if isinstance(fact, Mask) or (isinstance(fact, Rounding) and fact.relative):
            _refuse("every client has entries of its own that survive, or steps of its own; use --others noise")
        if isinstance(fact, Clip) and fact.of != "example":
            _refuse("every client clips its own update; use --others noise")
        if isinstance(fact, Draws) and fact.scope == "client":
            _refuse("every client keeps a key of its own; use --others noise")


def _refuse(why: str) -> None:
    raise SettingError(f"The dose of secure aggregation does not describe this defense, since {why}.")


@dataclass(frozen=True, kw_only=True)
class MeanOfClients:
    """What a server sees of clients of one batch each, as one step on all of their images."""

    clients: int
    step: Step | None

    def __call__(self, target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
        total: Gradient = {}
        size = len(images) // self.clients
        for start in range(0, len(images), size):
            own = slice(start, start + size)
            drawn = {name: u[own] if target.secrets[name].scope == "image" else u for name, u in target.drawn.items()}
            inner = replace(target, step=self.step, drawn=drawn)
            update = _update(inner, parameters, images[own], labels[own])
            total = {name: g / self.clients + total.get(name, 0.0) for name, g in update.items()}
        return total


def _update(target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
    if target.step is not None:
        return target.step(target, parameters, images, labels)
    slopes: Gradient = torch.func.grad(target.objective)(parameters, images, labels)
    return slopes


def stepped(target: Target, clients_: int, victims: Victims, drawn: Mapping[str, Tensor]) -> Target:
    """The target of all clients at once: its own step where that takes the mean of images, else the mean of steps."""
    images, labels = victims.images[0].to(target.mean), like(victims.labels[0], target)
    mean, own = MeanOfClients(clients=clients_, step=target.step), replace(target, drawn=dict(drawn))
    parameters = target.parameters
    plain, apart = _update(own, parameters, images, labels), mean(own, parameters, images, labels)
    off = sum(float((g - apart[name]).square().sum()) for name, g in plain.items())
    whole = sum(float(g.square().sum()) for g in apart.values())
    return target if off <= 1e-16 * whole else replace(target, step=mean)


class Public(NamedTuple):
    """Updates of public images as clients send them, but for their noise, around their mean."""

    gradients: dict[str, Tensor]  # (m, entries) in single precision
    grams: dict[str, Tensor]  # (m, m)

    @property
    def many(self) -> int:
        return len(next(iter(self.grams.values())))


def public_updates(client: Client, channel: Channel, aggregation: Aggregation, batch: int, budget: int) -> Public:
    """Of so many updates as there are images for, each by a client with draws of its own, within a budget of bytes."""
    many = aggregation.many(batch)
    _enough(aggregation.images, 2 * batch, "a covariance of updates")
    _fits(many, sum(p.numel() for p in client.target.parameters.values()), budget)
    found: dict[str, list[Tensor]] = {}
    target, defense = client.target, client.defense
    for at in range(many):
        own = slice(at * batch, (at + 1) * batch)
        streams = [rng.stream(client.seed, purpose, f"others {at}") for purpose in ("client", "secrets")]
        drawn = clients.client_draws(target, defense, streams[0])
        drawn = {**drawn, **clients.scoped_draws(target, defense, batch, streams[1], "image")}
        labels = like(aggregation.labels[own], target)
        update = _update(
            replace(target, drawn=dict(drawn)), target.parameters, aggregation.images[own].to(target.mean), labels
        )
        for name, g in _sent(update, channel).items():
            found.setdefault(name, []).append(g.detach().flatten())
    gradients, grams = {}, {}
    for name in list(found):
        rows = torch.stack(found.pop(name))  # one tensor's at a time are held twice
        rows -= rows.mean(0)
        gradients[name], grams[name] = rows.float(), rows @ rows.T
    return Public(gradients, grams)


def _fits(many: int, numbers: int, budget: int) -> None:
    """Refuse more public updates than memory is allowed for."""
    if HELD * many * numbers > budget:
        raise SettingError(
            f"{many:,} public updates of {numbers:,} numbers take {HELD * many * numbers / 2**30:.1f} GiB; allow more "
            f"memory (--budget) or take fewer (--others noise:updates={max(2, budget // (HELD * numbers))})."
        )


def _sent(update: Gradient, channel: Channel) -> Gradient:
    """Behind clipping and masks by size, in the order of the facts."""
    for fact in channel.facts:
        if isinstance(fact, Clip):
            whole = math.sqrt(sum(float(g.square().sum()) for g in update.values()))
            norms = {name: float(g.norm()) if fact.of == "tensor" else whole for name, g in update.items()}
            update = {name: g * min(1.0, fact.bound / max(norms[name], 1e-300)) for name, g in update.items()}
        elif isinstance(fact, Mask):
            update = {
                name: g * survivors(g, fact.rate) if fact.on is None or name in fact.on else g
                for name, g in update.items()
            }
    return update


def others_of(network: Network, public: Public, kept: Gradient, n: int) -> Others:
    """By backward derivatives of one victim's update along the public ones."""
    pulls, dots = {}, {}
    for name, rows in public.gradients.items():
        own = network.gradient[name]

        def update(point: dict[str, Tensor], name: str = name) -> Tensor:
            return network.update(point)[name]

        pull: Callable[[Tensor], tuple[dict[str, Tensor]]] = vjp(update, network.point)[1]
        mask = kept.get(name)
        found = []
        for some in torch.split(rows, ROWS):
            along = some.to(own) if mask is None else some.to(own) * mask.flatten()
            found.append(network.layout.flat(vmap(pull)(along.reshape(-1, *own.shape))[0]))
        pulls[name], dots[name] = torch.cat(found).T.contiguous(), rows.to(own) @ own.flatten()
    return Others((n - 1) / (public.many - 1), public.grams, pulls, dots)


def _enough(images: Tensor, needed: int, what: str) -> None:
    if len(images) < needed:
        raise SettingError(
            f"Secure aggregation needs {needed:,} public images for {what}, got {len(images):,}; give more of them."
        )
