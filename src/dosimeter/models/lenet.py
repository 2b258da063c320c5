"""The LeNet with sigmoids on which DLG was shown, with and without batch norm."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from dosimeter.models.layers import Activation, Padding, conv, known, nonlinear
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape

BatchNorm = Literal["none", "first", "all"]


class LeNet(nn.Module):
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

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(self.normalise(images)))
        return logits
