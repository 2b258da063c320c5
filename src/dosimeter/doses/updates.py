"""One client's update: the network at the truth, what each tensor tells, and what all of it tells of the images."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter import clients, rng, trees
from dosimeter.auditing.observe import like
from dosimeter.doses import algebra, channels
from dosimeter.doses.aggregation import others_of
from dosimeter.doses.case import Case
from dosimeter.doses.information import Part, information
from dosimeter.doses.priors import STD
from dosimeter.doses.result import SecretDose
from dosimeter.doses.slopes import IMAGES, Network
from dosimeter.types import Secrets, Victims

LIMIT = 1e12
"""Of the largest eigenvalue in units of the white prior: what is 1 beside it is still resolved in float64."""


class Update(NamedTuple):
    """One update's information on its images, draws eliminated, and what is needed to say more of it."""

    network: Network
    parts: dict[str, Part]
    how: channels.Seen
    matrix: Tensor  # (B n, B n)
    secrets: dict[str, SecretDose]


def measured_update(case: Case, victims: Victims, v: int) -> Update:
    """The information of all rounds of one update on its images."""
    first: Update | None = None
    total: Tensor | None = None
    for at in range(case.updates.rounds):
        network, parts, how = determining(case, victims, v, at)
        how, matrix = resolvable(network, parts, how)
        secrets = secrets_of(case, network, matrix, victims.batch) if first is None else {}
        kept = measured(network, matrix, lasting(case, network))
        total = kept if total is None else total + kept
        first = first or Update(network, parts, how, kept, secrets)
    assert first is not None
    assert total is not None
    images = torch.arange(first.network.point[IMAGES].numel())  # which come first
    left = algebra.eliminated(total, images, torch.ones(len(total) - len(images), dtype=total.dtype))
    return first._replace(matrix=left)


def resolvable(network: Network, parts: dict[str, Part], how: channels.Seen) -> tuple[channels.Seen, Tensor]:
    """How an update is seen, with as much noise as float64 can resolve where there is none, and its information."""
    # What other clients hide is a difference, of which all that it is taken from has to be resolved.
    matrix = channels.joined(parts, replace(how, others=None))
    scale = torch.ones(len(matrix), dtype=matrix.dtype)
    scale[network.layout.spans[IMAGES]] = STD
    peak = algebra.largest(scale[:, None] * matrix * scale)
    if peak > LIMIT:
        whole = len(how.plain) in (0, len(how.variance))  # then all of it gets louder alike
        how = channels.resolved(how, peak / LIMIT)
        matrix = matrix.mul_(LIMIT / peak) if whole and how.others is None else channels.joined(parts, how)
    elif how.others is not None:
        matrix = channels.joined(parts, how)
    return how, matrix


def lasting(case: Case, network: Network) -> tuple[str, ...]:
    """What a client drew for good, which is the same in all of its rounds."""
    secrets = case.client.target.secrets
    return tuple(name for name in network.point if name != IMAGES and secrets[name].scope == "client")


def determining(case: Case, victims: Victims, v: int, at: int = 0) -> tuple[Network, dict[str, Part], channels.Seen]:
    """One update of one round: the network at the truth, the information of each tensor, and how these are seen."""
    fixed = clients.client_draws(case.client.target, case.client.defense, _stream(case, victims, v, "client"))
    network = _network(case, victims, v, at, fixed)
    sent = {name: g.float() for name, g in network.gradient.items()}  # the dose is in float64, clients are not
    trees.check_update(sent, case.client.target.parameters)
    how = channels.seen(case.channel, network.gradient, batch=victims.batch)
    if case.public is not None:
        others = others_of(network, case.public, how.kept, case.clients)
        how = channels.among(how, others, case.clients)
    elif case.clients > 1:
        how = channels.mean_of(how, case.clients)
    return network, information(network, how.kept), how


def measured(network: Network, matrix: Tensor, kept: tuple[str, ...] = ()) -> Tensor:
    """(B n, B n) the information on images, and on draws that are kept, where others are unknown, standard normal."""
    spans = network.layout.spans
    images = torch.cat([torch.arange(len(matrix))[spans[name]] for name in (IMAGES, *kept)])
    return algebra.eliminated(matrix, images, torch.ones(len(matrix) - len(images), dtype=matrix.dtype))


def _stream(case: Case, victims: Victims, v: int, purpose: str, *again: str) -> torch.Generator:
    sender = v - v % case.updates.same_client if purpose == "client" else v
    return rng.stream(case.client.seed, purpose, victims.ids[sender], *again)


def _network(case: Case, victims: Victims, v: int, at: int, fixed: Secrets) -> Network:
    target, defense = case.client.target, case.client.defense
    stream = _stream(case, victims, v, "secrets", *((f"round {at}",) if at else ()))
    drawn = {**fixed, **clients.scoped_draws(target, defense, victims.batch, stream, "image")}
    unknown = () if defense.reveals else tuple(drawn)
    images = victims.images[v].to(target.mean)
    return Network(target, images, like(victims.labels[v], target), drawn, unknown)


def first_network(case: Case, victims: Victims, v: int) -> Network:
    fixed = clients.client_draws(case.client.target, case.client.defense, _stream(case, victims, v, "client"))
    return _network(case, victims, v, 0, fixed)


def secrets_of(case: Case, network: Network, matrix: Tensor, batch: int) -> dict[str, SecretDose]:
    """How much of what was drawn is determined, with images unknown."""
    spans = {name: span for name, span in network.layout.spans.items() if name != IMAGES}
    found = {}
    for name, span in spans.items():
        own = torch.arange(len(matrix))[span]
        others = algebra.blocks(
            *[case.known.precision] * batch,
            *(torch.eye(s.stop - s.start, dtype=matrix.dtype) for other, s in spans.items() if other != name),
        )
        left = algebra.eliminated(matrix, own, others)
        found[name] = SecretDose(len(own), algebra.above(left - torch.eye(len(own), dtype=matrix.dtype)))
    return found


def alone(case: Case, matrix: Tensor, b: int, batch: int) -> Tensor:
    """The information on one image of a batch, others unknown."""
    size = len(matrix) // batch
    if batch == 1:
        return matrix
    own = torch.arange(len(matrix))[b * size : (b + 1) * size]
    return algebra.eliminated(matrix, own, algebra.blocks(*[case.known.precision] * (batch - 1)))
