"""The key of a lock whose gradient is sent, read off exactly.

A lock is a fully connected layer of the key k alone, gamma = W k + b, so its gradient has rank one,

    dL/dW = (dL/dgamma) k^T      dL/db = dL/dgamma

and its weight's rows divided by its bias's entries are the key (Inverting Gradients, Prop. 1), however many images are
in the update. FedKL's "the reverse is not possible" (Sec. IV-E) does not hold.

Without a bias, gamma = W k, the right singular vector of dL/dW is the key up to a factor. Its sign is that of a key
from [0, 1); its size is known only from the largest of S uniform numbers, S / (S + 1) in expectation with a deviation
of about 1 / S. Gamma and beta are then right up to that one factor.

Steps of local training by SGD add up to rank one as well. With Adam or weight decay they do not, and what is found is
the key that fits best.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dosimeter.attacks.base import Around
from dosimeter.attacks.search import treatments
from dosimeter.attacks.search.search import Search
from dosimeter.errors import SettingError
from dosimeter.types import Gradient, Observation, Reconstruction, Target, ThreatModel, Watch


@runtime_checkable
class Keyed(Protocol):
    """A layer all of whose linear layers take the client's key."""

    def drawn_for(self, key: Tensor) -> dict[str, Tensor]:
        """{name of a buffer of this layer: the secret of a client with this key}"""
        ...


@dataclass(frozen=True, kw_only=True)
class RecoverKey(Around):
    """`attack` by somebody who first reads the key off the gradient of the lock; nothing has to be granted for it."""

    attack: Search

    @property
    def name(self) -> str:
        return f"{self.attack.name}, key recovered"

    def needs(self) -> ThreatModel:
        return replace(self.attack.needs(), secrets=False)

    def check(self, target: Target, batch: int) -> None:
        """Refuse models whose update holds no lock."""
        super().check(target, batch)
        _locks(target)

    def blind(self) -> Search:
        """Without the update there is no key to be read off."""
        return replace(self.attack.blind(), secrets=treatments.Mean())

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        known = seen._replace(secrets=recover(target, seen.gradient))
        return replace(self.attack, secrets=treatments.Known())(target, [known], seed=seed, watch=watch)


def recover(target: Target, gradient: Gradient) -> dict[str, Tensor]:
    """{buffer: (V, ...)} the secrets of every client whose update is in the gradient {name: (V, ...)}."""
    found: dict[str, Tensor] = {}
    for path, (layer, linear) in _locks(target).items():
        rows = torch.cat([gradient[f"{name}.weight"] for name in linear], 1).double()  # (V, R, S)
        biases = [gradient[f"{name}.bias"] for name in linear if f"{name}.bias" in gradient]
        biased = len(biases) == len(linear)
        key = key_of(rows, torch.cat(biases, 1).double()) if biased else key_by_rank_one(rows)
        for name, value in layer.drawn_for(key).items():
            found[f"{path}.{name}".removeprefix(".")] = value.to(target.mean)
    return found


def key_of(rows: Tensor, slopes: Tensor) -> Tensor:
    """(V, S) the k with rows (V, R, S) = slopes (V, R) k^T, all rows weighed by what they say of it.

    Where the slopes are all 0 the update says nothing of the key and its mean, 1/2, is returned.
    """
    size = slopes.square().sum(1, keepdim=True)
    key = torch.einsum("vr,vrs->vs", slopes, rows) / size
    return torch.where(size > 0, key, 0.5).clamp(0, 1)


def key_by_rank_one(rows: Tensor) -> Tensor:
    """(V, S) the key in [0, 1) with rows (V, R, S) = slopes k^T of slopes that are not known.

    The direction is exact. The scale is that at which the largest entry is S / (S + 1), what the largest of S uniform
    numbers is in expectation, so it is known to about 1 / S only. Where the rows are all 0 the mean, 1/2, is returned.
    """
    size = rows.shape[2]
    direction = torch.linalg.svd(rows, full_matrices=False).Vh[:, 0]  # (V, S)
    direction = direction * direction.sum(1, keepdim=True).sign()
    key = direction / direction.amax(1, keepdim=True) * size / (size + 1)
    return torch.where(rows.abs().amax((1, 2)).unsqueeze(1) > 0, key, 0.5).clamp(0, 1)


def _locks(target: Target) -> dict[str, tuple[Keyed, list[str]]]:
    """{path: a keyed layer whose gradients are in the update, and the names of its linear layers}"""
    sent = target.parameters
    found: dict[str, tuple[Keyed, list[str]]] = {}
    for path, layer in target.model.named_modules():
        parts = [name for name, part in layer.named_children() if isinstance(part, nn.Linear)]
        linear = [f"{path}.{name}".removeprefix(".") for name in parts]
        linear = [name for name in linear if f"{name}.weight" in sent]
        if linear and isinstance(layer, Keyed):
            found[path] = (layer, linear)
    if not found:
        raise SettingError(
            "A key is read off the gradient of its lock, and no client sends one here; use it with a defense that does "
            "(fedkl:share=lock) or search for what the key makes (secrets=joint)."
        )
    return found
