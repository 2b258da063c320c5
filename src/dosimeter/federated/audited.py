"""A federation's model on its way through training, as audits take it."""

import copy

from dosimeter.defenses import Defense, Installed
from dosimeter.federated.client import client_secrets
from dosimeter.federated.federation import Federation
from dosimeter.federated.training import Training
from dosimeter.rng import scoped


def as_audited(federation: Federation, at: Training) -> Defense:
    """The federation's defense for audits of its model as trained so far, which the defense brings along.

    Clients under FedKL audit with the key and the lock of the first client that trained one.
    """
    defense: Defense = federation.defense
    if at.private:
        client, own = min(at.private.items())
        secrets = client_secrets(federation, federation.target(federation.template), client)
        defense = defense.kept(secrets, own)
    with scoped(federation.seed, "defense", "model"):
        # A copy, since a defense without layers gives back the very model that training begins from.
        model = copy.deepcopy(defense.on_model(federation.model, federation.dataset.shape))
    expected = model.state_dict()
    model.load_state_dict({name: tensor for name, tensor in at.state.items() if name in expected})
    return Installed(inner=defense, model=model.eval())
