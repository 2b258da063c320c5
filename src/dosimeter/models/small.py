"""Small convolutional networks: of the CVB paper, of DLG, of the Bayes paper, and one with a very large layer."""

from collections.abc import Sequence
from typing import Literal

from torch import nn

from dosimeter.errors import ModelError
from dosimeter.models.layers import (
    Activation,
    Padding,
    Pooling,
    Start,
    begin,
    conv,
    dense_layers,
    known,
    nonlinear,
    pool_layer,
)
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape

BatchNorm = Literal["none", "first", "all"]


class CNN(nn.Sequential):
    """Three 5x5 convolutions of 16, 32 and 64 channels, stride 2, no padding, ReLU, then a linear classifier.

    65,962 parameters on 32x32x3 with 10 classes (CVB, Table II). Without padding 32x32 shrinks to 14, 5 and 1, so an
    image needs at least 29 pixels a side: MNIST is resized to 32x32, as in the paper. `width` is the first
    convolution's channels, `bias` the classifier's.

    Deviations: none known; the paper leaves the padding out, and none is what its parameter count needs.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        width: int = 16,
        activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        channels, height, across = shape
        sides = []
        for side in (height, across):
            for _ in range(3):
                side = (side - 5) // 2 + 1
            sides.append(side)
        if min(sides) < 1:
            raise ModelError(
                f"The CNN needs images of at least 29x29 pixels, got {height}x{across}; resize them, e.g. --size 32."
            )
        self.normalise = Normalise(mean, std)
        layers: list[nn.Module] = []
        for outputs in (width, 2 * width, 4 * width):
            layers += [nn.Conv2d(channels, outputs, 5, stride=2), nonlinear(activation)]
            channels = outputs
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Linear(4 * width * sides[0] * sides[1], classes, bias=bias)


class LeNet(nn.Sequential):
    """Three 5x5 convolutions of 12 channels, strides 2, 2, 1, padding 2, sigmoid, then a linear classifier.

    Weights and biases start uniform in (-0.5, 0.5). 768 features on 32x32 and 588 on 28x28. DLG feeds images in
    [0, 1] as they are, which is the default here. FedKL (Sec. IV-C) compares it with batch norm after the first
    convolution, where its key-lock module sits (`batch_norm` "first"), or after all.

    Args:
        width: channels of every convolution.
        batch_norm: which convolutions have it.
        affine: whether batch norm has a scale and shift of its own; a lock brings them from outside.
        spread: weights and biases start uniform in (-spread, spread); None for torch's own start, which FedKL takes.

    Deviations: batch norm's scale and shift start at 1 and 0, whatever the spread. FedKL's program has none but the
    lock's; where its text puts batch norm is not said, so both places can be chosen.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        width: int = 12,
        batch_norm: BatchNorm = "none",
        affine: bool = True,
        spread: float | None = 0.5,
        padding: Padding = "zeros",
        activation: Activation = "sigmoid",
        bias: bool = True,
    ) -> None:
        super().__init__()
        inputs, height, across = shape
        normed = {"none": 0, "first": 1, "all": 3}[known("batch_norm", batch_norm, BatchNorm)]
        self.normalise = Normalise(mean, std)
        layers: list[nn.Module] = []
        for place, stride in enumerate((2, 2, 1)):
            layers += [conv(inputs, width, 5, stride=stride, bias=True, padding=padding)]
            layers += [nn.BatchNorm2d(width, affine=affine)] if place < normed else []
            layers += [nonlinear(activation)]
            inputs = width
        self.features = nn.Sequential(*layers, nn.Flatten())
        quarter = [(side + 3) // 4 for side in (height, across)]  # two strides of 2 with padding round up
        self.classifier = nn.Linear(width * quarter[0] * quarter[1], classes, bias=bias)
        if spread is not None:
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    for parameter in layer.parameters():
                        nn.init.uniform_(parameter, -spread, spread)


class TwoConv(nn.Sequential):
    """Two convolutions, each with ReLU and 2x2 average pooling, then fully connected layers.

    With the defaults it is the CNN that the Bayes paper attacks in its Table 2: 3x3 convolutions of 32 and 64 channels,
    layers of 100 and `classes`; 333,526 parameters on 1x28x28 and 430,102 on 3x32x32 with 10 classes. With `kernel` 1
    and `hidden` (2000, 1000) it is ConvBig (Table 3), 12,384,018 parameters on 3x32x32.

    Args:
        kernel: side of the second kernel; its padding is 1 in both networks, so a 1x1 kernel adds a border.
        width: channels of the first convolution; the second has twice as many.
        hidden: neurons of the fully connected layers before the classifier.
        start: of the weights; the program behind Table 2 is written in flax and starts them by "lecun".

    Deviations: logits instead of their log-softmax, which cross-entropy cannot tell apart. The paper gives the CNN's
    layers in its program alone.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        kernel: int = 3,
        width: int = 32,
        hidden: Sequence[int] = (100,),
        pooling: Pooling = "average",
        padding: Padding = "zeros",
        activation: Activation = "relu",
        bias: bool = True,
        start: Start = "torch",
    ) -> None:
        super().__init__()
        channels, height, across = shape
        sides = [(side // 2 + 3 - kernel) // 2 for side in (height, across)]
        if min(sides) < 1:
            raise ModelError(
                f"This network needs images of at least 4x4 pixels, got {height}x{across}; resize them, e.g. --size 32."
            )
        mode = known("padding", padding, Padding)
        self.normalise = Normalise(mean, std)
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, padding_mode=mode),
            nonlinear(activation),
            pool_layer(pooling, 2),
            nn.Conv2d(width, 2 * width, kernel, padding=1, padding_mode=mode),
            nonlinear(activation),
            pool_layer(pooling, 2),
            nn.Flatten(),
        )
        sizes = (2 * width * sides[0] * sides[1], *hidden)
        self.dense = dense_layers(sizes, activation, bias=bias)
        self.classifier = nn.Linear(sizes[-1], classes, bias=bias)
        begin(self, start)


class BigLinear(nn.Sequential):
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
