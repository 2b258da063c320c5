"""Steps other than one gradient: local training (FedAvg) and per-example clipping (DP-SGD).

Both are pure and differentiable in the batch, so that an attack can simulate them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.func import grad, vmap

from dosimeter import checks, trees
from dosimeter.clients import optimisers
from dosimeter.clients.recompute import recomputed
from dosimeter.errors import SettingError, unknown
from dosimeter.networks import norms_by_batch
from dosimeter.types import Gradient, Held, Secrets, Step, Target

Slopes = Callable[[Gradient, slice | Tensor, Tensor, Tensor], Gradient]
"""(weights, places of a local batch among all images, its images, its labels) -> the gradient there."""

Perturbed = Literal["update", "steps"]

MOST_STEPS = 100_000
"""An attack simulates all of them in every step of its own."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Several steps on the client, which sends (theta_0 - theta_T) / lr (Inverting Gradients, Sec. 6.1 and Eq. 8).

    One step of plain SGD on all images is the gradient. The images are cut into batches as a data loader does, the
    last of which may be smaller; the loss of each is the mean over its own images.

    A call takes the images as they come in every epoch. A client that shuffles draws an order for every epoch
    (`shuffled`) and keeps it to itself, so an attacker that simulates this client by a call assumes that the images
    come as they are, whatever the order was; see `attacks.AverageOrders` for another who does not.
    """

    steps: int | None = None
    """How many in all; they begin with the first batch again after the last. Either these or epochs."""
    epochs: int | None = None
    """How often all images are seen."""
    lr: float
    batch_size: int | None = None
    """Images of a local batch; all by default."""
    shuffle: bool = False
    """Whether the client draws a new order of its images for every epoch."""
    optimiser: optimisers.Optimiser[Any] = optimisers.SGD()
    perturbed: Perturbed = "update"
    """Whether the client's defense acts on the update, once, or on the gradient of every local step."""
    bound: float | None = None
    """The norm to which every example's gradient is clipped in every step; not at all by default."""

    def __post_init__(self) -> None:
        if self.perturbed not in get_args(Perturbed):
            raise SettingError(unknown("what a defense acts on", self.perturbed, get_args(Perturbed)))
        if (self.steps is None) == (self.epochs is None):
            raise SettingError(f"Local training needs steps or epochs, one of them; got {self}.")
        for key in ("steps", "epochs"):
            checks.count("Local training", key, getattr(self, key), most=MOST_STEPS)
        checks.count("Local training", "batch_size", self.batch_size)
        checks.positive("Local training", "a learning rate", self.lr)

    def count(self, images: int) -> int:
        """Local steps on so many images."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * self._batches(images)

    def holds(self, images: int) -> Held:
        kept, state = self.optimiser.copies
        return Held(self.count(images), min(self.batch_size or images, images), kept, 1 + state)

    def orders(self, images: int, rng: torch.Generator | None) -> list[Tensor]:
        """What a client draws that shuffles, one order for every epoch that it begins; nothing of another."""
        if not self.shuffle:
            return []
        if rng is None:
            raise SettingError("A client that shuffles its images draws their order; give a generator (rng).")
        epochs = -(-self.count(images) // self._batches(images))
        return [torch.randperm(images, generator=rng) for _ in range(epochs)]

    def shuffled(self, images: int, rng: torch.Generator | None) -> Step:
        """The training of one client that has drawn its orders."""
        return partial(self._train, self.orders(images, rng))

    def taken(
        self, slopes: Slopes, parameters: Gradient, images: Tensor, labels: Tensor, orders: Sequence[Tensor]
    ) -> Gradient:
        """The same training with slopes of a client's own, which need not be a pure function."""
        steps = range(self.count(len(images)))
        moved: Gradient = self._walk(slopes, orders, steps, self._begun(parameters), parameters, images, labels)[0]
        return moved

    @property
    def sums(self) -> bool:
        return self.optimiser.linear and self.bound is None

    def weights(self, images: int) -> Tensor:
        places = torch.zeros(images, dtype=torch.float64)

        def slopes(_now: Gradient, part: slice | Tensor, x: Tensor, _y: Tensor) -> Gradient:
            share = torch.zeros_like(places)
            share[part] = 1 / len(x)
            return {"images": share}

        found = self.taken(slopes, {"images": places}, places, places, ())["images"]
        mixed = self.shuffle and self.count(images) > self._batches(images)  # every epoch has an order of its own
        return found.mean().expand(images) if mixed else found

    def pull(self, parameters: Gradient, images: int) -> Gradient:
        none = {name: torch.zeros_like(value) for name, value in parameters.items()}
        empty = torch.zeros(images)
        return self.taken(lambda *_: none, parameters, empty, empty, ())

    def untold(self, images: int, *, steps: bool, lr: bool) -> "UntoldTraining":
        """What is left for an attacker who is told the number of steps, or the learning rate, or neither."""
        return UntoldTraining(
            steps=self.count(images) if steps else None,
            lr=self.lr if lr else None,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            optimiser=self.optimiser,
        )

    def __call__(self, target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
        return self._train((), target, parameters, images, labels)

    def _batches(self, images: int) -> int:
        """Local batches of an epoch."""
        return -(-images // (self.batch_size or images))

    def _train(
        self, orders: Sequence[Tensor], target: Target, parameters: Gradient, images: Tensor, labels: Tensor
    ) -> Gradient:
        so_far = self._begun(parameters)
        given = (dict(parameters), dict(target.statistics), dict(target.drawn), images, labels)
        steps = self.count(len(images))
        stretch = target.stretch or steps
        for first in range(0, steps, stretch):
            walk = partial(self._simulated, target, orders, range(first, min(first + stretch, steps)))
            so_far = walk(so_far, given) if stretch >= steps else recomputed(walk, so_far, given)
        moved: Gradient = so_far[0]
        return moved

    def _begun(self, parameters: Gradient) -> tuple[Any, Any]:
        # The sum of the moves rather than the difference of the weights, which would lose digits at small rates.
        return {name: torch.zeros_like(value) for name, value in parameters.items()}, self.optimiser.init(parameters)

    def _simulated(
        self, target: Target, orders: Sequence[Tensor], steps: range, so_far: tuple[Any, Any], given: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """Some of the steps, as a function of the moves so far, the state and all that candidates differ in."""
        parameters, statistics, drawn, images, labels = given
        own = [name for name, secret in target.secrets.items() if secret.scope == "image" and name in drawn]

        def slopes(now: Gradient, places: slice | Tensor, x: Tensor, y: Tensor) -> Gradient:
            part = {**drawn, **{name: drawn[name][places] for name in own}}
            ran = replace(target, statistics=statistics, drawn=part)
            found: Gradient = (
                grad(ran.objective)(now, x, y)
                if self.bound is None
                else ClippedGradient(bound=self.bound)(ran, now, x, y)
            )
            return found

        return self._walk(slopes, orders, steps, so_far, parameters, images, labels)

    def _walk(
        self,
        slopes: Slopes,
        orders: Sequence[Tensor],
        steps: range,
        so_far: tuple[Any, Any],
        parameters: Gradient,
        images: Tensor,
        labels: Tensor,
    ) -> tuple[Any, Any]:
        total, state = so_far
        size, batches = self.batch_size or len(images), self._batches(len(images))
        for step in steps:
            epoch, place = divmod(step, batches)
            part: slice | Tensor = slice(place * size, (place + 1) * size)
            if orders:
                part = orders[epoch].to(images.device)[part]
            now = {name: value - self.lr * total[name] for name, value in parameters.items()}
            slope = slopes(now, part, images[part], labels[part])
            move, state = self.optimiser.move(slope, now, state, step + 1)
            total = {name: value + move[name] for name, value in total.items()}
        return total, state


@dataclass(frozen=True, kw_only=True)
class UntoldTraining:
    """Local training as an attacker knows it who was not told all of it; None stands for what it was not told."""

    steps: int | None
    lr: float | None
    batch_size: int | None = None
    shuffle: bool = False
    optimiser: optimisers.Optimiser[Any] = optimisers.SGD()

    @property
    def sums(self) -> bool:
        return self.optimiser.linear

    def assume(self, *, steps: int, lr: float) -> LocalTraining:
        """The training with so many steps at this rate, which must be the ones that were told, if any were."""
        for what, told, assumed in (("steps", self.steps, steps), ("learning rate", self.lr, lr)):
            if told not in (None, assumed):
                raise SettingError(f"The attacker was told {told} as the local {what} and cannot assume {assumed}.")
        return LocalTraining(
            steps=steps, lr=lr, batch_size=self.batch_size, shuffle=self.shuffle, optimiser=self.optimiser
        )

    def __call__(self, target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
        raise SettingError(
            "The attacker was not told how the clients train locally, so it cannot simulate them; "
            "let it guess (GuessSteps, --guess-local-steps)."
        )


@dataclass(frozen=True, kw_only=True)
class ClippedGradient:
    """The mean of per-example gradients, each scaled down to norm `bound` at most (DP-SGD, without its noise)."""

    bound: float

    def __post_init__(self) -> None:
        checks.positive("Clipping", "a bound", self.bound)

    def holds(self, images: int) -> Held:
        return Held(1, images, 3.5 * images, 1)  # every image's own gradient, written out

    def __call__(self, target: Target, parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient:
        if norms_by_batch(target.model):
            raise SettingError(
                "Clipping needs every image's own gradient, but batch norm by the batch mixes the images; "
                "use running statistics."
            )
        own = {name: u.unsqueeze(1) for name, u in target.drawn.items() if target.secrets[name].scope == "image"}

        def objective(parameters: Gradient, image: Tensor, label: Tensor, drawn: Secrets) -> Tensor:
            return replace(target, drawn={**target.drawn, **drawn}).objective(parameters, image, label)

        slopes = vmap(grad(objective), in_dims=(None, 0, 0, 0), randomness="different")
        each = slopes(parameters, images.unsqueeze(1), labels.unsqueeze(1), own)
        norms = (
            torch.stack([trees.flat(g).square().sum(1) for g in each.values()]).sum(0).clamp_min(1e-24).sqrt()
        )  # (B,)
        scale = (self.bound / norms).clamp_max(1.0)
        return {name: torch.einsum("b,b...->...", scale, g) / len(images) for name, g in each.items()}


def local(
    *,
    steps: int | None = None,
    epochs: int | None = None,
    lr: float = 1e-4,
    batch_size: int | None = None,
    shuffle: bool = False,
    optimiser: Literal["sgd", "momentum", "adam"] = "sgd",
    momentum: float | None = None,
    nesterov: bool | None = None,
    beta1: float | None = None,
    beta2: float | None = None,
    eps: float | None = None,
    weight_decay: float = 0.0,
    perturbed: Perturbed = "update",
) -> LocalTraining:
    """Local training (FedAvg): the change of weights after several steps, divided by the learning rate.

    Without further words it is that of Inverting Gradients, Fig. 9: 5 steps at a rate of 1e-4.

    Args:
        steps: how many in all; either these or epochs.
        epochs: how often all images of an update are seen.
        lr: the clients' learning rate.
        batch_size: images of a local batch, all by default; the last batch may be smaller.
        shuffle: whether clients draw a new order of their images for every epoch, which the attacker does not know.
        optimiser: sgd, the same with a momentum of 0.9, or adam; all as in torch.optim.
        momentum, nesterov: of sgd.
        beta1, beta2, eps: of adam.
        weight_decay: of any.
        perturbed: whether a defense acts on the update, once, or on the gradient of every local step.
    """
    given: dict[str, Any] = {
        "momentum": 0.9 if optimiser == "momentum" and momentum is None else momentum,
        "nesterov": nesterov,
        "beta1": beta1,
        "beta2": beta2,
        "eps": eps,
        "weight_decay": weight_decay,
    }
    given = {key: value for key, value in given.items() if value is not None}
    rule = optimisers.Adam if optimiser == "adam" else optimisers.SGD
    for key in given:
        if key not in rule.__dataclass_fields__:
            raise SettingError(f"The local optimiser {optimiser!r} has no setting {key!r}; leave it out.")
    return LocalTraining(
        steps=5 if steps is None and epochs is None else steps,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        shuffle=shuffle,
        optimiser=rule(**given),
        perturbed=perturbed,
    )
