"""The two convolutional networks of the Bayesian framework's paper."""

from collections.abc import Sequence

from torch import Tensor, nn

from dosimeter.errors import ModelError
from dosimeter.models.layers import Activation, Padding, Pooling, Start, begin, known, nonlinear, pool_layer
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape


class TwoConv(nn.Module):
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
        dense: list[nn.Module] = []
        inputs = 2 * width * sides[0] * sides[1]
        for neurons in hidden:
            dense += [nn.Linear(inputs, neurons, bias=bias), nonlinear(activation)]
            inputs = neurons
        self.dense = nn.Sequential(*dense)
        self.classifier = nn.Linear(inputs, classes, bias=bias)
        begin(self, start)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dense(self.features(self.normalise(images))))
        return logits
