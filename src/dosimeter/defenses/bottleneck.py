"""Noise drawn inside the model: PRECODE's variational bottleneck and its convolutional form, CVB.

A bottleneck takes what would go into a layer, encodes it as means and deviations, draws around them and decodes the
draw. It samples whenever a client runs it, from secrets that only the client knows, and in evaluation too, as both
papers' programs do: accuracy is that of one draw an image, not of the mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import checks
from dosimeter.defenses.base import Defense
from dosimeter.defenses.places import Added, before_flatten, check_place, insert, own_order, weighted
from dosimeter.errors import SettingError, unknown
from dosimeter.networks import behind_first_block
from dosimeter.types import Secret, Shape

Variant = Literal["paper", "released"]

WEIGHTS = (1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Of a divergence in the loss, which draws towards noise alone, from weak to strong."""


class Bottleneck(Added):
    """mean + deviation * noise, where `noise` is a secret; encoder and decoder come from subclasses."""

    noise: Tensor

    def __init__(self, shape: tuple[int, ...], beta: float) -> None:
        super().__init__()
        self._shape, self._beta = shape, beta
        self.made_by: Defense | None = None  # where that matters to the defense
        self.register_buffer("noise", torch.zeros(1, *shape), persistent=False)
        self.penalty: Tensor | None = None

    def __getstate__(self) -> dict[str, object]:
        """For copies, which do not carry the last pass along."""
        return {**self.__dict__, "penalty": None}

    def secrets(self) -> dict[str, Secret]:
        return {"noise": Secret(self._shape)}

    def sample(self, mean: Tensor, deviation: Tensor, divergence: Tensor) -> Tensor:
        """The draw; what it costs is noted for the loss. `divergence` (n, K, ...) is one number an entry.

        It is summed over the K numbers or channels and averaged over the positions of a map, if there are any: summed
        over positions too, CVB's own beta of 0.1 would hold a network at chance (docs/defenses.md).
        """
        self.penalty = self._beta * divergence.flatten(1).sum(1) / divergence[0, 0].numel()
        return mean + deviation * self.noise


class Variational(Bottleneck):
    """Fully connected: Linear(d, 2 K), a draw of K numbers, Linear(K, d).

    What is encoded beside the means becomes deviations by softplus, or is the `logarithm` of their squares.
    """

    def __init__(self, size: int, k: int, beta: float, *, bias: bool, logarithm: bool = False) -> None:
        super().__init__((k,), beta)
        self._logarithm = logarithm
        self.encoder = nn.Linear(size, 2 * k, bias=bias)
        self.decoder = nn.Linear(k, size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        mean, raw = self.encoder(x.flatten(1)).chunk(2, dim=1)
        deviation = (raw / 2).exp() if self._logarithm else F.softplus(raw)
        bits = gaussian_divergence(mean, deviation) / math.log(2)  # as PRECODE's program counts
        decoded: Tensor = self.decoder(self.sample(mean, deviation, bits))
        return decoded.reshape(x.shape)


class Convolutional(Bottleneck):
    """Two k x k convolutions to K channels, a draw, one 1 x 1 convolution back; none has a bias."""

    def __init__(self, shape: tuple[int, int, int], k: int, kernel: int, beta: float, variant: Variant) -> None:
        channels, height, width = shape
        super().__init__((k, height, width), beta)
        self._variant = variant
        self.mean = nn.Conv2d(channels, k, kernel, padding=kernel // 2, bias=False)
        self.deviation = nn.Conv2d(channels, k, kernel, padding=kernel // 2, bias=False)
        self.decoder = nn.Conv2d(k, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = self.mean(x), F.softplus(self.deviation(x).clamp(-5, 5))
        if self._variant == "released":  # takes the deviation for the logarithm of a variance
            divergence = (mean.square() + deviation.exp() - deviation - 1) / 2
        else:
            divergence = gaussian_divergence(mean, deviation)
        decoded: Tensor = self.decoder(self.sample(mean, deviation, divergence))
        return decoded


def gaussian_divergence(mean: Tensor, deviation: Tensor) -> Tensor:
    """KL(N(mean, deviation^2) || N(0, 1)) of every entry, in nats."""
    return (mean.square() + deviation.square() - 1) / 2 - deviation.clamp_min(1e-12).log()


@dataclass(frozen=True, kw_only=True)
class Precode(Defense):
    """PRECODE (PPP, Sec. 2.2.3, Eq. 2-3; CVB, Sec. II-C): a variational bottleneck before one of the model's layers.

    `k` numbers are drawn, 256 by default or as many as go in where these are fewer; `beta` weighs their divergence from
    the standard normal, in bits, in the loss. `position` counts the model's own convolutions and linear layers before
    the bottleneck; by default it stands before the last of them. `before` names a layer or block instead.

    `variant` "paper" has deviations by softplus and a beta of 1e-3 by default. "bayes" is the Bayes paper's program
    (Sec. 5): deviations exp(v / 2) of encoded v, and a beta of 0 by default, since the loss whose gradient it attacks
    has no divergence.
    """

    k: int | None = None
    beta: float | None = None
    position: int | None = None
    before: str | None = None
    bias: bool = True
    variant: Literal["paper", "bayes"] = "paper"

    def __post_init__(self) -> None:
        checks.count("PRECODE", "a bottleneck of k", self.k)
        check_place("PRECODE", self.position, self.before)
        if self.variant not in ("paper", "bayes"):
            raise SettingError(unknown("variant", self.variant, ("paper", "bayes")))
        checks.at_least("PRECODE", "a weight beta", self.beta, 0)

    @property
    def weight(self) -> float:
        """Of the divergence in the loss."""
        if self.beta is not None:
            return self.beta
        return 0.0 if self.variant == "bayes" else 1e-3

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        return insert(model, shape, self._layer, position=self.position, before=self.before)

    def _layer(self, inside: tuple[int, ...]) -> Variational:
        size = math.prod(inside)
        if self.k is not None and self.k > size:
            raise SettingError(
                f"PRECODE's bottleneck of k = {self.k} is wider than the {size} numbers that go into it there; "
                f"choose k up to {size} or an earlier position."
            )
        k, logarithm = self.k or min(256, size), self.variant == "bayes"
        return Variational(size, k, self.weight, bias=self.bias, logarithm=logarithm)

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"beta": WEIGHTS}


@dataclass(frozen=True, kw_only=True)
class Cvb(Defense):
    """The convolutional variational bottleneck (CVB, Sec. IV): PRECODE for feature maps, early in the model.

    `kernel` and `scale` are the paper's k_E and s_E = K / C; `beta` weighs the divergence (Eq. 3) in nats. `variant`
    "released" is the program's divergence, which takes the deviation for the logarithm of a variance and so is least
    at deviations of 0; layers and draw are the same. `position` and `before` as in `Precode`, though before the flatten
    where maps are flattened on their way; several of either put a bottleneck at each. By default it stands behind the
    first convolution, or where a shortcut leads around that place behind the first block (Sec. VI-D). Tokens (P, F) of
    a transformer are taken as P maps of sqrt(F) x sqrt(F).
    """

    kernel: int = 5
    scale: float = 0.5
    beta: float = 0.1
    position: int | Sequence[int] | None = None
    before: Sequence[str] = ()
    variant: Variant = "paper"

    def __post_init__(self) -> None:
        checks.at_least("CVB", "a weight beta", self.beta, 0)
        checks.count("CVB", "a kernel", self.kernel)
        checks.positive("CVB", "a scale", self.scale)
        check_place("CVB", self.position, self.before)
        if self.variant not in ("paper", "released"):
            raise SettingError(unknown("variant", self.variant, ("paper", "released")))
        if self.kernel % 2 == 0:
            raise SettingError(f"CVB needs an odd kernel, got {self.kernel}; try 5.")

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        for place in self.before or self._places(model, shape):
            model = insert(model, shape, self._layer, position=None, before=place)
        return model

    def _places(self, model: nn.Module, shape: Shape) -> list[str]:
        def place(position: int) -> str:
            return before_flatten(model, shape, weighted(model, shape, position))

        if self.position is None:
            return [behind_first_block(model, shape, own_order(model, shape), place(1))]
        return [place(at) for at in ((self.position,) if isinstance(self.position, int) else self.position)]

    def _layer(self, inside: tuple[int, ...]) -> nn.Module:
        side = math.isqrt(inside[-1])
        if len(inside) == 2 and side**2 == inside[-1]:
            return Tokens(self._layer((inside[0], side, side)))
        if len(inside) != 3:
            raise SettingError(
                f"CVB works on feature maps (channels, height, width), but finds {inside} there; "
                "choose an earlier position or use precode."
            )
        channels, height, width = inside
        k = max(1, round(self.scale * channels))
        return Convolutional((channels, height, width), k, self.kernel, self.beta, self.variant)

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"beta": WEIGHTS, "kernel": (1, 3, 5, 7, 9), "scale": (2.0, 1.0, 0.5, 0.25, 0.125)}


class Tokens(Added):
    """A layer for maps on a transformer's tokens (n, P, F), each of which is a map of sqrt(F) x sqrt(F)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        side = math.isqrt(x.shape[-1])
        mapped: Tensor = self.layer(x.reshape(*x.shape[:2], side, side))
        return mapped.reshape(x.shape)
