"""The nouns of the project: what flows from the data set to the report.

    dataset -> victims -> client step (+ defense) -> Observation -> attack -> Reconstruction -> scores -> records

What flows is a NamedTuple of tensors; what is set is a frozen dataclass. The letters of shapes:

    V victims (updates), B images of one update, N candidates (victims x restarts), C, H, W channels, height, width
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Gradient = Mapping[str, Tensor]
"""{parameter name: tensor}; a batched gradient has an axis of victims or candidates in front."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(model output, targets) -> scalar, the mean over the images of the batch."""

Shape = tuple[int, int, int]

BatchNorm = Literal["running", "batch", "sent"]
"""Which mean and variance batch norm uses; see `ThreatModel.statistics`."""

Statistics = Mapping[str, tuple[Tensor, Tensor]]
"""{name of a batch norm: mean and variance (C,)}; those of several victims have an axis in front."""

Secrets = Mapping[str, Tensor]
"""{name of a model's buffer: what a client drew for it}, (B, ...) or (...) by the secret's scope; those of several
candidates have an axis in front."""

Way = Literal["chain", "tape", "vmap", "one by one"]
"""How simulated gradients are compared with observed ones; see `dosimeter.engine.matching`."""


class Secret(NamedTuple):
    """Numbers that a client draws for itself, standard normal, and that its model finds in a buffer of this name."""

    shape: tuple[int, ...]  # of one image's draw, or of the client's
    scope: Literal["image", "client"] = "image"  # a draw for every image of a batch, or one for all

    def full_shape(self, batch: int) -> tuple[int, ...]:
        """Of one update's draws, (B, ...) or (...)."""
        return (batch, *self.shape) if self.scope == "image" else self.shape


@runtime_checkable
class Secretive(Protocol):
    """A layer that uses secrets. Until they are given its buffers hold zeros, one row for all images.

    `penalty` is what its last pass adds to each image's loss (n,), None for nothing.
    """

    penalty: Tensor | None

    def secrets(self) -> dict[str, Secret]:
        """{name of a buffer of this layer: what is drawn for it}"""
        ...


class Victims(NamedTuple):
    """Private batches, one a row; `ids` name them for random streams and records."""

    images: Tensor  # (V, B, C, H, W) in [0, 1]
    labels: Tensor  # (V, B) classes, or (V, B, ...) targets of the user's own loss
    indices: Tensor  # (V, B) places in the data set
    ids: tuple[str, ...]
    trained_on: Tensor | None = None  # (V, B, C, H, W) what a defense made of the images, where an auditor knows it

    def take(self, where: slice | list[int]) -> "Victims":
        """Some of the victims; each keeps its id, so it meets the same random numbers there."""
        made = None if self.trained_on is None else self.trained_on[where]
        ids = self.ids[where] if isinstance(where, slice) else tuple(self.ids[v] for v in where)
        return Victims(self.images[where], self.labels[where], self.indices[where], ids, made)

    @property
    def shape(self) -> Shape:
        c, h, w = self.images.shape[2:]
        return c, h, w

    @property
    def batch(self) -> int:
        """Images of one update (B)."""
        return self.images.shape[1]


@dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """What the attacker is granted. It stands beside every result; nothing is granted silently.

    The attacker is the server (or somebody on the line to it): it always has the model before the update, the loss,
    the update itself, the number of images in it and their size.
    """

    server: str = "honest"
    """It follows the protocol and only looks, or the name of what it does to the model; see `dosimeter.servers`."""
    labels: bool = False
    """The labels of the private batch."""
    statistics: BatchNorm = "running"
    """Batch norm uses running statistics, which are part of the model ("running"), or clients train with the
    statistics of their batch, which the attacker takes from its own candidates ("batch") or is sent ("sent")."""
    defense: bool = True
    """Which defense runs, with its settings, though not its random draws."""
    local_steps: bool = True
    """How many local steps an update holds. Batch size and optimiser are the server's to set and always known."""
    local_lr: bool = True
    """The learning rate of local steps. Without it an update is the plain difference of weights."""
    secrets: bool = False
    """What a defense draws inside the model: an oracle, to tell a strong defense from a broken attack."""
    rounds: int = 1
    """Updates of the same batch at the same weights, for each of which clients draw anew."""
    same_client: int = 1
    """Updates of one client that it can tell to be of one, on other batches each."""


class Step(Protocol):
    """What a client sends instead of one gradient, as a pure, differentiable function of parameters and batch."""

    def __call__(self, target: "Target", parameters: Gradient, images: Tensor, labels: Tensor) -> Gradient: ...


class Held(NamedTuple):
    """What a step keeps in memory until it is differentiated."""

    steps: int  # of local training
    images: int  # of one of them
    weights: float  # copies of all weights that one of them keeps
    state: int  # copies of all weights that are enough to go on from one of them


@runtime_checkable
class Measured(Step, Protocol):
    """A step that says what it takes; of any other it is guessed."""

    def holds(self, images: int) -> Held: ...


@runtime_checkable
class Untold(Step, Protocol):
    """Local training as an attacker knows it who was not told all of it; None stands for what it has to guess."""

    @property
    def steps(self) -> int | None: ...

    @property
    def lr(self) -> float | None: ...

    def assume(self, *, steps: int, lr: float) -> Step:
        """The step that the client takes if the guess is right."""
        ...


@runtime_checkable
class Shuffling(Step, Protocol):
    """Local training whose client may draw an order of its images; a call takes them as they come."""

    @property
    def shuffle(self) -> bool: ...

    def shuffled(self, images: int, rng: torch.Generator) -> Step:
        """The step of a client that has drawn its orders."""
        ...


@runtime_checkable
class Summed(Step, Protocol):
    """A step that says whether its update is a sum of slopes, as that of SGD is and that of Adam is not."""

    @property
    def sums(self) -> bool: ...


@runtime_checkable
class Local(Summed, Protocol):
    """Local training of which all is told."""

    @property
    def lr(self) -> float: ...

    def count(self, images: int) -> int:
        """Local steps on so many images."""
        ...

    def weights(self, images: int) -> Tensor:
        """(B,) how much the slope of every image counts in the update, in the order in which images come."""
        ...

    def pull(self, parameters: Gradient, images: int) -> Gradient:
        """The update of images without slopes, which is what weight decay makes."""
        ...


class Trained(NamedTuple):
    """How a client trained locally, or what an attack takes it to have done."""

    steps: int
    lr: float


@dataclass(frozen=True, eq=False)
class Target:
    """All that the server knows of the task: the model before the update, the loss and the form of the images.

    From here on the model runs on a copy of every batch, since many models work in place on theirs.
    """

    model: nn.Module
    loss: Loss
    shape: Shape
    mean: Tensor  # (C, 1, 1), what the model subtracts from images in [0, 1]
    std: Tensor  # (C, 1, 1), what it divides by
    classification: bool = True
    step: Step | None = None  # how the client turns a batch into an update; None is one gradient
    stretch: int | None = None  # local steps whose insides are in memory at once; None is all of them
    compiled: bool = False  # run straight networks through torch.compile
    way: Way | None = None  # how gradients are compared, where it must be a certain one; the fastest by default
    statistics: Statistics = field(default_factory=dict)  # what batch norms use, where they are given
    drawn: Secrets = field(default_factory=dict)  # what was drawn for the model's secrets in this step
    penalised: bool = True  # whether the loss counts the penalties of layers with secrets
    part: int | None = None  # images of a batch that are simulated at a time, where all of them take too much memory

    def __post_init__(self) -> None:
        if _copied not in self.model._forward_pre_hooks.values():
            self.model.register_forward_pre_hook(_copied)

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def secrets(self) -> dict[str, Secret]:
        """What the model's layers want drawn, by the full names of their buffers."""
        return {
            f"{path}.{name}".removeprefix("."): secret
            for path, layer in self.model.named_modules()
            if isinstance(layer, Secretive)
            for name, secret in layer.secrets().items()
        }

    def objective(self, parameters: Gradient, images: Tensor, labels: Tensor) -> Tensor:
        """What a client minimises: the loss of its batch, as a pure function of parameters and batch."""
        given = {
            f"{layer}.running_{kind}".removeprefix("."): value
            for layer, pair in self.statistics.items()
            for kind, value in zip(("mean", "var"), pair, strict=True)
        }
        output = call(self.model, {**parameters, **given, **self.drawn}, images)
        extra = self.penalty(self.model)
        return self.loss(output, labels) if extra is None else self.loss(output, labels) + extra.mean()

    def gradient(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The objective's gradient at the model's own parameters, differentiable in the images and what was drawn.

        By plain autograd, which takes more models than `torch.func` does, such as those with functions of their own.
        """
        leaves = {name: p.requires_grad_() for name, p in self.parameters.items()}
        again = any(t.requires_grad for t in (images, *self.drawn.values()))
        with torch.enable_grad():
            loss = self.objective(leaves, images, labels)
            slopes = torch.autograd.grad(loss, list(leaves.values()), create_graph=again, materialize_grads=True)
        return dict(zip(leaves, slopes, strict=True))

    def penalty(self, model: nn.Module) -> Tensor | None:
        """(n,) what the last pass of a model adds to its images' losses, None for nothing."""
        found = [layer.penalty for layer in model.modules() if isinstance(layer, Secretive)] if self.penalised else []
        counted = [each for each in found if each is not None]
        return torch.stack(counted).sum(0) if counted else None


class Moment(NamedTuple):
    """When a defense acts, and on what: all of it is the client's own to see."""

    round: int = 0
    batch: int = 1  # images in the update
    target: Target | None = None  # what the client ran, with what it drew
    images: Tensor | None = None  # (B, C, H, W) what it ran it on
    labels: Tensor | None = None  # (B, ...)


class Defends(Protocol):
    """What a client does beside its step; see `dosimeter.defenses.Defense`."""

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]: ...

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets: ...

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient: ...


def call(model: nn.Module, exchanged: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """model(images) with other parameters and buffers for this call, in all layers that share one of them.

    `torch.func.functional_call` on its own leaves a layer that has two names with what was put in its place.
    """
    held = {
        f"{path}.{name}".removeprefix("."): id(tensor)
        for path, layer in model.named_modules()
        for kind in (layer.named_parameters, layer.named_buffers)
        for name, tensor in kind(recurse=False, remove_duplicate=False)
    }
    new = {held[name]: tensor for name, tensor in exchanged.items()}
    everywhere = {name: new[tensor] for name, tensor in held.items() if tensor in new}
    output: Tensor = torch.func.functional_call(model, everywhere, (images,), tie_weights=False)
    return output


def _copied(_model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)


class Observation(NamedTuple):
    """What the attacker sees of V victims' steps. There is no image in it, and labels only where they are granted."""

    gradient: Gradient  # {name: (V, ...)}
    batch: int  # images in every update (B)
    ids: tuple[str, ...]
    labels: Tensor | None = None  # (V, B) when the threat model grants them
    statistics: Statistics | None = None  # {layer: (V, C) twice} when clients send them
    secrets: Secrets | None = None  # {buffer: (V, ...)} when the threat model reveals them
    clients: tuple[str, ...] = ()  # (V,) who sent each update, where a client sent several; () where none did


TRACED = ("norm", "cosine", "first", "second", "observed norm", "observed first", "observed second")
"""Of a tensor of the simulated update: its norm, its cosine with the observed one, two of its entries, and what norm
and entries are in the observed one."""


class Curve(NamedTuple):
    """The matching loss on its way down; entries after a victim stopped repeat its last value."""

    steps: tuple[int, ...]  # (T,)
    match: Tensor  # (V, T)
    traces: Mapping[str, Tensor] = {}  # {tensor: (V, T, TRACED)}, where the search was asked for them


class Outcome(StrEnum):
    """Why a search of a victim stopped, or what was solved for."""

    STEPS = "steps"
    SETTLED = "settled"  # it no longer improved
    TARGET = "target"
    PATIENCE = "patience"
    RECOVERED = "recovered"  # the image explains the update, and nothing of it is left open
    PARTLY = "partly determined"  # it does, but so do others
    NOT_DETERMINED = "not determined"
    LABELS = "labels"  # alone, no image
    INTERRUPTED = "interrupted"
    DIVERGED = "diverged"  # numbers that are not finite
    ZERO_UPDATE = "zero update"
    OUT_OF_TIME = "out of time"  # the attack gave up before it was done with this victim

    @property
    def measured(self) -> bool:
        """Whether anything was measured of the victim."""
        return self not in (Outcome.DIVERGED, Outcome.ZERO_UPDATE, Outcome.OUT_OF_TIME)

    @property
    def explains(self) -> bool:
        """Whether an image was solved for that explains the update to rounding."""
        return self in (Outcome.RECOVERED, Outcome.PARTLY)


class Ended(NamedTuple):
    """How the attack on a victim ended; a detail says it in other words, for people to read."""

    outcome: Outcome
    detail: str = ""

    @property
    def words(self) -> str:
        return self.detail or self.outcome.value


UNTOLD = torch.iinfo(torch.long).min
"""The label that stands where an update does not tell it."""


class Reconstruction(NamedTuple):
    """What an attack makes of an observation."""

    images: Tensor  # (V, B, C, H, W), not yet clipped
    labels: Tensor | None  # (V, B) as used by the attack; UNTOLD where it had nothing to take them from
    match: Tensor  # (V,) final matching loss without priors
    steps: Tensor  # (V,) steps taken by the restart that was kept
    restart: Tensor  # (V,) which restart was kept
    stopped: tuple[Ended, ...]
    curve: Curve
    determined: tuple[Mapping[str, float], ...] = ()  # {layer, or image: share of its input that was solved for}
    trained: tuple[Trained, ...] = ()  # (V,) how each client trained, where the attack had to guess
    again: tuple[int, ...] = ()  # (V,) how often an auditor had the search begun anew, where any
    trained_on: Tensor | None = (
        None  # (V, B, C, H, W) what it read, where `images` is that with a defense's work undone
    )

    @classmethod
    def without_steps(
        cls,
        images: Tensor,
        labels: Tensor | None,
        match: Tensor,
        stopped: tuple[Ended, ...],
        determined: tuple[Mapping[str, float], ...] = (),
    ) -> "Reconstruction":
        """What was found otherwise than by a search."""
        none = torch.zeros(len(images), dtype=torch.long, device=images.device)
        return cls(images, labels, match, none, none, stopped, Curve((0,), match.unsqueeze(1)), determined)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """(V,)"""
        return tuple(ended.outcome for ended in self.stopped)

    @property
    def interrupted(self) -> bool:
        """Whether the attack was cut short on any victim."""
        return Outcome.INTERRUPTED in self.outcomes


class Watch(Protocol):
    """Who wants to know how far a search is."""

    def __call__(self, *, done: int, total: int, match: float, active: int) -> None: ...


Record = dict[str, object]
"""One image's result as plain values, ready for JSON."""


def as_device(device: str) -> torch.device:
    """The device of that name, or a clear refusal."""
    from dosimeter.errors import SettingError

    try:
        found = torch.device(device)
    except RuntimeError:
        raise SettingError(f"Unknown device {device!r}; expected for instance 'cpu' or 'cuda'.") from None
    if found.type not in ("cpu", "cuda"):
        raise SettingError(f"Device {device!r} is neither 'cpu' nor 'cuda', which are those that audits run on.")
    if found.type == "cpu" and found.index:
        raise SettingError(f"Device {device!r} was asked for, but there is one 'cpu'; say how many cores by workers.")
    if found.type == "cuda" and torch.cuda.is_available() and (found.index or 0) >= torch.cuda.device_count():
        raise SettingError(f"Device {device!r} was asked for, but torch sees {torch.cuda.device_count()} GPU(s) here.")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"Device {device!r} was asked for, but torch sees no GPU here; use --device cpu.")
    return found
