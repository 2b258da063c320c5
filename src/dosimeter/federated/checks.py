"""What a federation's defense cannot do, said before any client trains."""

import copy
from dataclasses import replace

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter import defenses
from dosimeter.defenses import Defense, DpSgd, Moment
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


def clips_examples(defense: Defense) -> float | None:
    """The norm that training clips every example's gradient to; DP-SGD starts from the examples and clips itself."""
    return None if any(isinstance(part, DpSgd) for part in defenses.parts(defense)) else defense.clips()
