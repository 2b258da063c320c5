"""The network with one very large fully connected layer that Inverting Gradients compares itself with."""

from collections.abc import Sequence

from torch import Tensor, nn

from dosimeter.models.layers import Activation, Padding, conv, nonlinear
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape


class BigLinear(nn.Module):
    """Four 3x3 convolutions, then a fully connected layer as wide as their output, then a linear classifier.

    The "shallow architecture of [35]" of Inverting Gradients, Sec. 3.1 and Fig. 2, where [35] is Wang et al., "Beyond
    Inferring Class Representatives" (arXiv:1812.00535): 32, 64, 128 and 256 channels, strides 2, 1, 2, 1, leaky ReLU.
    On 1x28x28 its layer of 12,544 x 12,544 weights holds 157,364,480 of 157,877,770 parameters; on 3x32x32 it is
    16,384 wide and the network has 269,004,106, a gigabyte.

    Args:
        width: channels of the first convolution, doubled by each of the others.
        hidden: neurons of the large layer; None for as many as it has inputs.

    Deviations: built as Inverting Gradients' authors rebuilt it, but without their softmax before the loss: here the
    loss takes logits. Their variant for 32x32 keeps 12,544 neurons, which does not fit 32x32 images.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        width: int = 32,
        hidden: int | None = None,
        padding: Padding = "zeros",
        activation: Activation = "leaky_relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        inputs, height, across = shape
        self.normalise = Normalise(mean, std)
        layers: list[nn.Module] = []
        for channels, stride in ((width, 2), (2 * width, 1), (4 * width, 2), (8 * width, 1)):
            layers += [conv(inputs, channels, 3, stride=stride, bias=True, padding=padding), nonlinear(activation)]
            inputs = channels
        self.features = nn.Sequential(*layers, nn.Flatten())
        quarter = [(side + 3) // 4 for side in (height, across)]  # two strides of 2 with padding round up
        features = inputs * quarter[0] * quarter[1]
        hidden = features if hidden is None else hidden
        self.dense = nn.Sequential(nn.Linear(features, hidden, bias=bias), nonlinear(activation))
        self.classifier = nn.Linear(hidden, classes, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dense(self.features(self.normalise(images))))
        return logits
