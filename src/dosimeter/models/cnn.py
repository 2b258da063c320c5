"""The small convolutional network of the CVB paper."""

from collections.abc import Sequence

from torch import Tensor, nn

from dosimeter.errors import ModelError
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape


class CNN(nn.Module):
    """Three 5x5 convolutions of 16, 32 and 64 channels, stride 2, no padding, ReLU, then a linear classifier.

    65,962 parameters on 32x32x3 with 10 classes (CVB, Table I). Without padding 32x32 shrinks to 14, 5 and 1, so an
    image needs at least 29 pixels a side: MNIST is resized to 32x32, as in the paper.
    """

    def __init__(
        self, *, shape: Shape, classes: int, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)
    ) -> None:
        super().__init__()
        channels, height, width = shape
        sides = []
        for side in (height, width):
            for _ in range(3):
                side = (side - 5) // 2 + 1
            sides.append(side)
        if min(sides) < 1:
            raise ModelError(
                f"The CNN needs images of at least 29x29 pixels, got {height}x{width}; resize them, e.g. --size 32."
            )
        self.normalise = Normalise(mean, std)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(64 * sides[0] * sides[1], classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(self.normalise(images)))
        return logits
