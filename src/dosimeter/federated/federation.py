"""What server and clients agree on before the first round: model, data, protocol, defense and seed."""

import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter import fingerprint, theirs
from dosimeter.auditing.rehearsal import FEW, blank, check_loss, check_model, check_slopes, outputs
from dosimeter.data import Dataset, partition
from dosimeter.data.shares import Places
from dosimeter.defenses import Defense, Moment, NoDefense
from dosimeter.errors import ModelError, SettingError
from dosimeter.federated.protocol import Protocol
from dosimeter.rng import scoped
from dosimeter.types import Loss, Target

State = dict[str, Tensor]
"""{name: tensor} as in a module's state_dict: weights and running statistics."""

CACHED = 2**30
"""Bytes of images that are kept ready; larger data sets are prepared batch by batch."""


class Holding(NamedTuple):
    """A client's places in the training split."""

    train: Places
    validation: Places


class Batches(NamedTuple):
    """How a client's images are cut up in an epoch."""

    size: int
    many: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """All that is set. Whoever has the same values builds the same federation, in whatever process."""

    model: nn.Module = field(repr=False)
    """Without the defense's layers, with the weights that training begins from."""
    dataset: Dataset = field(repr=False)
    protocol: Protocol
    defense: Defense = NoDefense()
    seed: int = 0
    loss: Loss = F.cross_entropy
    code: str | None = None
    """The version of the program, where a part of it stands for all that this depends on."""

    @cached_property
    def template(self) -> nn.Module:
        """The model that clients train; copy it before it is run."""
        with scoped(self.seed, "defense", "model"):
            made = self.defense.trained(self._copied(), self.dataset.shape)
        check_model(made)
        check_defense(self.defense, self.target(made), self.protocol)
        return made

    @cached_property
    def private(self) -> frozenset[str]:
        """Names of weights that never leave a client."""
        return self.defense.private(self.template)

    @cached_property
    def holdings(self) -> list[Holding]:
        """Which client has which images."""
        protocol, labels = self.protocol, self.dataset.labels("train")
        parts = partition(labels, protocol.clients, alpha=protocol.alpha, seed=self.seed)
        kept = [int(len(part) * protocol.validation) for part in parts]
        held = [Holding(part[count:], part[:count]) for part, count in zip(parts, kept, strict=True)]
        if protocol.validation and not any(kept):
            raise SettingError(
                f"A validation share of {protocol.validation} leaves no client an image to validate with; raise it."
            )
        return held

    @cached_property
    def batches(self) -> list[Batches]:
        """Every client's. A last batch of one image is left out where the model cannot train on it."""
        found = []
        for held in self.holdings:
            size = min(self.protocol.batch_size, len(held.train))
            whole, rest = divmod(len(held.train), size)
            if 1 in (size, rest) and not self.alone:
                found.append(Batches(size, whole if size > 1 else 0))
            else:
                found.append(Batches(size, whole + bool(rest)))
        if not any(each.many for each in found):
            raise SettingError(
                "Expected batches of 2 images or more, of which the model's batch norm has a variance, got ones of 1; "
                "raise the batch size or have fewer clients."
            )
        return found

    @cached_property
    def left_out(self) -> int:
        """Images that are in no batch of an epoch."""
        return sum(
            max(0, len(held.train) - size * many)
            for held, (size, many) in zip(self.holdings, self.batches, strict=True)
        )

    @cached_property
    def alone(self) -> bool:
        """Whether the model trains on one image, of which batch norm may see a single value a channel."""
        model = copy.deepcopy(self.template).train()
        with scoped(self.seed, "alone"), torch.no_grad():
            try:
                model(torch.zeros(1, *self.dataset.shape))
            except ValueError:
                return False
        return True

    @cached_property
    def keyed(self) -> bool:
        """Whether clients have secrets that they keep for good, such as a key."""
        return any(secret.scope == "client" for secret in self.target(self.template).secrets.values())

    @property
    def own(self) -> bool:
        """Whether the model does for every client as that client's weights or key have it."""
        return bool(self.private) or self.keyed

    @cached_property
    def made(self) -> dict[str, Any]:
        """All that makes two trainings the same, as plain values that people can read."""
        return {
            "protocol": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.protocol).items()},
            "defense": fingerprint.named(self.defense),
            "data": f"{self.dataset.name} {self.dataset.fingerprint}",
            "model": fingerprint.named(self.model),
            "loss": fingerprint.named(self.loss),
            "seed": self.seed,
            "code": self.code or fingerprint.code(),
        }

    def check(self) -> None:
        """Refuse what cannot be trained."""
        _ = self.template, self.private, self.batches
        self._rehearse()

    def _copied(self) -> nn.Module:
        check_model(self.model)
        with theirs.running("The model cannot be copied", ModelError):
            return copy.deepcopy(self.model)

    def _rehearse(self) -> None:
        """Refuse a model or a loss that cannot take a step on two of the images."""
        both = (self.dataset.train_labels, self.dataset.test_labels)
        labels, highest = (
            self.labels("train", np.arange(FEW)[: len(both[0])]),
            max(int(e.max()) for e in both if len(e)),
        )
        model, usual = copy.deepcopy(self.template).train(), self.loss is F.cross_entropy
        with scoped(self.seed, "rehearsal"):
            output = outputs(model, blank(self.dataset.shape, len(labels), torch.zeros(0)))
            check_slopes(model, check_loss(self.loss, output, labels, classification=usual, highest=highest))

    def prepare(self) -> None:
        """Compute once what threads would otherwise compute at the same time."""
        self.check()
        _ = self._ready

    def initial_private(self) -> State:
        """The private weights as the server made them."""
        return {name: tensor for name, tensor in self.initial().items() if name in self.private}

    def initial(self) -> State:
        """The server's weights before the first round, the private ones among them, which clients begin with."""
        return {name: tensor.detach().clone() for name, tensor in self.template.state_dict().items()}

    def images(self, split: str, places: Places) -> Tensor:
        """(n, C, H, W) in [0, 1]"""
        ready = self._ready.get(split)
        return self.dataset.images(split, places) if ready is None else ready[torch.from_numpy(places)]

    def labels(self, split: str, places: Places) -> Tensor:
        return torch.from_numpy(self.dataset.labels(split)[places])

    @cached_property
    def _ready(self) -> dict[str, Tensor | None]:
        bytes_each = 4 * int(np.prod(self.dataset.shape))
        return {
            split: self.dataset.images(split, np.arange(count)) if count * bytes_each <= CACHED else None
            for split in ("train", "test")
            if (count := self.dataset.count(split))
        }

    def target(self, model: nn.Module) -> Target:
        """The task with this model, which is trained as it is and not copied."""
        channels = self.dataset.shape[0]
        return Target(model, self.loss, self.dataset.shape, torch.zeros(channels, 1, 1), torch.ones(channels, 1, 1))


def check_defense(defense: Defense, target: Target, protocol: Protocol) -> None:
    """Refuse a defense that clips examples where there are none, or that needs a batch where an update is perturbed."""
    mixing = next((name for name, m in target.model.named_modules() if isinstance(m, _BatchNorm)), None)
    if clips_examples(defense) is not None and mixing is not None:
        raise SettingError(
            f"The defense clips every image's own gradient, but batch norm ({mixing!r}) mixes the images of a batch; "
            "use group norm instead, for instance --model resnet18-gn."
        )
    if protocol.perturbed == "update":
        target = replace(target, model=copy.deepcopy(target.model))  # which the defense may run
        private = defense.private(target.model)
        change = {name: torch.zeros_like(p) for name, p in target.parameters.items() if name not in private}
        try:
            defense.on_gradient(change, Moment(target=target), torch.Generator().manual_seed(0))
        except SettingError as reason:
            raise SettingError(
                "Expected a defense that acts on a change of weights alone (perturbed=update), got one that does not: "
                f"{str(reason).partition(';')[0].rstrip('.')}; use perturbed=steps."
            ) from None


def clips_examples(defense: Defense) -> float | None:
    """The norm that training clips every example's gradient to; one that starts from the examples clips itself."""
    return None if defense.recomputes else defense.clips()
