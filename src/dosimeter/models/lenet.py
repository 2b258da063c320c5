"""The LeNet with sigmoids on which DLG was shown."""

from collections.abc import Sequence

from torch import Tensor, nn

from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape


class LeNet(nn.Module):
    """Three 5x5 convolutions of 12 channels, strides 2, 2, 1, padding 2, sigmoid, then a linear classifier.

    Weights and biases start uniform in (-0.5, 0.5). 768 features on 32x32 and 588 on 28x28. DLG feeds images in
    [0, 1] as they are, which is the default here.
    """

    def __init__(
        self, *, shape: Shape, classes: int, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.normalise = Normalise(mean, std)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=1, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
        )
        quarter = [(side + 3) // 4 for side in (height, width)]  # two strides of 2 with padding round up
        self.classifier = nn.Linear(12 * quarter[0] * quarter[1], classes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(self.normalise(images)))
        return logits
