"""How a federation trains: who takes part, what each does in a round, and when it ends; the papers' own as names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dosimeter import checks
from dosimeter.errors import SettingError

Rule = Literal["sgd", "adam"]
Perturbed = Literal["steps", "update"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Federated averaging (McMahan et al. 2017). One local step of SGD in a round is FedSGD.

    In every round some clients train from the server's weights, each with an optimiser of its own, and the server
    takes the mean of what comes back, weighted by how many images each has.
    """

    clients: int = 10
    share: float = 1.0
    """Of the clients that take part in a round, at least one of them."""
    rounds: int = 200
    epochs: int | None = 1
    """How often a client sees its images in a round. Either these or steps."""
    steps: int | None = None
    """How many batches a client trains on in a round, which go on where its last round ended."""
    batch_size: int = 64
    optimiser: Rule = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    """Of sgd."""
    nesterov: bool = False
    """Whether sgd looks ahead along its momentum."""
    weight_decay: float = 0.0
    drops: Sequence[int] = ()
    """Rounds from which on the learning rate is multiplied by `factor`."""
    factor: float = 0.1
    alpha: float | None = None
    """Of a Dirichlet split of the classes; an even random split without it."""
    validation: float = 0.0
    """The share of its images that each client keeps to validate with."""
    patience: int | None = None
    """Rounds without a better validation loss after which training ends."""
    augment: bool = False
    """Mirror and shift images at random, by up to an eighth of their side (the usual recipe for CIFAR-10)."""
    central: bool = False
    """All images at one place, whose optimiser goes on from round to round."""
    goes_on: bool = False
    """Whether each client's optimiser goes on from its last round, with its momentum; it begins anew otherwise."""
    perturbed: Perturbed = "steps"
    """Whether a defense acts on the gradient of every local step or on the change of weights that is sent."""

    precision: Precision = "float32"
    """Of the products in a local step; weights, their gradients and all tests stay as they are. bfloat16 takes about
    half the time on processors that have it. Gradients that are audited are never made so."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "drops", tuple(self.drops))  # one form, whoever made it
        if self.central and self.clients != 1:
            raise SettingError(f"Central training has 1 client, got {self.clients}; leave clients out.")
        if (self.epochs is None) == (self.steps is None):
            raise SettingError(f"A round needs epochs or steps, one of them; got {self.epochs} and {self.steps}.")
        for name in ("clients", "rounds", "epochs", "steps", "batch_size", "patience"):
            checks.count("Training", name, getattr(self, name), most=checks.MOST_STEPS)
        for drop in self.drops:
            checks.count("Training", "rounds of drops", drop, least=0, most=checks.MOST_STEPS)
        checks.share("Training", "a share of clients in a round", self.share, zero=False)
        checks.share("Training", "a share kept for validation", self.validation, one=False)
        checks.share("Training", "a factor at drops", self.factor, zero=False)
        checks.share("Training", "a momentum", self.momentum, one=False)
        checks.positive("Training", "a learning rate", self.lr)
        checks.positive("Training", "an alpha", self.alpha)
        checks.at_least("Training", "a weight decay", self.weight_decay, 0)
        if self.factor != Protocol.factor and not self.drops:
            raise SettingError(
                f"A factor of {self.factor} does nothing without drops of the learning rate; give drops."
            )
        if self.patience is not None and not self.validation:
            raise SettingError("Patience is counted in validation losses; give a validation share or leave it out.")
        if self.momentum and self.optimiser == "adam":
            raise SettingError("Adam has no setting momentum; leave it out or use optimiser=sgd.")
        if self.nesterov and not self.momentum:
            raise SettingError("Nesterov's step needs a momentum above 0; give one or leave nesterov out.")
        if self.central and self.perturbed == "update":
            raise SettingError("Central training sends no update; leave perturbed out.")

    def rate(self, round_: int) -> float:
        """The learning rate of a round, counted from 0."""
        return self.lr * self.factor ** sum(round_ >= drop for drop in self.drops)

    def taking_part(self) -> int:
        """Clients in a round."""
        return max(1, round(self.share * self.clients))


_CENTRAL = partial(Protocol, clients=1, central=True)
_IG = partial(_CENTRAL, batch_size=128, optimiser="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4,
              augment=True)  # fmt: skip
_STEPWISE = partial(
    Protocol, optimiser="sgd", lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4, drops=(60, 120, 160)
)  # Nesterov by its program

BY_NAME: dict[str, Callable[..., Protocol]] = {
    "ppp": Protocol,  # Sec. 4.1
    "cvb": partial(Protocol, rounds=300, validation=0.1, patience=40),  # Sec. V-A
    "fedkl": partial(_STEPWISE, clients=3, factor=0.2, goes_on=True),  # Sec. IV-A and Table III; no batch size is said
    "fedkl-central": partial(_STEPWISE, clients=1, central=True, factor=0.2),  # Table I
    "ig-10": partial(_IG, rounds=10),  # Table 2, C; the rate drops at fixed epochs of 120, none of which is among 10
    "ig-120": partial(_IG, rounds=120, drops=(45, 75, 105)),  # Sec. 5.1
    "bayes": partial(_CENTRAL, rounds=50, epochs=None, steps=10, batch_size=32),  # Sec. 6: 500 steps; App. A: batches
    "fedsgd": partial(Protocol, rounds=1000, epochs=None, steps=1, optimiser="sgd", lr=0.1),
}  # fmt: skip
"""The papers' protocols, every setting of which can be replaced."""
