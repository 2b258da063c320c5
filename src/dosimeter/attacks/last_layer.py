"""The linear layer that gives the model's output, found by watching the model run rather than from a list of models.

Under cross-entropy the gradient of that layer, z = W f + b, holds what tells the labels of a batch of B images:

    dW = 1/B sum_i (p_i - y_i) f_i^T      db = 1/B sum_i (p_i - y_i)

with softmax outputs p_i, labels y_i as unit vectors and features f_i, which go into the layer.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dosimeter import networks
from dosimeter.errors import SettingError
from dosimeter.networks.remember import remembered
from dosimeter.types import Gradient, Observation, Target

INSTEAD = (
    "search for them with the images (--attack ig:labels=joint) or grant them (--attack ig:labels=known, or "
    "--labels for a captured update)"
)
"""What works where the last layer does not tell labels."""

TARGETS = "grant the targets to a search (--attack ig:labels=known, or ig and --labels for a captured update)"
"""What works under another loss than cross-entropy."""


class LastLayer(NamedTuple):
    """Names of its parameters; None where it has none or does not train it."""

    path: str  # of the module
    weight: str | None  # (classes, features)
    bias: str | None  # (classes,)

    def gradients(self, seen: Observation, less: Gradient | None = None) -> tuple[Tensor | None, Tensor | None]:
        """What every victim's update holds of weight (V, classes, features) and bias (V, classes), in float64.

        `less` is taken off every update.
        """

        def held(name: str | None) -> Tensor | None:
            if name is None:
                return None
            whole = seen.gradient[name].double()
            return whole if less is None else whole - less[name].double()

        return held(self.weight), held(self.bias)

    def values(self, target: Target) -> tuple[Tensor, Tensor | None]:
        """Weight (classes, features) and bias (classes,) themselves, trained or not, in float64."""
        layer = target.model.get_submodule(self.path)
        assert isinstance(layer, nn.Linear)
        return layer.weight.detach().double(), None if layer.bias is None else layer.bias.detach().double()


@remembered
def find_last_layer(target: Target) -> LastLayer:
    """The layer whose gradient tells the labels, or a refusal where none does."""
    if not target.classification:
        raise SettingError(f"Labels can be read off an update only under cross-entropy; {TARGETS}.")
    with torch.no_grad():
        outputs: list[Tensor] = []
        blank = torch.zeros(2, *target.shape).to(target.mean)
        calls = networks.watch(target.model, lambda: outputs.append(target.model(blank)), _is_linear)
    last = next((call for call in calls if call.output is outputs[0]), None)
    if last is None:
        raise SettingError(
            f"Labels are read off a linear layer that gives the output, and this model does not end in a linear layer; "
            f"{INSTEAD}."
        )
    name, layer = last.name, last.layer
    if sum(call.layer is layer for call in calls) > 1:
        raise SettingError(f"The last layer {name!r} is used more than once, so its gradient is a sum; {INSTEAD}.")
    trained = {id(p): key for key, p in target.model.named_parameters() if p.requires_grad}
    weight, bias = (trained.get(id(p)) for p in (layer.weight, layer.bias))
    if weight is None and bias is None:
        raise SettingError(f"The last layer {name!r} is not trained, so the update does not tell labels; {INSTEAD}.")
    return LastLayer(name, weight, bias)


def features(target: Target, layer: LastLayer, images: Tensor) -> Tensor:
    """(n, features): what goes into the last layer for images of the attacker's own, in float64."""
    anything = torch.zeros(len(images), dtype=torch.long, device=images.device)
    with torch.no_grad():
        (call,) = networks.watch(
            target.model,
            lambda: target.objective(target.parameters, images, anything),
            lambda name, _layer: name == layer.path,
        )
    found: Tensor = call.inputs.double()
    return found


def _is_linear(_name: str, layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear)
