"""Residual networks, in their form for 32x32 and in their form for ImageNet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter.errors import SettingError
from dosimeter.models.layers import (
    Activation,
    GlobalPool,
    Norm,
    Padding,
    Pooling,
    conv,
    known,
    nonlinear,
    norm_layer,
    pool_layer,
)
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape

Stem = Literal["cifar", "imagenet"]
Shortcut = Literal["projection", "padding"]


class Plan(NamedTuple):
    """What He et al. put behind a depth: blocks of every stage, channels of the first one, kind of block."""

    blocks: tuple[int, ...]
    channels: int
    bottleneck: bool = False


PLANS = {
    18: Plan((2, 2, 2, 2), 64),
    34: Plan((3, 4, 6, 3), 64),
    50: Plan((3, 4, 6, 3), 64, bottleneck=True),
    101: Plan((3, 4, 23, 3), 64, bottleneck=True),
    152: Plan((3, 8, 36, 3), 64, bottleneck=True),
    # 6n + 2 layers: three stages of n blocks for 32x32 (He et al., Sec. 4.2)
    20: Plan((3, 3, 3), 16),
    32: Plan((5, 5, 5), 16),
    44: Plan((7, 7, 7), 16),
    56: Plan((9, 9, 9), 16),
    110: Plan((18, 18, 18), 16),
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What all blocks of a network share."""

    bottleneck: bool = False
    shortcut: Shortcut = "projection"
    padding: Padding = "zeros"
    activation: Activation = "relu"
    norm: Norm = "batch"

    def convolve(self, inputs: int, outputs: int, size: int, stride: int) -> list[nn.Module]:
        """A convolution and what normalises it."""
        first = conv(inputs, outputs, size, stride=stride, bias=False, padding=self.padding)
        return [first, norm_layer(self.norm, outputs)]


class Widen(nn.Module):
    """The shortcut without parameters (option A of He et al.): every second pixel, missing channels are zero."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.missing = outputs - inputs
        self.stride = stride

    def forward(self, features: Tensor) -> Tensor:
        return F.pad(features[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))


class Block(nn.Module):
    """activation(body(x) + shortcut(x)): two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times the channels out."""

    def __init__(self, inputs: int, channels: int, stride: int, kind: Kind) -> None:
        super().__init__()
        outputs = 4 * channels if kind.bottleneck else channels
        if kind.bottleneck:
            self.body = nn.Sequential(
                *kind.convolve(inputs, channels, 1, 1),
                nonlinear(kind.activation),
                *kind.convolve(channels, channels, 3, stride),
                nonlinear(kind.activation),
                *kind.convolve(channels, outputs, 1, 1),
            )
        else:
            self.body = nn.Sequential(
                *kind.convolve(inputs, channels, 3, stride),
                nonlinear(kind.activation),
                *kind.convolve(channels, channels, 3, 1),
            )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            if kind.shortcut == "projection":
                self.shortcut = nn.Sequential(*kind.convolve(inputs, outputs, 1, stride))
            else:
                self.shortcut = Widen(inputs, outputs, stride)
        self.activation = nonlinear(kind.activation)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.activation(self.body(features) + self.shortcut(features))
        return out


class ResNet(nn.Sequential):
    """A residual network of `depth` layers with `width` times its usual channels (He et al., arXiv:1512.03385).

    Depths 18, 34, 50, 101 and 152 have four stages from 64 channels; 20, 32, 44, 56 and 110 have three stages from 16.
    ResNet-20-4 and ResNet-32-10 of Inverting Gradients (Sec. 5 and 6) are widths 4 and 10.

    Args:
        stem: "cifar" is one 3x3 convolution of stride 1; "imagenet" is 7x7 of stride 2, then 3x3 pooling of stride 2.
        pooling: the kind of every pooling; None leaves each place its usual one, max in the stem and average before
            the classifier. Inverting Gradients, Sec. 4.2, compares with "max".
        padding: the border of the convolutions.
        shortcut: "projection" where sizes change (option B), or "padding", which has no parameters (option A).
        norm: batch norm, or group norm in two groups as in the CVB paper's program.

    11,173,962 parameters at depth 18 on 3x32x32 with 10 classes, 11,181,642 with the ImageNet stem.

    Deviations: the stride of a bottleneck is in its 3x3 convolution, as in torchvision, not in its first 1x1. Inverting
    Gradients cites Wide ResNets for widths 4 and 10, but its program widens this network, which is followed here. Its
    depths 20 and 32 have projections, He et al.'s have padding.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        depth: int = 18,
        width: float = 1,
        stem: Stem = "cifar",
        pooling: Pooling | None = None,
        padding: Padding = "zeros",
        shortcut: Shortcut = "projection",
        norm: Norm = "batch",
        activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if depth not in PLANS:
            raise SettingError(f"A ResNet has a depth of {', '.join(map(str, sorted(PLANS)))}; got {depth}.")
        plan = PLANS[depth]
        kind = Kind(
            bottleneck=plan.bottleneck,
            shortcut=known("shortcut", shortcut, Shortcut),
            padding=padding,
            activation=activation,
            norm=norm,
        )
        channels = round(plan.channels * width)
        self.normalise = Normalise(mean, std)
        self.stem = make_stem(shape[0], channels, stem, pooling, kind)
        stages = []
        inputs = channels
        for stage, count in enumerate(plan.blocks):
            blocks = []
            for place in range(count):
                blocks.append(Block(inputs, channels, 2 if stage > 0 and place == 0 else 1, kind))
                inputs = channels * (4 if plan.bottleneck else 1)
            stages.append(nn.Sequential(*blocks))
            channels *= 2
        self.stages = nn.Sequential(*stages)
        self.pool = GlobalPool(pooling or "average")
        self.classifier = nn.Linear(inputs, classes, bias=bias)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def make_stem(inputs: int, channels: int, stem: Stem, pooling: Pooling | None, kind: Kind) -> nn.Sequential:
    """The layers before the first block."""
    if known("stem", stem, Stem) == "cifar":
        return nn.Sequential(*kind.convolve(inputs, channels, 3, 1), nonlinear(kind.activation))
    shrink = pool_layer(pooling or "max", 3, 2, 1)
    return nn.Sequential(*kind.convolve(inputs, channels, 7, 2), nonlinear(kind.activation), shrink)
