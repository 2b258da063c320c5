"""Where the labels of a search come from."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dosimeter.errors import SettingError
from dosimeter.types import Observation, Target


class Labels(Protocol):
    granted: bool
    """Whether the threat model must grant them."""

    def find(self, target: Target, observation: Observation) -> Tensor:
        """(V, B)"""
        ...


@dataclass(frozen=True, kw_only=True)
class Known:
    """Granted by the threat model, as in PPP, CVB and Inverting Gradients (Remark 1)."""

    granted = True

    def find(self, target: Target, observation: Observation) -> Tensor:
        if observation.labels is None:
            raise SettingError(
                "This attack needs the labels, which the threat model does not grant. "
                "Grant them (ThreatModel(labels=True)) or recover them from the update (labels=idlg)."
            )
        return observation.labels


@dataclass(frozen=True, kw_only=True)
class FromLastLayer:
    """Read off the last layer's gradient: the row with the most negative sum is the label's (iDLG, Eq. 4).

    With cross-entropy the gradient of row c is (p_c - [c = y]) times the layer's input, so with inputs that are not
    negative (after ReLU or a sigmoid) only the label's row has a negative sum. Exact for one image an update.
    """

    granted = False

    def find(self, target: Target, observation: Observation) -> Tensor:
        if not target.classification:
            raise SettingError("Labels can be read off an update only under cross-entropy; grant the targets instead.")
        if observation.batch != 1:
            raise SettingError(
                f"iDLG reads one label off an update, but this one holds {observation.batch} images; "
                "use --batch 1 or grant the labels."
            )
        gradient = observation.gradient[_classifier(target)]  # (V, classes, features)
        return gradient.sum(-1).argmin(-1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class Joint:
    """Unknowns beside the images: the softmax of logits that start standard normal (DLG, Eq. 4 and Alg. 1)."""

    granted = False

    def find(self, target: Target, observation: Observation) -> Tensor:
        """(V, B) of zeros: nothing is known of the labels before the search."""
        return torch.zeros(len(observation.ids), observation.batch, dtype=torch.long)

    def classes(self, target: Target) -> int:
        """How many logits a label has."""
        if not target.classification:
            raise SettingError("Labels can be searched only under cross-entropy; grant the targets instead.")
        with torch.no_grad():
            blank = torch.zeros(1, *target.shape, dtype=target.mean.dtype, device=target.mean.device)
            return int(target.model(blank).shape[1])


def _classifier(target: Target) -> str:
    """The name of the weight whose linear layer gives the model's output, found by watching a forward pass."""
    seen: list[tuple[str, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda _m, _i, output, name=name: seen.append((name, output)))
        for name, module in target.model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.no_grad():
        blank = torch.zeros(1, *target.shape, dtype=target.mean.dtype, device=target.mean.device)
        output = target.model(blank)
    for hook in hooks:
        hook.remove()
    for name, out in seen:
        if out is output:
            return f"{name}.weight"
    raise SettingError("iDLG needs a model that ends in a linear layer, and this one does not; grant the labels.")
