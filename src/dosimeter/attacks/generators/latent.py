"""GGL's space: the latent of one trained generator."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dosimeter import checks, networks
from dosimeter.attacks.search.spaces import Field, Space, fitted
from dosimeter.attacks.search.starts import Start
from dosimeter.errors import SettingError
from dosimeter.types import Shape, Target

PASSES = 4
"""How often a search holds what an image leaves in the generator's layers, over both passes."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Generator:
    """A trained network from latents (n, latent), standard normal, to images (n, C, H, W) in [0, 1].

    Any module will do, one of yours as well as one of `dosimeter train-generator`.
    """

    network: nn.Module
    latent: int
    shape: Shape
    name: str = "generator"
    """What records call it."""

    def __repr__(self) -> str:
        return f"Generator({self.name!r}, latent={self.latent}, shape={self.shape})"


@dataclass(frozen=True, kw_only=True)
class Latent(Space):
    """Images that a trained generator makes of a latent, one latent an image (GGL, Li et al. 2022, Eq. 4).

    A latent's own prior is `kl` times the divergence -(1 + log v - m^2 - v) / 2 from a standard normal of the normal
    law with the mean m and variance v of the latent's entries (GGL's program).
    """

    generator: Generator
    kl: float = 0.1

    def __post_init__(self) -> None:
        checks.at_least("A latent's own prior", "a weight kl", self.kl, 0)

    def check(self, target: Target) -> None:
        made = self.generator.shape
        if made != target.shape:
            raise SettingError(
                f"{self.generator.name} makes images of {_form(made)}, but the victims' are {_form(target.shape)}; "
                "train a generator on images of that size (dosimeter train-generator --size)."
            )

    def footprint(self, target: Target, batch: int, classes: int) -> int:
        network = copy.deepcopy(self.generator.network).to(target.mean).eval()
        latent = torch.zeros(1, self.generator.latent).to(target.mean)
        with torch.no_grad():
            return PASSES * batch * networks.activations(network, lambda: network(latent))

    def nearest(self, target: Target, start: Start, images: Tensor) -> Tensor:
        return fitted(self.field(target, images.shape[1], 0), target, start, images, steps=300, lr=0.05)

    def field(self, target: Target, batch: int, classes: int) -> "LatentField":
        self.check(target)
        return LatentField(self, target, batch)


class LatentField(Field):
    """Flat rows (n, B * latent)."""

    def __init__(self, space: Latent, target: Target, batch: int) -> None:
        self._target, self._kl = target, space.kl
        self._shape = (batch, space.generator.latent)
        self._network = copy.deepcopy(space.generator.network).to(target.mean).eval().requires_grad_(False)
        self.size = batch * space.generator.latent

    def draw(self, start: Start, rng: torch.Generator) -> Tensor:
        return start.draw(self._shape, rng, self._target.mean.dtype).flatten()

    def images(self, unknowns: Tensor) -> Tensor:
        batch, latent = self._shape
        pixels: Tensor = self._network(unknowns.reshape(-1, latent))
        return (pixels.reshape(-1, batch, *self._target.shape) - self._target.mean) / self._target.std

    def loss(self, unknowns: Tensor) -> Tensor | float:
        if not self._kl:
            return 0.0
        latents = unknowns.reshape(-1, *self._shape)
        mean, variance = latents.mean(2), latents.var(2, correction=0)
        return self._kl * (mean.square() + variance - 1 - (variance + 1e-10).log()).sum(1) / 2


def _form(shape: Shape) -> str:
    return "x".join(map(str, shape))
