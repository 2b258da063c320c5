"""The ConvNet of Inverting Gradients, a rough analogue of AlexNet."""

from collections.abc import Sequence

from torch import nn

from dosimeter.errors import ModelError, SettingError
from dosimeter.models.layers import Activation, Norm, Padding, Pooling, conv, nonlinear, norm_layer, pool_layer
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape

BEFORE = (1, 2, 2, 4, 4, 4)
"""Channels of the convolutions before the first pooling, in units of the width D; after it all have 4 D."""


class ConvNet(nn.Sequential):
    """3x3 convolutions with batch norm and ReLU, 3x3 pooling after the sixth and the last, a linear classifier.

    Inverting Gradients, App. B.3 and Fig. 11: eight convolutions of D, 2D, 2D, 4D, 4D, 4D | 4D, 4D channels with
    D = 64 (`width`); 2,904,970 parameters on 3x32x32 with 10 classes. Sec. 4.2 compares `pooling` "average" with "max"
    and `padding` "circular" with "zeros".

    Deviations: `depth` is 8 as in Fig. 11 and the released program; Sec. 3.1 speaks of 7 convolutions and the Bayes
    paper's Table 4 lists 9. Where they differ is said in Table 4 alone, after the first pooling, so 7 is built the same
    way. Table 4 prints a classifier of 3 classes.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        width: int = 64,
        depth: int = 8,
        pooling: Pooling = "max",
        padding: Padding = "zeros",
        norm: Norm = "batch",
        activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        channels, height, across = shape
        if min(height, across) < 9:
            raise ModelError(
                f"The ConvNet needs images of at least 9x9 pixels, got {height}x{across}; resize them, e.g. --size 32."
            )
        if depth <= len(BEFORE):
            raise SettingError(f"The ConvNet has 7 or more convolutions (depth), got {depth}.")
        after = (4,) * (depth - len(BEFORE))
        self.normalise = Normalise(mean, std)
        self.features = nn.Sequential(
            *stack(channels, [n * width for n in BEFORE], padding, norm, activation),
            pool_layer(pooling, 3),
            *stack(4 * width, [n * width for n in after], padding, norm, activation),
            pool_layer(pooling, 3),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(4 * width * (height // 3 // 3) * (across // 3 // 3), classes, bias=bias)


def stack(inputs: int, channels: Sequence[int], padding: Padding, kind: Norm, act: Activation) -> list[nn.Module]:
    """Convolutions of these channels, each normalised and activated."""
    layers: list[nn.Module] = []
    for outputs in channels:
        layers += [conv(inputs, outputs, 3, bias=True, padding=padding), norm_layer(kind, outputs), nonlinear(act)]
        inputs = outputs
    return layers
