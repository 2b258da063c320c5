"""Weights under the names of other libraries: torchvision's and timm's residual networks and vision transformers.

Their layers are ours, in the same order and with the same layouts, so that a tensor only has to be called otherwise.
torchvision's transformers keep queries, keys and values of `nn.MultiheadAttention` in one matrix as ours do.
"""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from torch import Tensor, nn

BODY = {"conv1": 0, "bn1": 1, "conv2": 3, "bn2": 4, "conv3": 6, "bn3": 7}
"""Where a block of ours has what theirs calls so."""


class Dialect(NamedTuple):
    """How a library calls its tensors: patterns of whole names, and what these are here."""

    library: str
    rules: tuple[tuple[str, str], ...]

    def ours(self, name: str) -> str:
        """The name here; one that no rule knows stays as it is."""
        for pattern, name_here in self.rules:
            if found := re.fullmatch(pattern, name):
                return found.expand(name_here)
        return name


RESNET = Dialect(
    "torchvision or timm",
    (
        (r"conv1\.(\w+)", r"stem.0.\1"),
        (r"bn1\.(\w+)", r"stem.1.\1"),
        *(
            (rf"layer{stage + 1}\.(\d+)\.{theirs}\.(\w+)", rf"stages.{stage}.\1.body.{place}.\2")
            for stage in range(4)
            for theirs, place in BODY.items()
        ),
        *(
            (rf"layer{stage + 1}\.(\d+)\.downsample\.(\d)\.(\w+)", rf"stages.{stage}.\1.shortcut.\2.\3")
            for stage in range(4)
        ),
        (r"fc\.(\w+)", r"classifier.\1"),
    ),
)
TIMM_VIT = Dialect(
    "timm",
    (
        (r"patch_embed\.proj\.(\w+)", r"embed.\1"),
        (r"cls_token", "token"),
        (r"pos_embed", "positions"),
        (r"blocks\.(\d+)\.attn\.qkv\.(\w+)", r"blocks.\1.attention.qkv.\2"),
        (r"blocks\.(\d+)\.attn\.proj\.(\w+)", r"blocks.\1.attention.project.\2"),
        (r"blocks\.(\d+)\.mlp\.fc1\.(\w+)", r"blocks.\1.mlp.0.\2"),
        (r"blocks\.(\d+)\.mlp\.fc2\.(\w+)", r"blocks.\1.mlp.2.\2"),
        (r"head\.(\w+)", r"classifier.\1"),
    ),
)
_LAYER = r"encoder\.layers\.encoder_layer_(\d+)\."
TORCHVISION_VIT = Dialect(
    "torchvision",
    (
        (r"conv_proj\.(\w+)", r"embed.\1"),
        (r"class_token", "token"),
        (r"encoder\.pos_embedding", "positions"),
        (_LAYER + r"ln_([12])\.(\w+)", r"blocks.\1.norm\2.\3"),
        (_LAYER + r"self_attention\.in_proj_(\w+)", r"blocks.\1.attention.qkv.\2"),
        (_LAYER + r"self_attention\.out_proj\.(\w+)", r"blocks.\1.attention.project.\2"),
        (_LAYER + r"mlp\.(?:0|linear_1)\.(\w+)", r"blocks.\1.mlp.0.\2"),  # linear_1 in older files
        (_LAYER + r"mlp\.(?:3|linear_2)\.(\w+)", r"blocks.\1.mlp.2.\2"),
        (r"encoder\.ln\.(\w+)", r"norm.\1"),
        (r"heads\.head\.(\w+)", r"classifier.\1"),
    ),
)
DIALECTS = (RESNET, TIMM_VIT, TORCHVISION_VIT)


def dialect_of(names: Collection[str], known: Collection[str]) -> Dialect | None:
    """The library in whose words more of the names are known than as they stand; None where no other is meant."""
    best, most = None, sum(name in known for name in names)
    for dialect in DIALECTS:
        here = {dialect.ours(name) for name in names}
        fitting = sum(name in known for name in here)
        if fitting > most and len(here) == len(names):  # no two tensors may become one
            best, most = dialect, fitting
    return best


def complete(found: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """With what files of other libraries leave out, as the model has it.

    Images are normalised outside their models, and older files of theirs count no batches.
    """
    left_out = ("normalise.mean", "normalise.std", ".num_batches_tracked")
    own = {name: tensor for name, tensor in model.state_dict().items() if name.endswith(left_out)}
    return {**own, **found}
