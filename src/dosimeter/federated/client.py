"""What one client does in a round. A pure function of the federation, the server's weights, client and round, so that
it gives the same in a thread of this process and in a process of Flower's."""

import copy
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import clients, defenses
from dosimeter.data.shares import Places
from dosimeter.defenses import Defense, Moment, changes_gradient
from dosimeter.errors import SettingError
from dosimeter.federated.federation import Federation, State, clips_examples
from dosimeter.federated.protocol import Protocol
from dosimeter.rng import numpy_stream, stream
from dosimeter.types import Gradient, Secrets, Target


class Fit(NamedTuple):
    """What a client has after its round. Only `sent` leaves it."""

    sent: State  # its weights and statistics but the private ones, after the defense
    private: State
    examples: int
    steps: int
    loss: float  # the mean over its batches
    optimiser: State  # its optimiser's, where that goes on in the next round


def fit(
    federation: Federation, state: State, client: int, round_: int, private: State | None = None,
    optimiser: State | None = None, *, stop: threading.Event | None = None,
) -> Fit:  # fmt: skip
    """Train from the server's weights on the client's own images.

    Args:
        state: the server's weights; private ones among them are those the client begins with in its first round.
        private: the client's own from its last round, where it had one.
        optimiser: the state that its optimiser goes on from, where it does by the protocol.
        stop: ends it before its next step, as Ctrl-C does.
    """
    protocol = federation.protocol
    model = copy.deepcopy(federation.template)
    model.load_state_dict({**state, **(private or {})})
    model.train()
    rule = make_optimiser(protocol, model, round_)
    if optimiser:
        _resume(rule, optimiser)
    trainer = _Trainer(federation, model, client, round_)
    total, steps = 0.0, 0
    for places in _batches(federation, client, round_):
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        total += trainer.step(rule, places, steps)
        steps += 1
    after = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    sent = {name: tensor for name, tensor in after.items() if name not in federation.private}
    if protocol.perturbed == "update":
        sent = trainer.perturbed(state, sent)
    own = {name: tensor for name, tensor in after.items() if name in federation.private}
    kept = _kept(rule) if protocol.central or protocol.goes_on else {}
    return Fit(sent, own, len(federation.holdings[client].train), steps, total / max(1, steps), kept)


class _Trainer:
    """A client's steps: its batch, its draws, its gradient, each as the defense would have it."""

    def __init__(self, federation: Federation, model: nn.Module, client: int, round_: int) -> None:
        self.federation, self.model = federation, model
        self.target = federation.target(model)
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._where = (str(client), f"round {round_}")
        self._round = round_
        self._draws = stream(federation.seed, "training", "secrets", *self._where)
        self._noise = stream(federation.seed, "training", "defense", *self._where)
        changed = changes_batches(federation.defense)
        self._batch = stream(federation.seed, "training", "batch", *self._where) if changed else None
        self._bound = clips_examples(federation.defense)
        self._changes = federation.protocol.perturbed == "steps" and changes_gradient(federation.defense)
        self._fixed = client_secrets(federation, self.target, client)
        self._secrets = {k: s for k, s in self.target.secrets.items() if k not in self._fixed}
        buffers = dict(model.named_buffers())
        self._blank = {name: buffers[name] for name in self._secrets}
        set_secrets(model, self._fixed)

    def step(self, rule: torch.optim.Optimizer, places: Places, number: int) -> float:
        """One step on the images at these places; the loss before it."""
        federation, defense = self.federation, self.federation.defense
        images, labels = federation.images("train", places), federation.labels("train", places)
        if federation.protocol.augment:
            images = augmented(images, numpy_stream(federation.seed, "augment", *self._where, number))
        streams = clients.Streams(self._draws, self._noise, self._batch)
        rule.zero_grad()
        made = clients.take_step(
            self.target, defense, images, labels, streams,
            fixed=self._fixed, round_=self._round, slopes=self._slopes, perturb=self._changes,
        )  # fmt: skip
        for name, slope in made.update.items():
            self._parameters[name].grad = slope.to(self._parameters[name])
        rule.step()
        return self._loss

    def _slopes(self, ran: Target, images: Tensor, labels: Tensor, _: object) -> Gradient:
        """The gradient of the model that trains, with its batch norms noting what they see."""
        drawn = {name: ran.drawn[name] for name in self._secrets}
        set_secrets(self.model, drawn)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.federation.protocol.precision == "bfloat16"):
            output = self.model(images)
        output = output.to(images) if isinstance(output, Tensor) else output
        if self._batch is not None:
            _check_labels(labels, output)
        loss = self.federation.loss(output, labels)
        if self._secrets or self._fixed:
            extra = self.target.penalty(self.model)
            loss = loss if extra is None else loss + extra.mean()
        self._loss = float(loss.detach())
        if self._bound is None:
            torch.autograd.backward(loss)
        else:
            clipped = clients.ClippedGradient(bound=self._bound)(ran, ran.parameters, images, labels)
            for name, parameter in self._parameters.items():
                parameter.grad = clipped[name]
        if self._changes:
            set_secrets(self.model, self._blank)  # whoever runs the model again gives it draws, or none
        shared = {name: p.grad for name, p in self._parameters.items() if name not in self.federation.private}
        return {name: grad for name, grad in shared.items() if grad is not None}

    def perturbed(self, before: State, after: State) -> State:
        """The weights that are sent when the defense acts on their change."""
        set_secrets(self.model, self._blank)
        change = {name: before[name] - tensor for name, tensor in after.items() if name in self._parameters}
        sent = self.federation.defense.on_gradient(change, Moment(self._round, 1, self.target), self._noise)
        return {name: before[name] - sent[name] if name in sent else tensor for name, tensor in after.items()}


def client_secrets(federation: Federation, target: Target, client: int) -> Secrets:
    """What a client drew before its first round and keeps, such as FedKL's key."""
    return clients.client_draws(target, federation.defense, stream(federation.seed, "client", f"client {client}"))


def set_secrets(model: nn.Module, drawn: Secrets) -> None:
    """Put draws into the buffers that the model's layers read."""
    for name, value in drawn.items():
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, value)


def changes_batches(defense: Defense) -> bool:
    return any(type(part).on_batch is not Defense.on_batch for part in defenses.parts(defense))


def _check_labels(labels: Tensor, output: object) -> None:
    """Refuse classes that a defense made and the model does not have."""
    classes = not labels.is_floating_point() and isinstance(output, Tensor) and output.ndim == 2
    if classes and len(labels) and int(labels.max()) >= output.shape[1]:  # type: ignore[attr-defined]
        raise SettingError(
            f"The defense makes the label {int(labels.max())} of a batch, expected one of the model's "
            f"{output.shape[1]} classes."  # type: ignore[attr-defined]
        )


def augmented(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Every image mirrored with probability 1/2 and shifted by up to an eighth of its side, with zeros around it."""
    n, _, height, width = images.shape
    pad = max(1, height // 8)
    wide = F.pad(images, (pad,) * 4)
    flips, tops, lefts = rng.random(n) < 0.5, rng.integers(0, 2 * pad + 1, n), rng.integers(0, 2 * pad + 1, n)
    rows = [
        wide[i, :, top : top + height, left : left + width].flip(-1) if flip else
        wide[i, :, top : top + height, left : left + width]
        for i, (flip, top, left) in enumerate(zip(flips, tops, lefts, strict=True))
    ]  # fmt: skip
    return torch.stack(rows)


def _batches(federation: Federation, client: int, round_: int) -> Iterator[Places]:
    """The places of every local batch of a round, in an order drawn for every epoch."""
    protocol, held = federation.protocol, federation.holdings[client].train
    size, many = federation.batches[client]
    if not many:
        return

    def epoch(number: int) -> list[Places]:
        order = held[numpy_stream(federation.seed, "order", client, number).permutation(len(held))]
        return [order[at * size : (at + 1) * size] for at in range(many)]

    if protocol.epochs is not None:
        for number in range(round_ * protocol.epochs, (round_ + 1) * protocol.epochs):
            yield from epoch(number)
        return
    assert protocol.steps is not None
    first = round_ * protocol.steps  # as if it had taken part in all rounds before
    current, parts = -1, []
    for step in range(first, first + protocol.steps):
        number, place = divmod(step, many)
        if number != current:
            current, parts = number, epoch(number)
        yield parts[place]


def make_optimiser(protocol: Protocol, model: nn.Module, round_: int) -> torch.optim.Optimizer:
    """The optimiser that a client trains with in a round."""
    weights = [p for p in model.parameters() if p.requires_grad]
    lr = protocol.rate(round_)
    if protocol.optimiser == "adam":
        return torch.optim.Adam(weights, lr=lr, weight_decay=protocol.weight_decay)
    return torch.optim.SGD(
        weights, lr=lr, momentum=protocol.momentum, nesterov=protocol.nesterov, weight_decay=protocol.weight_decay
    )


def _kept(rule: torch.optim.Optimizer) -> State:
    """The state of an optimiser as tensors by name."""
    return {
        f"{at}.{key}": torch.as_tensor(value).detach().clone()
        for at, values in rule.state_dict()["state"].items()
        for key, value in values.items()
        if value is not None
    }


def _resume(rule: torch.optim.Optimizer, kept: State) -> None:
    whole = rule.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in kept.items():
        at, _, key = name.partition(".")
        state.setdefault(int(at), {})[key] = value.clone()
    rule.load_state_dict({**whole, "state": state})
