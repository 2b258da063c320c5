"""GRNN's space: every candidate is a generator of its own, whose weights are the unknowns."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dosimeter import checks, networks
from dosimeter import rng as streams
from dosimeter.attacks.generators.network import Network, blocks_for
from dosimeter.attacks.search.spaces import Field, Space, fitted
from dosimeter.attacks.search.starts import Start
from dosimeter.types import Target

COPIES = 8
"""How often a search holds a candidate's unknowns: now, at best and in the end, slope, two moments, two on the way."""
PASSES = 4
"""How often it holds what an image leaves in the generator's layers, over both passes."""


@dataclass(frozen=True, kw_only=True)
class Weights(Space):
    """Images and labels as an untrained generator makes them of fixed noise (GRNN, Ren et al. 2021).

    The unknowns are the generator's weights and, where labels are searched, those of one linear layer from the noise to
    logits. A start says where they begin, uniform between -1 and 1 for torch's own initialisation: weights and biases
    are its numbers divided by the root of the inputs of a unit, scales of batch norm begin at 1 and shifts at 0.

    Args:
        width: channels before the last block.
        noise: numbers of the noise, the same for all candidates, which differ in their weights.

    Deviations: 16 channels instead of 32, less than half the weights and of the time; the paper draws noise anew
    for every victim.
    """

    width: int = 16
    noise: int = 128

    def __post_init__(self) -> None:
        checks.count("A generator", "a width", self.width)
        checks.count("A generator", "numbers of noise", self.noise)

    def check(self, target: Target) -> None:
        blocks_for(target.shape)

    def footprint(self, target: Target, batch: int, classes: int) -> int:
        field = self.field(target, batch, classes)
        return COPIES * field.size + PASSES * field.activations

    def nearest(self, target: Target, start: Start, images: Tensor) -> Tensor:
        return fitted(self.field(target, images.shape[1], 0), target, start, images, steps=300, lr=0.03)

    def field(self, target: Target, batch: int, classes: int) -> "WeightField":
        return WeightField(self, target, batch, classes)


class WeightField(Field):
    """Flat rows (n, size) as the parameters of n generators."""

    def __init__(self, space: Weights, target: Target, batch: int, classes: int) -> None:
        self._target, self._batch = target, batch
        with torch.device("meta"):  # the candidates' own weights take the places of these
            layers = {"image": Network(shape=target.shape, latent=space.noise, width=space.width, trained=False)}
            self._net = nn.ModuleDict(layers | ({"label": nn.Linear(space.noise, classes)} if classes else {}))
        self._names = [name for name, _ in self._net.named_parameters()]
        self._shapes = [p.shape for p in self._net.parameters()]
        self._sizes = [p.numel() for p in self._net.parameters()]
        self.size = sum(self._sizes)
        spread, centre = zip(*(_initial(self._net, name) for name in self._names), strict=True)
        self._spread, self._centre = (_flat(values, self._sizes) for values in (spread, centre))
        noise = torch.randn(batch, space.noise, generator=streams.stream(0, "noise"), dtype=torch.float64)
        self._noise = noise.to(target.mean)

    @property
    def activations(self) -> int:
        """Numbers that one candidate's images leave in the layers."""
        row = torch.zeros(1, self.size).to(self._target.mean)
        parameters = {name: value[0] for name, value in self._parameters(row, "image").items()}
        with torch.no_grad():
            return networks.activations(self._net["image"], lambda: self._image(parameters))

    def draw(self, start: Start, rng: torch.Generator) -> Tensor:
        drawn = start.draw((1, self.size), rng, self._target.mean.dtype)[0]
        return self._centre.to(drawn) + self._spread.to(drawn) * drawn

    def images(self, unknowns: Tensor) -> Tensor:
        pixels: Tensor = vmap(self._image)(self._parameters(unknowns, "image"))
        return (pixels - self._target.mean) / self._target.std

    def logits(self, unknowns: Tensor) -> Tensor | None:
        if "label" not in self._net:
            return None
        found = self._parameters(unknowns, "label")
        return self._noise @ found["weight"].mT + found["bias"][:, None]

    def _image(self, parameters: dict[str, Tensor]) -> Tensor:
        made: Tensor = functional_call(self._net["image"], parameters, (self._noise,))
        return made

    def _parameters(self, unknowns: Tensor, part: str) -> dict[str, Tensor]:
        """{name: (n, ...)} of one of the two networks."""
        rows = torch.split(unknowns, self._sizes, dim=1)
        return {
            name.removeprefix(f"{part}."): row.reshape(-1, *shape)
            for name, row, shape in zip(self._names, rows, self._shapes, strict=True)
            if name.startswith(f"{part}.")
        }


def _initial(net: nn.Module, name: str) -> tuple[float, float]:
    """(spread, centre) of a parameter in torch's initialisation."""
    path, _, kind = name.rpartition(".")
    layer = net.get_submodule(path)
    if isinstance(layer, nn.BatchNorm2d):
        return 0.0, float(kind == "weight")
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return 1 / math.sqrt(weight[0].numel()), 0.0  # torch counts the inputs of a transposed convolution so, too


def _flat(values: tuple[float, ...], sizes: list[int]) -> Tensor:
    return torch.cat([torch.full((size,), value) for value, size in zip(values, sizes, strict=True)])
