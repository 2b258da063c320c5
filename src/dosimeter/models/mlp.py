"""Multi-layer perceptrons: of the PPP and CVB papers, and of the Bayes paper."""

from collections.abc import Sequence
from math import prod

from torch import nn

from dosimeter.models.layers import Activation, nonlinear
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape


class MLP(nn.Sequential):
    """`depth` hidden layers of `width` neurons, each with batch norm and ReLU, then a linear classifier.

    The defaults are PPP's (Sec. 3.2), four layers of 1,024; its Sec. 3.1 removes the `bias` of all fully connected
    layers, which the paper says stops analytic attacks. The Bayes paper (Sec. 6) breaks PRECODE on five layers of 500
    without batch norm and attacks a 2-layer perceptron on 20 numbers, which are images of 1x1x20 here.

    Deviations: PPP's softmax is part of the loss. The Bayes paper leaves the width of the 2-layer perceptron out; it is
    100 under the name `mlp-2`. Its program starts the weights of the five layers uniform in (-0.05, 0.05), not here.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        width: int = 1024,
        depth: int = 4,
        batch_norm: bool = True,
        activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.normalise = Normalise(mean, std)
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = prod(shape)
        for _ in range(depth):
            layers += [nn.Linear(inputs, width, bias=bias)]
            layers += [nn.BatchNorm1d(width)] if batch_norm else []
            layers += [nonlinear(activation)]
            inputs = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes, bias=bias)
