"""The form of a defense: one frozen dataclass that overrides one or more of five methods.

    on_model      the model that all train has other layers
    on_batch      the client trains on other images
    clips         every example's gradient is clipped
    draw          it draws private numbers in a way of its own
    on_gradient   it changes the update before it leaves

What it does to the update it may state (`channel`), or it is found out by trying; what makes it stronger, too
(`strengths`).

    @dataclass(frozen=True, kw_only=True)
    class Round(Defense):
        '''Send three decimals only.'''

        def on_gradient(self, gradient, moment, rng):
            return {name: g.round(decimals=3) for name, g in gradient.items()}

Defenses compose from left to right with `|`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dosimeter.channel import Facts, Path
from dosimeter.errors import SettingError
from dosimeter.types import Gradient, Moment, Secrets, Shape, Target


@dataclass(frozen=True, kw_only=True)
class Defense:
    """Leaves model and update as they are; subclasses change what they need."""

    @property
    def reveals(self) -> bool:
        """Whether the client sends what it drew inside the model along with its update."""
        return False

    @property
    def recomputes(self) -> bool:
        """Whether `on_gradient` makes the update anew from the batch, so that the one it is given does not count."""
        return False

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        """The model that all train, for instance with layers added; a copy where it differs.

        New weights are drawn from torch's global generator, which an audit sets by its seed.
        """
        return model

    def trained(self, model: nn.Module, shape: Shape) -> nn.Module:
        """The model that clients run in a federation, with what they keep to themselves in it; see `private`."""
        return self.on_model(model, shape)

    def check(self, model: nn.Module, shape: Shape) -> None:
        """Refuse a model that it cannot work on, as all defenses leave it."""

    def private(self, model: nn.Module) -> frozenset[str]:
        """Names of parameters of such a model that stay with each client."""
        return frozenset()

    def kept(self, secrets: Secrets, private: Gradient) -> "Defense":
        """The same of clients who all have the private parameters that one trained, and what it drew for good."""
        return self

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The images (B, C, H, W) in [0, 1] and labels that the client trains on instead of its own."""
        return images, labels

    def changes(self, shape: Shape) -> tuple[Path, ...]:
        """What `on_batch` may do to an image of a shape: paths of which the client draws one, stage by stage.

        An attacker who knows them tries to undo them, so state them where they can be differentiated; none by default.
        """
        return ()

    def clips(self) -> float | None:
        """The norm that every example's gradient is clipped to, None for no clipping."""
        return None

    def facts(self) -> dict[str, str]:
        """What else a report should say of it."""
        return {}

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets:
        """What the client draws for the model's secrets; those it does not name are standard normal."""
        return {}

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        """The update that leaves the client. Draw only from `rng`, so that a rerun is the same run."""
        return gradient

    def channel(self, moment: Moment) -> Facts | None:
        """What it does to the update, in the order in which it does it; None lets it be measured.

        Numbers drawn inside the model and the clipping that `clips` says need not be named.
        """
        return None

    def strengths(self) -> dict[str, tuple[float, ...]]:
        """Settings that make it hide more, each with values from weak to strong; the first is the usual one."""
        return {}

    def spends(self, rate: float, steps: int) -> dict[str, float]:
        """The epsilon and delta that so many steps on such a share of a client's images cost; {} without a bound."""
        return {}

    def __or__(self, after: "Defense") -> "Defense":
        return Chain(parts=(*_links(self), *_links(after)))


@dataclass(frozen=True, kw_only=True)
class NoDefense(Defense):
    """The update as it is."""


@dataclass(frozen=True, kw_only=True)
class _Joined(Defense):
    """Does all that the defenses inside it do, one after another."""

    def inside(self) -> tuple[Defense, ...]:
        """Those defenses."""
        raise NotImplementedError

    @property
    def reveals(self) -> bool:
        """Whether any part does; what the others draw is then sent as well."""
        return any(part.reveals for part in self.inside())

    @property
    def recomputes(self) -> bool:
        """Whether any part does."""
        return any(part.recomputes for part in self.inside())

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        for part in self.inside():
            model = part.on_model(model, shape)
        self.check(model, shape)
        return model

    def trained(self, model: nn.Module, shape: Shape) -> nn.Module:
        for part in self.inside():
            model = part.trained(model, shape)
        self.check(model, shape)
        return model

    def check(self, model: nn.Module, shape: Shape) -> None:
        for part in self.inside():
            part.check(model, shape)

    def private(self, model: nn.Module) -> frozenset[str]:
        return frozenset().union(*(part.private(model) for part in self.inside()))

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        for part in self.inside():
            images, labels = part.on_batch(images, labels, rng)
        return images, labels

    def changes(self, shape: Shape) -> tuple[Path, ...]:
        """Those of all parts one after another; none where one of them does not say what it does."""
        found: list[Path] = [()]
        for part in parts(self):
            if type(part).on_batch is not Defense.on_batch:
                found = [(*before, *after) for before in found for after in part.changes(shape)]
        return tuple(path for path in found if path)

    def clips(self) -> float | None:
        bounds = [bound for part in self.inside() if (bound := part.clips()) is not None]
        return min(bounds) if bounds else None

    def facts(self) -> dict[str, str]:
        return {key: value for part in self.inside() for key, value in part.facts().items()}

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets:
        drawn: dict[str, Tensor] = {}
        for part in self.inside():
            drawn |= part.draw(target, batch, rng)
        return drawn

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        for part in self.inside():
            gradient = part.on_gradient(gradient, moment, rng)
        return gradient

    def spends(self, rate: float, steps: int) -> dict[str, float]:
        return next((spent for part in self.inside() if (spent := part.spends(rate, steps))), {})


@dataclass(frozen=True, kw_only=True)
class Chain(_Joined):
    """Defenses one after another, in the order in which they were joined."""

    parts: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        changed: Defense | None = None
        for part in self.parts:
            if part.recomputes and changed is not None:
                anew, lost = type(part).__name__, type(changed).__name__
                raise SettingError(
                    f"{anew} makes the gradient anew from the batch, so nothing to its left may change the gradient, "
                    f"got {lost} there; {'use one of them' if anew == lost else f'put {anew} first'}."
                )
            changed = part if changes_gradient(part) else changed

    def inside(self) -> tuple[Defense, ...]:
        return self.parts

    def kept(self, secrets: Secrets, private: Gradient) -> Defense:
        return Chain(parts=tuple(part.kept(secrets, private) for part in self.parts))


@dataclass(frozen=True, kw_only=True)
class Around(_Joined):
    """Does what the defense inside it does; subclasses change some of that."""

    inner: Defense

    def inside(self) -> tuple[Defense, ...]:
        return (self.inner,)


@dataclass(frozen=True, kw_only=True, eq=False)
class Installed(Around):
    """A defense whose layers are in the model already, with weights that were trained."""

    model: nn.Module

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        return self.model


def parts(defense: Defense) -> tuple[Defense, ...]:
    """The defenses that were joined, or the one that there is, without what stands around them."""
    if isinstance(defense, Around):
        return parts(defense.inner)
    return tuple(part for link in _links(defense) for part in (parts(link) if link is not defense else (link,)))


def changes_gradient(defense: Defense) -> bool:
    """Whether it, or what is joined or stands inside it, has an `on_gradient` of its own."""
    if isinstance(defense, Chain):
        return any(map(changes_gradient, defense.parts))
    if isinstance(defense, Around) and type(defense).on_gradient is Around.on_gradient:
        return changes_gradient(defense.inner)
    return type(defense).on_gradient is not Defense.on_gradient


def _links(defense: Defense) -> tuple[Defense, ...]:
    return defense.parts if isinstance(defense, Chain) else (defense,)
