"""LPIPS v0.1: the distance of two images in the features of a network trained on photographs. Smaller is better.

Zhang, Isola, Efros, Shechtman, Wang: The unreasonable effectiveness of deep features as a perceptual metric, 2018.

    d(a, b) = sum over layers l of  mean over positions of  sum over channels c of  w_lc (fa_lc - fb_lc)^2

where f_l are the features after a ReLU, scaled to length 1 over the channels at every position, and w_l >= 0 is the
learned head of the layer. Neither the networks nor the heads are part of this package; `Lpips.load` reads them.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from dosimeter.errors import DataError
from dosimeter.metrics.images import check_pair
from dosimeter.unpacking import check_pickle

SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
"""ImageNet's mean and deviation a channel for images in [-1, 1]."""

SIDE = 32
"""Images too small for a network are enlarged until their shorter side has this many pixels."""

CHUNK = 2**19
"""Pixels in one pass through the network: 512 images of 32 x 32, 10 of 224 x 224."""


class Conv(NamedTuple):
    """A convolution with bias and ReLU, at its place in the `features` of torchvision's network."""

    place: int
    shape: tuple[int, int, int, int]  # output and input channels, kernel
    pool: bool = False  # a max-pooling comes before it
    read: bool = False  # LPIPS compares what comes out of it


class Backbone(NamedTuple):
    """A network up to the last layer that LPIPS reads."""

    name: str
    convs: tuple[Conv, ...]
    pool: int  # side of the max-pooling, always at stride 2
    first: tuple[int, int]  # stride and padding of the first convolution; the others keep the size
    minimum: int  # the smallest side of an image that no pooling reduces to nothing


ALEXNET = Backbone(
    name="AlexNet",
    convs=(
        Conv(0, (64, 3, 11, 11), read=True),
        Conv(3, (192, 64, 5, 5), pool=True, read=True),
        Conv(6, (384, 192, 3, 3), pool=True, read=True),
        Conv(8, (256, 384, 3, 3), read=True),
        Conv(10, (256, 256, 3, 3), read=True),
    ),
    pool=3,
    first=(4, 2),
    minimum=31,
)

VGG16 = Backbone(
    name="VGG-16",
    convs=(
        Conv(0, (64, 3, 3, 3)),
        Conv(2, (64, 64, 3, 3), read=True),
        Conv(5, (128, 64, 3, 3), pool=True),
        Conv(7, (128, 128, 3, 3), read=True),
        Conv(10, (256, 128, 3, 3), pool=True),
        Conv(12, (256, 256, 3, 3)),
        Conv(14, (256, 256, 3, 3), read=True),
        Conv(17, (512, 256, 3, 3), pool=True),
        Conv(19, (512, 512, 3, 3)),
        Conv(21, (512, 512, 3, 3), read=True),
        Conv(24, (512, 512, 3, 3), pool=True),
        Conv(26, (512, 512, 3, 3)),
        Conv(28, (512, 512, 3, 3), read=True),
    ),
    pool=2,
    first=(1, 1),
    minimum=16,
)


@dataclass(frozen=True, eq=False)
class Lpips:
    """A network with its heads. Called with two batches (n, C, H, W) in [0, 1] it gives the distances (n,).

    Grey images are repeated to three channels. Images with a side below `minimum` are enlarged bilinearly, both the
    same, to a shorter side of 32: LPIPS of MNIST with AlexNet is taken at 32 x 32. The computation has the dtype and
    device of the images.
    """

    backbone: Backbone
    weights: tuple[Tensor, ...]  # one a convolution
    biases: tuple[Tensor, ...]
    heads: tuple[Tensor, ...]  # (1, channels, 1, 1), one a layer that is read

    @classmethod
    def load(cls, path: str | Path, heads: str | Path | None = None) -> "Lpips":
        """From a state dict in torchvision's format (`features.0.weight`), a .safetensors file or one of torch.save.

        The heads (`lin0.model.1.weight` to `lin4.model.1.weight`) stand in the same file or in one of their own, as
        the authors of LPIPS publish them. The shape of the first convolution tells AlexNet from VGG-16; other tensors
        in the file, such as the classifier, are left out.
        """
        path = Path(path)
        features = _read(path)
        backbone = _recognise(path, features)
        places = [f"features.{conv.place}" for conv in backbone.convs]
        shapes: list[tuple[int, ...]] = [conv.shape for conv in backbone.convs]
        weights = {f"{place}.weight": shape for place, shape in zip(places, shapes, strict=True)}
        biases = {f"{place}.bias": shape[:1] for place, shape in zip(places, shapes, strict=True)}
        channels = [conv.shape[0] for conv in backbone.convs if conv.read]
        lins = {f"lin{i}.model.1.weight": (1, count, 1, 1) for i, count in enumerate(channels)}
        _check(path, features, weights | biases, f"the features of {backbone.name}", "get the file again")
        found = features if heads is None else _read(Path(heads))
        advice = "add the LPIPS authors' v0.1 heads to it or name their file as `heads`"
        _check(Path(heads or path), found, lins, f"the LPIPS heads for {backbone.name}", advice)
        return cls(
            backbone=backbone,
            weights=tuple(features[name] for name in weights),
            biases=tuple(features[name] for name in biases),
            heads=tuple(found[name] for name in lins),
        )

    @property
    def name(self) -> str:
        """The network's name, which belongs beside every value: the two networks' distances do not compare."""
        return self.backbone.name

    @property
    def minimum(self) -> int:
        """The smallest side that goes through the network as it is: 31 for AlexNet, 16 for VGG-16."""
        return self.backbone.minimum

    def to(self, like: Tensor) -> "Lpips":
        """The same with the dtype and on the device of a tensor."""
        weights, biases, heads = (tuple(t.to(like) for t in ts) for ts in (self.weights, self.biases, self.heads))
        return Lpips(self.backbone, weights, biases, heads)

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        check_pair(a, b)
        if a.shape[1] not in (1, 3):
            raise DataError(f"LPIPS compares grey or colour images; expected 1 or 3 channels, got {a.shape[1]}.")
        here = self.to(a)
        size = max(1, CHUNK // (a.shape[2] * a.shape[3]))
        pairs = zip(torch.split(a, size), torch.split(b, size), strict=True)
        return torch.cat([here._distance(*pair) for pair in pairs])

    def _distance(self, a: Tensor, b: Tensor) -> Tensor:
        total = a.new_zeros(len(a))
        for fa, fb, head in zip(self._features(a), self._features(b), self.heads, strict=True):
            total = total + (head * (fa - fb).square()).sum(dim=1).mean(dim=(1, 2))
        return total

    def _features(self, images: Tensor) -> list[Tensor]:
        """(k, C, H, W) in [0, 1] -> (k, channels, height, width) for each layer read, of length 1 over channels."""
        x = _prepare(images, self.minimum)
        features = []
        for conv, weight, bias in zip(self.backbone.convs, self.weights, self.biases, strict=True):
            if conv.pool:
                x = F.max_pool2d(x, self.backbone.pool, stride=2)
            stride, padding = self.backbone.first if conv.place == 0 else (1, conv.shape[-1] // 2)
            x = F.relu(F.conv2d(x, weight, bias, stride=stride, padding=padding))
            if conv.read:
                # The authors add the eps to the length, not under the root.
                features.append(x / (x.square().sum(dim=1, keepdim=True).sqrt() + 1e-10))
        return features


def find_weights(folder: str | Path | None = None) -> Path | None:
    """The first of lpips_alex.pth and lpips_vgg.pth in the folder, else in that of DOSIMETER_DATA, else None."""
    return next(iter(weights_at_hand(folder)), None)


def weights_at_hand(folder: str | Path | None = None) -> list[Path]:
    """All of lpips_alex.pth and lpips_vgg.pth in the folder and in that of DOSIMETER_DATA."""
    folders = [place for place in (folder, os.environ.get("DOSIMETER_DATA")) if place]
    places = [Path(place) / name for place in folders for name in ("lpips_alex.pth", "lpips_vgg.pth")]
    return [place for place in places if place.is_file()]


def _prepare(images: Tensor, minimum: int) -> Tensor:
    """Images (k, 1 or 3, H, W) in [0, 1] as the networks expect them: large enough, in colour, standardised."""
    height, width = images.shape[-2:]
    if (short := min(height, width)) < minimum:
        larger = [round(side * SIDE / short) for side in (height, width)]
        images = F.interpolate(images, size=larger, mode="bilinear", align_corners=False)
    images = images.expand(-1, 3, -1, -1)
    shift, scale = (images.new_tensor(values).view(1, 3, 1, 1) for values in (SHIFT, SCALE))
    return (2 * images - 1 - shift) / scale  # from [0, 1] over [-1, 1]


def _read(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file, none of its code."""
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        else:
            with warnings.catch_warnings():  # torch warns of foreign pickles that it then refuses
                warnings.simplefilter("ignore")
                check_pickle(path)
                tensors = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); expected a file of weights.") from None
    except Exception as error:  # broken bytes raise a dozen types, from KeyError to UnicodeDecodeError
        kind = type(error).__name__
        raise DataError(f"{path}: not a file of plain tensors ({kind}); expected a saved state dict.") from None
    if not isinstance(tensors, Mapping):
        raise DataError(f"{path}: holds a {type(tensors).__name__}; expected a state dict, {{name: tensor}}.")
    return {str(name): tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def _recognise(path: Path, tensors: Mapping[str, Tensor]) -> Backbone:
    """The network whose first convolution has the shape of this file's."""
    first = tensors.get("features.0.weight")
    for backbone in (ALEXNET, VGG16):
        if first is not None and tuple(first.shape) == backbone.convs[0].shape:
            return backbone
    start = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in list(tensors.items())[:3]) or "no tensor"
    raise DataError(
        f"{path}: expected the features of AlexNet or VGG-16 with features.0.weight (64, 3, 11, 11) or (64, 3, 3, 3), "
        f"found {start}; save torchvision's state dict there."
    )


def _check(
    path: Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], what: str, advice: str
) -> None:
    """Refuse a file in which a tensor is missing, misshaped or not finite."""
    wrong = []
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if tensor is None:
            wrong.append(f"{name} is missing")
        elif tuple(tensor.shape) != shape:
            wrong.append(f"{name} has shape {tuple(tensor.shape)} instead of {shape}")
        elif not tensor.is_floating_point() or not tensor.isfinite().all():
            wrong.append(f"{name} is not made of finite floating-point numbers")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DataError(f"{path}: expected {what}, but {', '.join(wrong[:3])}{more}; {advice}.")
