"""Which tensors of the update are matched."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dosimeter import checks, networks
from dosimeter.errors import SettingError, unknown
from dosimeter.types import Secretive, Target, call


class Mask:
    """The start of all choices of tensors."""

    informed = False
    """Whether it takes settings of the defense, which the threat model must grant."""

    def check(self, target: Target) -> None:
        """Refuse a model that this choice of tensors has no meaning for."""

    def weights(self, target: Target, norms: Tensor) -> Tensor:
        """Squared norms (V, P) of the observed tensors -> weights (V, P) of the match; tensors in the model's order."""
        return torch.ones_like(norms)


@dataclass(frozen=True, kw_only=True)
class Everything(Mask):
    """Every tensor counts alike."""


@dataclass(frozen=True, kw_only=True)
class Mean(Mask):
    """Every tensor counts 1 / P, so that a sum over tensors becomes their mean (GGL's program)."""

    def weights(self, target: Target, norms: Tensor) -> Tensor:
        return torch.full_like(norms, 1 / norms.shape[1])


@dataclass(frozen=True, kw_only=True)
class Largest(Mask):
    """Only the N tensors with the largest observed norm (Inverting Gradients, Eq. 7, "top-N")."""

    n: int

    def __post_init__(self) -> None:
        checks.count("Matching the largest tensors", "n", self.n)

    def weights(self, target: Target, norms: Tensor) -> Tensor:
        chosen = norms.topk(min(self.n, norms.shape[1]), dim=1).indices
        return torch.zeros_like(norms).scatter(1, chosen, 1.0)


@dataclass(frozen=True, kw_only=True)
class Exponential(Mask):
    """Tensor number p, counted from the input, counts exp(-rate p): early layers see the image most directly.

    The layer weights of Inverting Gradients' program that the Bayes paper's search tries (Sec. 6); its program counts
    layers, so that a weight and its bias count alike (`by` "layers").
    """

    rate: float = 1.0
    by: Literal["tensors", "layers"] = "tensors"

    def __post_init__(self) -> None:
        checks.at_least("Weights that fall exponentially", "a rate", self.rate, 0)

    def weights(self, target: Target, norms: Tensor) -> Tensor:
        owners = [name.rpartition(".")[0] if self.by == "layers" else name for name in target.parameters]
        numbers = {owner: at for at, owner in enumerate(dict.fromkeys(owners))}
        at = torch.tensor([numbers[owner] for owner in owners], dtype=norms.dtype, device=norms.device)
        return torch.exp(-self.rate * at).expand_as(norms)


@dataclass(frozen=True, kw_only=True)
class Except(Mask):
    """All tensors but these: the bypass of a defense that perturbs some of them, such as Soteria (Bayes, Sec. 5).

    A name is that of a tensor or of a layer, all of whose tensors are left out (CVB, Table I).
    """

    names: tuple[str, ...]

    def _has(self, tensor: str) -> bool:
        return any(tensor == name or tensor.startswith(f"{name}.") for name in self.names)

    def check(self, target: Target) -> None:
        left = [name for name in target.parameters if not self._has(name)]
        for name in self.names:
            if not any(each == name or each.startswith(f"{name}.") for each in target.parameters):
                raise SettingError(unknown("tensor or layer to leave out", name, list(target.parameters)))
        if not left or not self.names:
            raise SettingError(
                f"Leaving out {', '.join(self.names)} leaves {len(left)} of {len(target.parameters)} tensors; "
                "expected some of the model's parameters, not all and not none."
            )

    def weights(self, target: Target, norms: Tensor) -> Tensor:
        kept = [float(not self._has(name)) for name in target.parameters]
        return torch.tensor(kept).to(norms).expand_as(norms)


@dataclass(frozen=True, kw_only=True)
class InverseVariance(Mask):
    """Each tensor counts by how well it is known: 1 / (sigma^2 + (floor r)^2), r its own root mean square.

    `each` are names of tensors with the noise sigma on them, the others have none; `floor` is what even a tensor
    without noise may be off, as a share of its size. Weights are scaled so that they sum to 1 over all entries'
    variances.
    """

    each: tuple[tuple[str, float], ...]
    floor: float = 0.03
    informed = True

    def __post_init__(self) -> None:
        for name, sigma in self.each:
            checks.at_least("Weights by variance", f"a sigma of {name}", sigma, 0)
        checks.at_least("Weights by variance", "a floor", self.floor, 0)

    def weights(self, target: Target, norms: Tensor) -> Tensor:
        sigmas = dict(self.each)
        noisy = torch.tensor([sigmas.get(name, 0.0) for name in target.parameters]).to(norms)
        sizes = torch.tensor([p.numel() for p in target.parameters.values()]).to(norms)
        variance = noisy.square() + self.floor**2 * norms / sizes
        return 1 / (variance * sizes).clamp_min(1e-24) / len(target.parameters)


@dataclass(frozen=True, kw_only=True)
class BeforeNoise(Mask):
    """Leave out every tensor that sees what a client drew inside the model: the "Ignore" attack.

    A tensor is left out when what goes into its layer changes with the draw, which is found by running the model twice.
    `encoder` keeps the layers that say how the noise is drawn (CVB, Eq. 4, all that precedes the decoder) or leaves
    them out as well (PPP, Eq. 4, all that precedes the bottleneck).
    """

    encoder: bool = True

    def check(self, target: Target) -> None:
        if not target.secrets:
            raise SettingError(
                "The Ignore attack leaves out what noise inside the model touches, but this model draws none; "
                "use it with a defense such as precode or cvb, or the attack without it."
            )
        if not self.names(target):
            raise SettingError(
                "Noise inside the model touches every tensor, so the Ignore attack has nothing left to match; "
                "use another attack."
            )

    def weights(self, target: Target, norms: Tensor) -> Tensor:
        kept = self.names(target)
        return torch.tensor([float(name in kept) for name in target.parameters]).to(norms).expand_as(norms)

    def names(self, target: Target) -> set[str]:
        """The parameters that are matched."""
        one, other = (_inputs(target, torch.Generator().manual_seed(seed)) for seed in (0, 1))
        inside = tuple(path for path, layer in target.model.named_modules() if isinstance(layer, Secretive))
        kept = set()
        for path, layer in target.model.named_modules():
            still = path in one and all(torch.equal(a, b) for a, b in zip(one[path], other[path], strict=True))
            encodes = any(path == noisy or path.startswith(f"{noisy}.") for noisy in inside)
            if still and (self.encoder or not encodes):
                kept |= {f"{path}.{name}".removeprefix(".") for name, _ in layer.named_parameters(recurse=False)}
        return kept & set(target.parameters)


def _inputs(target: Target, rng: torch.Generator) -> dict[str, list[Tensor]]:
    """What goes into every layer with parameters of its own, for one image and one draw."""
    image = torch.rand(1, *target.shape, generator=torch.Generator().manual_seed(0)).to(target.mean)
    drawn = {name: torch.randn(s.full_shape(1), generator=rng).to(image) for name, s in target.secrets.items()}
    seen: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for made in networks.watch(target.model, lambda: call(target.model, drawn, image), networks.has_parameters):
            seen.setdefault(made.name, []).append(made.inputs)
    return seen
