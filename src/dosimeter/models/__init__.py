"""The architectures of the papers. They take images in [0, 1]: normalisation is their first layer."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import nn

from dosimeter.errors import SettingError, unknown
from dosimeter.models.cnn import CNN
from dosimeter.models.lenet import LeNet
from dosimeter.models.mlp import MLP
from dosimeter.models.normalise import Normalise, normalisation
from dosimeter.rng import scoped
from dosimeter.types import Shape


class Entry(NamedTuple):
    """A model that the command line knows by name."""

    make: Callable[..., nn.Module]  # takes shape, classes, mean and std
    paper: str
    about: str
    normalised: bool = True  # whether its paper normalises images
    least: int = 1  # pixels a side that it needs


BY_NAME = {
    "cnn": Entry(
        CNN, "CVB, Sec. IV", "3 convolutions 5x5 (16, 32, 64), stride 2, ReLU, linear; needs 29x29 or more", least=29
    ),
    "lenet": Entry(
        LeNet, "DLG", "3 convolutions 5x5 (12 each), sigmoid, linear; weights in (-0.5, 0.5)", normalised=False
    ),
    "mlp": Entry(MLP, "PPP, Sec. 3.2", "4 x 1,024 with batch norm and ReLU, linear"),
}


def build(
    name: str, *, shape: Shape, classes: int, mean: Sequence[float], std: Sequence[float], seed: int
) -> nn.Module:
    """The untrained model of that name; the same seed gives the same weights."""
    if name not in BY_NAME:
        raise SettingError(unknown("model", name, BY_NAME, "A model of your own is given as path/to/file.py:function."))
    entry = BY_NAME[name]
    scale = {"mean": mean, "std": std} if entry.normalised else {}
    with scoped(seed, "weights"):
        return entry.make(shape=shape, classes=classes, **scale)


__all__ = ["BY_NAME", "CNN", "MLP", "Entry", "LeNet", "Normalise", "build", "normalisation"]
