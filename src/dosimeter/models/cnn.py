"""The small convolutional network of the CVB paper."""

from collections.abc import Sequence

from torch import Tensor, nn

from dosimeter.errors import ModelError
from dosimeter.models.layers import Activation, nonlinear
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape


class CNN(nn.Module):
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
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 5, stride=2),
            nonlinear(activation),
            nn.Conv2d(width, 2 * width, 5, stride=2),
            nonlinear(activation),
            nn.Conv2d(2 * width, 4 * width, 5, stride=2),
            nonlinear(activation),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(4 * width * sides[0] * sides[1], classes, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(self.normalise(images)))
        return logits
