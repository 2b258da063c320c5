"""Soteria (Sun et al. 2021): hide the features that say most of the image from one layer's gradient."""

import math
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dosimeter import checks
from dosimeter.channel import Facts, Hides
from dosimeter.defenses.base import Defense
from dosimeter.defenses.places import own_modules
from dosimeter.errors import SettingError, unknown
from dosimeter.networks import Fields, evaluating, find_fields, run_order, slope_norms, watch
from dosimeter.types import Gradient, Moment, Secrets, Shape, Target, call


@dataclass(frozen=True, kw_only=True)
class Soteria(Defense):
    """Set columns of a fully connected layer's weight gradient to 0 where |dr_i / dx| / |r_i| is small.

    r is what goes into the layer (Sun et al., Alg. 1; Bayes, Sec. 5, Eq. 4). `rate` is the share of features that is
    hidden; `layer` names the layer, by default the first of the model's own fully connected ones, but for those that
    tokens go through.

    Deviations: the released program drops those under the 1st percentile (rate 0.01); the share is a setting. Features
    are looked at in evaluation mode, also where a batch's own statistics normalise it in training.
    """

    rate: float = 0.8
    layer: str | None = None

    def __post_init__(self) -> None:
        checks.share("Soteria", "a rate of hidden features", self.rate)

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        self.defended(model, shape)
        return model

    def defended(self, model: nn.Module, shape: Shape) -> str:
        """The layer whose gradient is perturbed."""
        own = own_modules(model)
        met = {path: size for path, size in run_order(model, shape).items() if isinstance(own.get(path), nn.Linear)}
        linear = [path for path, size in met.items() if len(size) == 1]  # it scores features of images, not of tokens
        if self.layer is None and not linear:
            raise SettingError(
                "Soteria defends a fully connected layer that sees whole images, and this model has none; use another "
                "defense."
            )
        if self.layer is not None and self.layer not in linear:
            raise SettingError(unknown("fully connected layer", self.layer, linear))
        return self.layer or linear[0]

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        if moment.target is None or moment.images is None:
            raise SettingError("Soteria looks at the client's features and needs the batch; give a Moment of it.")
        path = self.defended(moment.target.model, moment.target.shape)
        scores = feature_scores(moment.target, path, moment.images)
        hidden = scores.argsort()[: math.floor(self.rate * len(scores))]
        name = f"{path}.weight"
        changed = gradient[name].clone()
        changed[:, hidden] = 0
        return {**gradient, name: changed}

    def channel(self, moment: Moment) -> Facts:
        assert moment.target is not None
        path = self.defended(moment.target.model, moment.target.shape)
        return (Hides(frozenset({f"{path}.weight"})),) if self.rate else ()

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"rate": (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)}


def feature_scores(target: Target, path: str, images: Tensor) -> Tensor:
    """(features,): sum over images of |dr_i / dx| / |r_i|, where r goes into the layer `path`."""
    model, drawn = target.model, target.drawn
    with evaluating(model):
        fields = _fields(model, path, target.shape, images)
        slopes, found = slope_norms(partial(_features, model, path, drawn), images, fields)
    return (slopes / found.abs().clamp_min(1e-12)).sum(0)


def _features(model: nn.Module, path: str, drawn: Secrets, images: Tensor) -> Tensor:
    """(n, features): what goes into a layer."""
    inputs: Tensor = watch(model, lambda: call(model, drawn, images), lambda name, _layer: name == path)[0].inputs
    return inputs.reshape(len(images), -1)


_FOUND: WeakKeyDictionary[nn.Module, dict[tuple[str, Shape], Fields]] = WeakKeyDictionary()


def _fields(model: nn.Module, path: str, shape: Shape, like: Tensor) -> Fields:
    """What features see does not change with the weights, so it is found once for every model."""
    found = _FOUND.setdefault(model, {})
    if (path, shape) not in found:
        found[path, shape] = find_fields(partial(_features, model, path, {}), shape, like)
    return found[path, shape]
