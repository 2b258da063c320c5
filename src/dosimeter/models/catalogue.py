"""The models that go by name, and how they are built."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from dosimeter import checks
from dosimeter.errors import ModelError, SettingError, unknown
from dosimeter.models.convnet import ConvNet
from dosimeter.models.mlp import MLP
from dosimeter.models.resnet import ResNet
from dosimeter.models.small import CNN, BigLinear, LeNet, TwoConv
from dosimeter.models.vgg import VGG16
from dosimeter.models.vit import ViT
from dosimeter.rng import scoped
from dosimeter.types import Shape

GIVEN = ("shape", "classes", "mean", "std")
"""What every model is built from; all its other arguments are settings."""

OWN = "A model of your own is given as path/to/file.py:function."


MOST_DEPTH = 1000
"""Layers, each of which takes its time to be made."""
MOST_PARAMETERS = 200_000_000
"""Of a model of the list; an audit holds them several times over."""
_UNBUILT = (ArithmeticError, AssertionError, MemoryError, RuntimeError, TypeError, ValueError)
"""What torch raises of settings that make no layer."""


class Entry(NamedTuple):
    """A model that the command line knows by name."""

    make: Callable[..., nn.Module]  # takes shape, classes, mean and std, and settings of its own
    paper: str
    about: str
    normalised: bool = True  # whether its paper normalises images
    least: int = 1  # pixels a side that it needs
    multiple: int = 1  # what a side must be a multiple of

    def settings(self) -> dict[str, object]:
        """What can be set, with defaults."""
        known = inspect.signature(self.make).parameters
        return {key: parameter.default for key, parameter in known.items() if key not in GIVEN}


BY_NAME = {
    "cnn": Entry(
        CNN, "CVB, Sec. III-A", "3 convolutions 5x5 (16, 32, 64), stride 2, ReLU, linear; needs 29x29 or more", least=29
    ),
    "lenet": Entry(
        LeNet, "DLG", "3 convolutions 5x5 (12 each), sigmoid, linear; weights in (-0.5, 0.5)", normalised=False
    ),
    "lenet-bn": Entry(
        partial(LeNet, batch_norm="first", spread=None),
        "FedKL, Sec. IV-C",
        "LeNet with batch norm after the first convolution and torch's own start",
    ),
    "mlp": Entry(MLP, "PPP, Sec. 3.2", "4 x 1,024 with batch norm and ReLU, linear"),
    "mlp-no-bias": Entry(partial(MLP, bias=False), "PPP, Sec. 3.1", "the same without biases"),
    "mlp-bayes": Entry(
        partial(MLP, width=500, depth=5, batch_norm=False), "Bayes, Sec. 6", "5 x 500 with ReLU, linear"
    ),
    "mlp-2": Entry(
        partial(MLP, width=100, depth=1, batch_norm=False),
        "Bayes, Fig. 4",
        "one hidden layer of 100, for 20 numbers as 1x1x20 images",
        normalised=False,
    ),
    "cnn-bayes": Entry(
        partial(TwoConv, start="lecun"),
        "Bayes, Table 2",
        "2 convolutions 3x3 (32, 64), average pooling, 100, linear; weights start as in flax",
        least=4,
    ),
    "convbig": Entry(
        partial(TwoConv, kernel=1, hidden=(2000, 1000)),
        "Bayes, Table 3",
        "2 convolutions 3x3 and 1x1 (32, 64), average pooling, 2,000, 1,000, linear",
        least=4,
    ),
    "convnet": Entry(
        ConvNet, "IG, Fig. 11", "8 convolutions 3x3 from 64 channels, batch norm, 2 max poolings", least=9
    ),
    "biglinear": Entry(
        BigLinear, "IG, Fig. 2", "4 convolutions and a square layer as wide as their output (Wang et al.)"
    ),
    "resnet18": Entry(
        ResNet, "IG, Sec. 4.2; PPP, Sec. 5.3", "ResNet-18 for small images: 3x3 stem, no pooling in the stem"
    ),
    "resnet18-imagenet": Entry(
        partial(ResNet, stem="imagenet"), "IG, Fig. 7; FedKL, Table III", "ResNet-18 with 7x7 stem and max pooling"
    ),
    "resnet18-gn": Entry(
        partial(ResNet, stem="imagenet", norm="group"),
        "CVB, Sec. VI-D",
        "ResNet-18 with 7x7 stem and 2 groups, as released",
    ),
    "resnet20": Entry(partial(ResNet, depth=20), "IG, Sec. 4.2; FedKL, Table III", "3 stages from 16 channels"),
    "resnet20-4": Entry(partial(ResNet, depth=20, width=4), "IG, Sec. 5.1", "ResNet-20 of 4 times the channels"),
    "resnet32": Entry(partial(ResNet, depth=32), "FedKL, Table III", "3 stages from 16 channels"),
    "resnet32-10": Entry(partial(ResNet, depth=32, width=10), "IG, Sec. 6.2", "ResNet-32 of 10 times the channels"),
    "resnet34": Entry(partial(ResNet, depth=34), "IG, Sec. 4.2; FedKL, Table III", "ResNet-34 for small images"),
    "resnet50": Entry(partial(ResNet, depth=50), "IG, Sec. 4.2", "ResNet-50 for small images"),
    "resnet152": Entry(
        partial(ResNet, depth=152, stem="imagenet"),
        "IG, as CVB Sec. II-C has it",
        "ResNet-152 with 7x7 stem and max pooling",
    ),
    "vgg16": Entry(VGG16, "FedKL, Table III", "13 convolutions, max pooling, linear; needs 32x32 or more", least=32),
    "vgg16-bn": Entry(
        partial(VGG16, norm="batch"), "FedKL, Table III", "the same with batch norm; needs 32x32 or more", least=32
    ),
    "vit": Entry(ViT, "CVB, Sec. VI-D", "patches 4x4, 4 blocks of width 256, 16 heads, GELU", least=4, multiple=4),
    "vit-released": Entry(
        partial(ViT, hidden=256, twice=True, spread=1.0, bias=False),
        "CVB, Sec. VI-D",
        "the same as released: MLP of 256 with GELU after both layers, no biases",
        least=4,
        multiple=4,
    ),
    "vit-ti": Entry(
        partial(ViT, depth=12, width=192, heads=3), "DeiT, Table 1", "ViT-Ti with patches 4x4", least=4, multiple=4
    ),
    "vit-s": Entry(
        partial(ViT, depth=12, width=384, heads=6), "DeiT, Table 1", "ViT-S with patches 4x4", least=4, multiple=4
    ),
}


def build(
    name: str,
    *,
    shape: Shape,
    classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int,
    settings: Mapping[str, object] | None = None,
) -> nn.Module:
    """The untrained model of that name; the same seed gives the same weights.

    Args:
        settings: what its class takes beside shape, classes, mean and std, for instance {"pooling": "average"}.
    """
    entry = _entry(name, settings)
    _check_parameters(name, shape, classes, settings)
    scale = {"mean": mean, "std": std} if entry.normalised else {}
    try:
        with scoped(seed, "weights"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of layers without neurons is refused below
            model = entry.make(shape=shape, classes=classes, **scale, **(settings or {}))
    except _UNBUILT as reason:
        if not settings:
            raise  # no setting of the user's is to blame
        raise SettingError(
            f"{_asked(name, settings)}: {(str(reason) or type(reason).__name__).splitlines()[0]}"
        ) from None
    if empty := [key for key, parameter in model.named_parameters() if not parameter.numel()]:
        raise SettingError(f"{_asked(name, settings)}: {empty[0]!r} would have no entries.")
    return model


def _check_parameters(name: str, shape: Shape, classes: int, settings: Mapping[str, object] | None) -> None:
    """Refuse a model that is too large, found without making it; what else is wrong with it is said once it is made."""
    with warnings.catch_warnings(), suppress(*_UNBUILT, SettingError):
        warnings.simplefilter("ignore")
        many = count_parameters(name, shape=shape, classes=classes, settings=settings)
        if many > MOST_PARAMETERS:
            form = "x".join(map(str, shape))
            raise ModelError(
                f"{_asked(name, settings)} for images of {form} in {classes:,} classes: it would have {many:,} "
                f"parameters, more than {MOST_PARAMETERS:,}; take smaller images, fewer classes or a narrower model."
            )


def _asked(name: str, settings: Mapping[str, object] | None) -> str:
    words = ", ".join(f"{key}={value}" for key, value in (settings or {}).items())
    return f"The model {name!r} cannot be built with {words or 'its defaults'}"


def count_parameters(name: str, *, shape: Shape, classes: int, settings: Mapping[str, object] | None = None) -> int:
    """How many parameters the model of that name has, found without making any of them."""
    entry = _entry(name, settings)
    with torch.device("meta"):
        model = entry.make(shape=shape, classes=classes, **(settings or {}))
    return sum(parameter.numel() for parameter in model.parameters())


def _entry(name: str, settings: Mapping[str, object] | None) -> Entry:
    if name not in BY_NAME:
        raise SettingError(unknown("model", name, BY_NAME, OWN))
    entry = BY_NAME[name]
    for setting in settings or {}:
        if setting not in entry.settings():
            raise SettingError(unknown(f"setting of the model {name!r}", setting, entry.settings()))
    for setting, value in (settings or {}).items():
        for number in value if isinstance(value, Sequence) else (value,):
            if isinstance(number, float):
                checks.at_least(f"The model {name!r}", setting, number, 0)
            elif isinstance(number, int) and not isinstance(number, bool) and setting != "depth":
                checks.count(f"The model {name!r}", setting, number)
            if setting == "depth" and isinstance(number, int):
                # The class token of a ViT sees the image through blocks alone.
                checks.count(f"The model {name!r}", setting, number, int(name.startswith("vit")), MOST_DEPTH)
    return entry
