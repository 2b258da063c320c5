"""VGG-16, in its form for 32x32 and in its form for ImageNet."""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from dosimeter.errors import ModelError
from dosimeter.models.layers import (
    Activation,
    Norm,
    Padding,
    Pooling,
    conv,
    dense_layers,
    known,
    nonlinear,
    norm_layer,
    pool_layer,
)
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape

Head = Literal["cifar", "imagenet"]

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Configuration D of Simonyan and Zisserman, Table 1: channels of the convolutions before each pooling."""


class VGG16(nn.Sequential):
    """Thirteen 3x3 convolutions in five stages with 2x2 pooling, then fully connected layers (arXiv:1409.1556).

    FedKL, Table I and III, has it with batch norm on 224x224. With the ImageNet head and 1,000 classes it holds
    138,357,544 parameters and 138,365,992 with batch norm; with the head for 32x32 and 10 classes 14,719,818 and
    14,728,266.

    Args:
        norm: what follows each convolution.
        head: "cifar" is the linear classifier alone; "imagenet" pools to 7x7 and has two layers of 4,096 before it.
        width: multiple of the usual channels and neurons.
        dropout: of the two layers of the ImageNet head, while training.

    Deviations: no dropout unless asked for (the original has 0.5). The head for 32x32 is the custom of the field, where
    two layers of 4,096 after 512 features would be most of the network.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        norm: Norm = "none",
        head: Head = "cifar",
        width: float = 1,
        dropout: float = 0.0,
        pooling: Pooling = "max",
        padding: Padding = "zeros",
        activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        inputs, height, across = shape
        if min(height, across) < 32:
            raise ModelError(
                f"VGG-16 halves images five times, so it needs 32x32 pixels or more, got {height}x{across}; "
                "resize them, e.g. --size 32."
            )
        self.normalise = Normalise(mean, std)
        layers: list[nn.Module] = []
        for stage in STAGES:
            for channels in stage:
                outputs = round(width * channels)
                layers += [conv(inputs, outputs, 3, bias=True, padding=padding)]
                layers += [] if norm == "none" else [norm_layer(norm, outputs)]
                layers += [nonlinear(activation)]
                inputs = outputs
            layers.append(pool_layer(pooling, 2))
        small = known("head", head, Head) == "cifar"
        self.features = nn.Sequential(*layers, *([] if small else [nn.AdaptiveAvgPool2d(7)]), nn.Flatten())
        inputs *= (height // 32) * (across // 32) if small else 49
        sizes = (inputs, *(() if small else (round(width * 4096),) * 2))
        self.dense = dense_layers(sizes, activation, bias=bias, dropout=dropout)
        self.classifier = nn.Linear(sizes[-1], classes, bias=bias)
        for layer in self.features:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
