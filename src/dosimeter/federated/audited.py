"""A federation's model on its way through training, as audits take it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dosimeter import defenses
from dosimeter.defenses import Chain, Defense, Installed, KeyLock
from dosimeter.federated.client import client_secrets
from dosimeter.federated.federation import Federation, State
from dosimeter.federated.training import Training
from dosimeter.rng import scoped
from dosimeter.types import Secrets, Target


def as_audited(federation: Federation, at: Training) -> Defense:
    """The federation's defense for audits of its model as trained so far, which the defense brings along.

    Clients under FedKL audit with the key and the lock of the first client that trained one.
    """
    defense: Defense = federation.defense
    if at.private:
        client, own = min(at.private.items())
        defense = _with_locks(defense, client_secrets(federation, federation.target(federation.template), client), own)
    with scoped(federation.seed, "defense", "model"):
        # A copy, since a defense without layers gives back the very model that training begins from.
        model = copy.deepcopy(defense.on_model(federation.model, federation.dataset.shape))
    expected = model.state_dict()
    model.load_state_dict({name: tensor for name, tensor in at.state.items() if name in expected})
    return Installed(inner=defense, model=model.eval())


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kept(KeyLock):
    """FedKL whose clients all have the key and the trained lock of one."""

    keys: Mapping[str, Tensor]
    locks: Mapping[str, Tensor]

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets:
        drawn: dict[str, Tensor] = {}
        for name, hidden in self.keys.items():
            path = name.rpartition(".")[0]
            layer = target.model.get_submodule(path)
            both = [f"{path}.{part}" for part in ("scale", "shift")]
            weight = torch.cat([self.locks[f"{part}.weight"] for part in both]).double()
            none = torch.zeros(len(weight) // 2)
            bias = torch.cat([self.locks.get(f"{part}.bias", none) for part in both]).double()
            key = torch.special.ndtr(hidden.double())
            made = layer.made_of(weight, bias, key)  # type: ignore[operator]
            drawn |= {f"{path}.{what}": value.to(target.mean) for what, value in made.items()}
        return drawn


def _with_locks(defense: Defense, keys: Secrets, locks: State) -> Defense:
    """The defense with its key-lock in the state it was trained to, no longer known to the server."""

    def kept(part: Defense) -> Defense:
        if not isinstance(part, KeyLock):
            return part
        plain = {name: getattr(part, name) for name in ("key", "lock", "share")}
        return _Kept(**plain, round="later", keys=keys, locks=locks)

    found = tuple(map(kept, defenses.parts(defense)))
    return found[0] if len(found) == 1 else Chain(parts=found)
