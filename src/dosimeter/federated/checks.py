"""What a federation's defense cannot do, said before any client trains."""

import copy
from dataclasses import replace

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter.defenses import Defense, Moment
from dosimeter.errors import SettingError
from dosimeter.federated.protocol import Protocol
from dosimeter.types import Target


def check_defense(defense: Defense, target: Target, protocol: Protocol) -> None:
    """Refuse a defense that clips examples where there are none, or that needs a batch where an update is perturbed."""
    mixing = next((name for name, m in target.model.named_modules() if isinstance(m, _BatchNorm)), None)
    if clips_examples(defense) is not None and mixing is not None:
        raise SettingError(
            f"The defense clips every image's own gradient, but batch norm ({mixing!r}) mixes the images of a batch; "
            "use group norm instead, for instance --model resnet18-gn."
        )
    if protocol.perturbed == "update":
        target = replace(target, model=copy.deepcopy(target.model))  # which the defense may run
        private = defense.private(target.model)
        change = {name: torch.zeros_like(p) for name, p in target.parameters.items() if name not in private}
        try:
            defense.on_gradient(change, Moment(target=target), torch.Generator().manual_seed(0))
        except SettingError as reason:
            raise SettingError(
                "Expected a defense that acts on a change of weights alone (perturbed=update), got one that does not: "
                f"{str(reason).partition(';')[0].rstrip('.')}; use perturbed=steps."
            ) from None


def clips_examples(defense: Defense) -> float | None:
    """The norm that training clips every example's gradient to; one that starts from the examples clips itself."""
    return None if defense.recomputes else defense.clips()
