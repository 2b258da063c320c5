"""From the user's model to a target: a private copy, checked before any work is done."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import models
from dosimeter.auditing.setting import Setting
from dosimeter.errors import ModelError
from dosimeter.types import Shape, Target, as_device


def make_target(
    model: nn.Module, shape: Shape, setting: Setting, *, labels: Tensor | None = None, highest: int | None = None
) -> Target:
    """A private copy of the model in evaluation mode, with its loss, checked on one blank batch.

    `labels` are those of one batch, `highest` is the highest label of all.
    """
    if not any(p.requires_grad for p in model.parameters()):
        raise ModelError(
            "The model has no trainable parameters, so its update is empty; nothing can leak or be audited."
        )
    device, dtype = as_device(setting.device), setting.dtype
    copied = copy.deepcopy(model).to(device=device, dtype=dtype).eval()
    mean, std = (t.to(device=device, dtype=dtype) for t in models.normalisation(copied, shape[0]))
    target = Target(
        copied,
        setting.loss or F.cross_entropy,
        shape,
        mean,
        std,
        classification=setting.loss is None,
        step=setting.step,
        compiled=setting.compiled,
        way=setting.way,
    )
    images = torch.full((1 if labels is None else len(labels), *shape), 0.5, dtype=dtype, device=device)
    try:
        output = copied(images)
    except (RuntimeError, ValueError, TypeError) as reason:
        raise ModelError(
            f"The model cannot take images of shape {tuple(images.shape)}: {str(reason).splitlines()[0]}. "
            "Choose data of the size the model expects, or resize it."
        ) from None
    if labels is not None:
        _check_loss(target, output, labels.to(device), highest)
    return target


def _check_loss(target: Target, output: object, labels: Tensor, highest: int | None) -> None:
    """The output fits the loss and the loss is one number."""
    if not isinstance(output, Tensor):
        raise ModelError(f"The model returns a {type(output).__name__}, expected one tensor; wrap it so that it does.")
    top = int(labels.max()) if highest is None else highest
    if target.classification and (output.ndim != 2 or labels.is_floating_point() or top >= output.shape[1]):
        kind = "floating-point targets" if labels.is_floating_point() else f"labels up to {top}"
        raise ModelError(
            f"The model's output of shape {tuple(output.shape)} does not fit cross-entropy on {kind}; "
            "expected (batch, classes) with a column for every label, or give a loss of your own."
        )
    try:
        value = target.loss(output, labels)
    except (RuntimeError, ValueError, TypeError, IndexError) as reason:
        raise ModelError(
            f"The loss cannot take output of shape {tuple(output.shape)} with labels of shape {tuple(labels.shape)}: "
            f"{str(reason).splitlines()[0]}."
        ) from None
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ModelError("The loss must return one number, the mean over the batch; it returns something else.")
