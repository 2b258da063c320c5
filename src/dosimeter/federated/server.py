"""What the server does in a round: choose clients, average what they send, test the result."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dosimeter import clients, defenses
from dosimeter.data.shares import Places
from dosimeter.errors import UpdateError
from dosimeter.federated.client import client_secrets, set_secrets
from dosimeter.federated.federation import Federation, State
from dosimeter.rng import numpy_stream, stream

BATCH = 500
"""Images that are tested at once."""


class Score(NamedTuple):
    """How a model does on images."""

    loss: float
    accuracy: float


def chosen(federation: Federation, round_: int) -> list[int]:
    """The clients of a round, in the order of their numbers; one that has no batch to train on is never among them."""
    many, drawn = federation.protocol.taking_part(), np.arange(federation.protocol.clients)
    if many < len(drawn):
        drawn = numpy_stream(federation.seed, "clients", round_).permutation(drawn)
    return sorted([client for client in drawn.tolist() if federation.batches[client].many][:many])


def counted(federation: Federation, rounds: int) -> list[int]:
    """Whose figures count after so many rounds: everybody's, but under keys of their own only theirs who trained."""
    everybody = list(range(federation.protocol.clients))
    if not federation.own:
        return everybody
    return sorted({client for round_ in range(rounds) for client in chosen(federation, round_)}) or everybody


def average(sent: Sequence[State], examples: Sequence[int]) -> State:
    """The mean of what clients sent, weighted by their images; counters, which are no floats, as the first has them."""
    if not sent:
        raise UpdateError("No client sent an update in this round, so there is nothing to average.")
    shares = torch.tensor(examples, dtype=torch.float64)
    shares = shares / shares.sum()
    return {
        name: _mean([state[name] for state in sent], shares) if first.is_floating_point() else first.clone()
        for name, first in sent[0].items()
    }


def _mean(tensors: Sequence[Tensor], shares: Tensor) -> Tensor:
    """Summed in float64, so that the order of clients does not show."""
    total = torch.zeros(tensors[0].shape, dtype=torch.float64)
    for tensor, share in zip(tensors, shares.tolist(), strict=True):
        total += share * tensor.double()
    return total.to(tensors[0].dtype)


def evaluate(federation: Federation, state: State, client: int | None = None, private: State | None = None) -> Score:
    """Loss and accuracy on the test split; under a client's own key and private weights where it has such.

    Args:
        client: whose key is used; without one a key of nobody's, drawn at random.
    """
    return _score(federation, state, "test", np.arange(federation.dataset.count("test")), client, private)


def validate(federation: Federation, state: State, client: int, private: State | None = None) -> Score | None:
    """The same on the images that a client keeps for it; None where it has none."""
    places = federation.holdings[client].validation
    return _score(federation, state, "train", places, client, private) if len(places) else None


def _score(
    federation: Federation, state: State, split: str, places: Places, client: int | None, private: State | None
) -> Score:
    model = copy.deepcopy(federation.template)
    model.load_state_dict({**state, **(private or {})})
    model = defenses.for_use(model).eval()
    target = federation.target(model)
    fixed = client_secrets(federation, target, -1 if client is None else client)
    set_secrets(model, fixed)
    rng = stream(federation.seed, "test", "secrets")
    loss, hits = 0.0, 0.0
    with torch.inference_mode():
        for part in np.array_split(places, max(1, -(-len(places) // BATCH))):
            images, labels = federation.images(split, part), federation.labels(split, part)
            set_secrets(model, clients.scoped_draws(target, federation.defense, len(part), rng, "image"))
            output = model(images)
            loss += float(federation.loss(output, labels)) * len(part)
            hits += _hits(output, labels)
    return Score(loss / len(places), hits / len(places))


def _hits(output: Tensor, labels: Tensor) -> float:
    """Right answers; none where labels are no classes."""
    return float((output.argmax(1) == labels).sum()) if labels.ndim == 1 and not labels.is_floating_point() else 0.0
