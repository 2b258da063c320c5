"""PRECODE with partial perturbation (PPP, Sec. 3.4)."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn

from dosimeter.channel import Fact, Facts
from dosimeter.defenses.bottleneck import Bottleneck, Precode, Variational
from dosimeter.defenses.entries import LEVELS, RATIOS, GaussianNoise, Pruning
from dosimeter.errors import SettingError
from dosimeter.networks import run_order
from dosimeter.types import Gradient, Moment, Shape


@dataclass(frozen=True, kw_only=True)
class Ppp(Precode):
    """PRECODE, and noise or pruning on the gradients of all layers before it: those that the Ignore attack matches.

    `sigma` is the noise's deviation, 0.01 by default (NG2), `prune` a share of entries that is pruned instead (GC90 is
    0.9). The other settings are PRECODE's.
    """

    sigma: float | None = None
    prune: float | None = None

    def __post_init__(self) -> None:
        Precode.__post_init__(self)
        if self.sigma is not None and self.prune is not None:
            raise SettingError(
                f"PPP adds noise or prunes, got sigma={self.sigma} and prune={self.prune}; leave one of them out."
            )
        if self.prune is None and self.sigma is None:
            object.__setattr__(self, "sigma", 1e-2)  # said in full wherever it is printed
        self.perturbation()

    def perturbation(self) -> GaussianNoise | Pruning:
        """What is done to the gradients before the bottleneck."""
        return Pruning(ratio=self.prune) if self.prune is not None else GaussianNoise(sigma=self.sigma or 0.0)

    def _layer(self, inside: tuple[int, ...]) -> Variational:
        layer = Precode._layer(self, inside)
        layer.made_by = self
        return layer

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        if moment.target is None:
            raise SettingError("PPP perturbs what lies before its bottleneck and needs the model; give a Moment of it.")
        early = before_bottleneck(moment.target.model, moment.target.shape, self)
        chosen = {name: g for name, g in gradient.items() if name in early}
        changed = self.perturbation().on_gradient(chosen, moment, rng)
        return {name: changed.get(name, g) for name, g in gradient.items()}

    def channel(self, moment: Moment) -> Facts:
        assert moment.target is not None
        early = frozenset(before_bottleneck(moment.target.model, moment.target.shape, self))
        facts: tuple[Fact, ...] = self.perturbation().channel(moment)
        return tuple(fact._replace(on=early) for fact in facts)  # type: ignore[call-arg]

    def strengths(self) -> dict[str, tuple[float, ...]]:
        own = {"sigma": LEVELS} if self.prune is None else {"prune": RATIOS}
        return own | Precode.strengths(self)


_FOUND: WeakKeyDictionary[nn.Module, dict[Ppp, set[str]]] = WeakKeyDictionary()


def before_bottleneck(model: nn.Module, shape: Shape, defense: Ppp) -> set[str]:
    """The parameters of all layers that run before the defense's bottleneck; found once for a model that trains on."""
    found = _FOUND.setdefault(model, {})
    if defense not in found:
        found[defense] = _before_bottleneck(model, shape, defense)
    return found[defense]


def _before_bottleneck(model: nn.Module, shape: Shape, defense: Ppp) -> set[str]:
    bottlenecks = [layer for layer in model.modules() if isinstance(layer, Bottleneck)]
    # A model may have been put together with other settings; whatever bottleneck it has is then the defense's.
    own = [layer for layer in bottlenecks if layer.made_by == defense] or bottlenecks
    early = {name for name, _ in model.named_parameters(recurse=False)}
    for path in run_order(model, shape):
        layer = model.get_submodule(path)
        if layer in own:
            return early
        early |= {f"{path}.{name}" for name, _ in layer.named_parameters(recurse=False)}
    return set()
