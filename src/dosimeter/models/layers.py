"""The small parts that the architectures choose by name: activations, poolings, paddings, normalisations.

None of them works in place, since attacks differentiate gradients a second time.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar, get_args

from torch import Tensor, nn

from dosimeter import checks
from dosimeter.errors import SettingError, unknown

Activation = Literal["relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "sigmoid", "tanh", "identity"]
Pooling = Literal["max", "average"]
Padding = Literal["zeros", "circular"]
Norm = Literal["batch", "group", "none"]
Start = Literal["torch", "lecun"]

Name = TypeVar("Name", bound=str)

CUT = 0.8796256610342398
"""The deviation of a normal of deviation 1 that is cut at -2 and 2."""

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}


class GlobalPool(nn.Module):
    """(B, C, H, W) -> (B, C): the mean or the maximum of every channel."""

    def __init__(self, kind: Pooling = "average") -> None:
        super().__init__()
        self.kind = known("pooling", kind, Pooling)

    def forward(self, features: Tensor) -> Tensor:
        return features.amax((2, 3)) if self.kind == "max" else features.mean((2, 3))

    def extra_repr(self) -> str:
        return self.kind


def nonlinear(name: Activation) -> nn.Module:
    """A new activation of that name."""
    return ACTIVATIONS[known("activation", name, Activation)]()


def pool_layer(kind: Pooling, size: int, stride: int | None = None, padding: int = 0) -> nn.Module:
    """Pooling over size x size windows; the stride is the size unless given."""
    layer = nn.MaxPool2d if known("pooling", kind, Pooling) == "max" else nn.AvgPool2d
    return layer(size, stride, padding)


def conv(inputs: int, outputs: int, size: int, *, stride: int = 1, bias: bool, padding: Padding) -> nn.Conv2d:
    """A convolution with an odd kernel that keeps the side at stride 1."""
    mode = known("padding", padding, Padding)
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=bias, padding_mode=mode)


def dense_layers(sizes: Sequence[int], activation: Activation, *, bias: bool, dropout: float = 0.0) -> nn.Sequential:
    """Fully connected layers from each size to the next, activated."""
    checks.share("A layer", "a dropout", dropout, one=False)
    if dropout and len(sizes) < 2:
        raise SettingError(f"A dropout of {dropout:g} does nothing without hidden layers in the head; leave it out.")
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=bias), nonlinear(activation)]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


def norm_layer(kind: Norm, channels: int) -> nn.Module:
    """Batch norm, group norm in two groups (as the CVB paper's program has it), or nothing, for (B, C, H, W)."""
    if known("norm", kind, Norm) == "none":
        return nn.Identity()
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(2, channels)


def begin(model: nn.Module, start: Start) -> None:
    """Leave convolutions and linear layers as torch starts them, or start them as flax does.

    "lecun" is a normal of variance 1 / fan-in, cut at two deviations, and biases of 0. Torch's uniform has a third of
    that variance, so its updates are smaller and the same noise hides more of them.
    """
    if known("start", start, Start) == "torch":
        return
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            spread = layer.weight[0].numel() ** -0.5 / CUT
            nn.init.trunc_normal_(layer.weight, std=spread, a=-2 * spread, b=2 * spread)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def known(setting: str, name: Name, choices: object) -> Name:
    """The name, if it is one of the literal's."""
    if name not in get_args(choices):
        raise SettingError(unknown(setting, str(name), get_args(choices)))
    return name
