"""What a model must be for any use of it, whoever made it."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dosimeter import theirs
from dosimeter.errors import ModelError


def check_form(model: object) -> dict[str, nn.Parameter]:
    """The parameters of a module that has some; refused where no gradient of them can be sent, whatever they are."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"Expected a torch.nn.Module, got a {type(model).__name__}; return the model itself.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("The model is TorchScript, which cannot be looked into; give the module that it was made of.")
    with theirs.running("The model's parameters cannot be listed", ModelError):
        parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ModelError(f"The model's {name!r} has no size yet; run the model once on an image before.")
        if parameter.layout != torch.strided or parameter.is_meta or parameter.is_complex():
            kind = "on the device meta" if parameter.is_meta else f"of {parameter.dtype}, {parameter.layout}"
            raise ModelError(f"The model's {name!r} is {kind.replace('torch.', '')}; expected dense real numbers.")
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ModelError(
            "The model has no trainable parameters, so its update is empty; nothing can leak or be audited."
        )
    return parameters
