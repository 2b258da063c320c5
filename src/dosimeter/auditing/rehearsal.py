"""A model and a loss that are not ours, tried on a blank batch before any work, so that what is wrong with them is said
in one line and whatever fails later is not theirs."""

import copy

import torch
from torch import Tensor, nn

from dosimeter import engine, theirs
from dosimeter.errors import ModelError
from dosimeter.models.form import check_form
from dosimeter.networks import is_leaf, watch
from dosimeter.types import Loss, Shape

LARGE = 2**18
"""Numbers of an image from which on layers may give more than there is room for."""
FEW = 2
"""Images of a blank batch; batch norm with the statistics of its batch refuses one."""


def check_model(model: object) -> None:
    """Refuse what is no module, and parameters of which no gradient can be sent or that are not finite."""
    for name, parameter in check_form(model).items():
        values = parameter.detach().float() if parameter.element_size() < 2 else parameter.detach()
        if parameter.requires_grad and not values.isfinite().all():
            kind = "NaN" if values.isnan().any() else "infinity"
            raise ModelError(f"The model's {name!r} contains {kind}; expected finite weights, give others.")


def outputs(model: nn.Module, images: Tensor, *, budget: int = engine.DEFAULT_BUDGET) -> object:
    """What the model makes of images; large ones are refused where that takes more than the budget."""
    if images[0].numel() > LARGE and (needed := _foreseen(model, images)) > budget:
        raise ModelError(
            f"The model takes about {needed / 2**30:.1f} GiB for {len(images)} images of shape "
            f"{tuple(images.shape[1:])}, more than {budget / 2**30:.2f} GiB; choose smaller images."
        )
    what = f"The model cannot take images of shape {tuple(images.shape)}"
    with theirs.running(what, ModelError, "Choose data of the size the model expects, or resize it."):
        return model(images)


def _foreseen(model: nn.Module, images: Tensor) -> int:
    """Bytes of all that layers give, by their shapes alone; 0 where the model does not run without numbers."""
    try:
        shapes = copy.deepcopy(model).to("meta")
        calls = watch(shapes, lambda: shapes(images.to("meta")), is_leaf)
    except Exception:  # whatever is wrong with the model is said when it runs
        return 0
    return images.element_size() * sum(call.output.numel() for call in calls if isinstance(call.output, Tensor))


def check_loss(loss: Loss, output: object, labels: Tensor, *, classification: bool, highest: int) -> Tensor:
    """The loss of an output that fits it, which is a real scalar.

    Args:
        classification: whether it is cross-entropy.
        highest: the highest label of all.
    """
    if not isinstance(output, Tensor):
        raise ModelError(f"The model returns a {type(output).__name__}, expected one tensor; wrap it so that it does.")
    if classification and (output.ndim != 2 or labels.is_floating_point() or highest >= output.shape[1]):
        kind = "floating-point targets" if labels.is_floating_point() else f"labels up to {highest}"
        raise ModelError(
            f"The model's output of shape {tuple(output.shape)} does not fit cross-entropy on {kind}; "
            "expected (batch, classes) with a column for every label, or give a loss of your own."
        )
    shapes = f"output of shape {tuple(output.shape)} with labels of shape {tuple(labels.shape)}"
    with theirs.running(f"The loss cannot take {shapes}", ModelError):
        value = loss(output, labels)
    if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point() or value.is_meta:
        got = f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            got = f"shape {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
        raise ModelError(
            f"The loss must return a scalar, the mean over the batch (reduction='mean') as a real number, got {got}."
        )
    return value


def check_seen(output: object, images: Tensor) -> None:
    """Refuse an output that has no gradient in the images, of which searches would find nothing, leak or no leak."""
    if isinstance(output, Tensor) and output.requires_grad:
        with theirs.running("The gradient of the model's output in its images cannot be taken", ModelError):
            (slope,) = torch.autograd.grad(output.sum(), images, retain_graph=True, allow_unused=True)
        if slope is None:
            raise ModelError(
                "The model's output has no gradient in its images (does it detach them, or make them integers?), so "
                "that attacks would find nothing, whatever leaks; audit the part of it that takes real numbers."
            )


def check_rows(output: object, images: Tensor) -> None:
    """Refuse an output that has not a row for every image: several victims run through a model at once."""
    if isinstance(output, Tensor) and len(output) != len(images):
        raise ModelError(
            f"The model gives an output of shape {tuple(output.shape)} for {len(images)} images, expected a row for "
            "every image; does it leave some out or join them?"
        )


def check_slopes(model: nn.Module, value: Tensor) -> None:
    """Refuse a loss that has no gradient in the model's parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    with theirs.running("The gradient of the loss in the model's parameters cannot be taken", ModelError):
        slopes = torch.autograd.grad(value, parameters, allow_unused=True) if value.requires_grad else ()
    if all(slope is None for slope in slopes):
        raise ModelError(
            "The loss does not depend on the model's parameters, so its update is empty; does the model or the loss "
            "detach, or run under no_grad?"
        )


def blank(shape: Shape, batch: int, like: Tensor) -> Tensor:
    """Grey images, at most a few."""
    return torch.full((min(batch, FEW), *shape), 0.5, dtype=like.dtype, device=like.device)
