"""Changes of the model itself: units that are dropped at random, biases that are left out."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dosimeter import checks
from dosimeter.defenses.base import Defense
from dosimeter.defenses.places import Added, check_place, insert, own_modules
from dosimeter.errors import SettingError
from dosimeter.types import Secret, Shape


class Dropped(Added):
    """x * mask / (1 - rate), where the mask is the client's: an entry is kept where its secret is above a threshold.

    Forward it is 0 or 1; its slope is that of a sigmoid, so that a search can move it. A secret of exactly 0, which no
    draw is, stands for the mean of the mask, 1 - rate.
    """

    noise: Tensor

    def __init__(self, shape: tuple[int, ...], rate: float) -> None:
        super().__init__()
        self._shape, self._rate = shape, rate
        self._threshold = float(torch.special.ndtri(torch.tensor(rate, dtype=torch.float64)))
        self.penalty: Tensor | None = None
        self.register_buffer("noise", torch.zeros(1, *shape), persistent=False)

    def secrets(self) -> dict[str, Secret]:
        return {"noise": Secret(self._shape)}

    def forward(self, x: Tensor) -> Tensor:
        above = self.noise - self._threshold
        soft = torch.sigmoid(4 * above)
        mask = (above > 0).to(x) + soft - soft.detach()
        return x * torch.where(self.noise == 0, 1.0, mask / (1 - self._rate))


def for_use(model: nn.Module) -> nn.Module:
    """A copy as it is used after training: nothing is dropped."""
    model = copy.deepcopy(model)
    for path, layer in list(model.named_modules()):
        if isinstance(layer, Dropped):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, nn.Identity())
    return model


@dataclass(frozen=True, kw_only=True)
class Dropout(Defense):
    """Dropout that clients use in the step they share: each unit before a layer is dropped with probability `rate`.

    `position` and `before` as in `Precode`; before the last layer by default. The mask is the client's secret.
    """

    rate: float = 0.5
    position: int | None = None
    before: str | None = None

    def __post_init__(self) -> None:
        checks.share("Dropout", "a rate", self.rate, one=False)
        check_place("Dropout", self.position, self.before)

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        if not self.rate:
            return model
        return insert(
            model, shape, lambda inside: Dropped(inside, self.rate), position=self.position, before=self.before
        )

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"rate": (0.1, 0.3, 0.5, 0.7, 0.9)}


@dataclass(frozen=True, kw_only=True)
class NoBias(Defense):
    """Fully connected layers without bias, so that no ratio of weight and bias gives their input away (PPP, Sec. 3.1).

    Layers that defenses to its left put in, such as PRECODE's encoder and FedKL's lock, lose theirs too. The input
    stays in the weight's gradient, which has rank one for one image; see the attack `analytic`.
    """

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        model = copy.deepcopy(model)
        if not any(isinstance(layer, nn.Linear) for layer in own_modules(model).values()):
            raise SettingError("Bias removal is for fully connected layers, and this model has none; leave it out.")
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.register_parameter("bias", None)
        for layer in model.modules():
            if isinstance(layer, Added):
                layer.settle()
        return model
