"""The multi-layer perceptron of the PPP and CVB papers."""

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape


class MLP(nn.Module):
    """Four hidden layers of 1,024 neurons, each followed by batch norm and ReLU, then a classifier (PPP, Sec. 3.2)."""

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        width: int = 1024,
        depth: int = 4,
    ) -> None:
        super().__init__()
        self.normalise = Normalise(mean, std)
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = prod(shape)
        for _ in range(depth):
            layers += [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU()]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(self.normalise(images)))
        return logits
