"""Which pixels a feature sees, so that features without a common one are differentiated together.

One backward pass of several features at once gives the sum of their slopes. Where no two of them see the same pixel,
every slope can be told from the sum, as in the compressed Jacobians of Curtis, Powell and Reid (1974). ConvBig's 5,184
features of 3x32x32 pixels take 256 passes.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.types import Shape

Read = Callable[[Tensor], Tensor]
"""From images (n, C, H, W) to features (n, F), each image by itself."""

AT_ONCE = 256
"""Images in one pass where every pixel is tried."""
CHECKS = 16
"""Features whose slope is compared with what they are found to see."""


class Fields(NamedTuple):
    """What each feature sees, and the groups in which features have no pixel in common."""

    seen: Tensor  # (F, H W), whether feature f may depend on the pixel
    groups: list[Tensor]  # indices of features


def find_fields(read: Read, shape: Shape, like: Tensor) -> Fields:
    """Try every pixel: one that is not a number makes all that depends on it so.

    Whatever hides that, such as a model that asks whether a number is one, is noticed by slopes outside of what was
    found; every feature is then taken to see all pixels.

    Args:
        like: a tensor of the images' precision and device.
    """
    channels, height, width = shape
    pixels = height * width
    found = []
    with torch.no_grad():
        for some in torch.split(torch.arange(pixels, device=like.device), AT_ONCE):
            images = like.new_full((len(some), channels, pixels), 0.5)
            images[torch.arange(len(some)), :, some] = torch.nan
            found.append(read(images.reshape(-1, channels, height, width)).isnan().T)
    seen = torch.cat(found, 1)
    if not _covers(seen, read, shape, like):
        seen = torch.ones_like(seen)
    return Fields(seen, _groups(seen))


def slope_norms(read: Read, images: Tensor, fields: Fields) -> tuple[Tensor, Tensor]:
    """|dr_f / dx| and r_f, both (n, F), for every image x."""
    images = images.detach().clone().requires_grad_()
    features = read(images)
    squares = torch.zeros_like(features)
    seen = fields.seen.to(features)
    for group in fields.groups:
        (slopes,) = torch.autograd.grad(features[:, group].sum(), images, retain_graph=True)
        squares[:, group] = slopes.square().sum(1).flatten(1) @ seen[group].T
    return squares.sqrt(), features.detach()


def _covers(seen: Tensor, read: Read, shape: Shape, like: Tensor) -> bool:
    """Whether some features, evenly spread, have no slope outside of what they are found to see."""
    image = torch.linspace(0, 1, like.new_empty(shape).numel(), device=like.device).to(like).reshape(1, *shape)
    image = image.requires_grad_()
    features = read(image)[0]
    for at in sorted({round(share * (len(features) - 1) / (CHECKS - 1)) for share in range(CHECKS)}):
        (slope,) = torch.autograd.grad(features[at], image, retain_graph=True)
        if ((slope != 0).any(1).flatten() & ~seen[at]).any():
            return False
    return True


def _groups(seen: Tensor) -> list[Tensor]:
    """Features that see the same are of one kind; kinds are put together greedily, one feature of each."""
    kinds, kind_of = torch.unique(seen, dim=0, return_inverse=True)
    taken: list[Tensor] = []  # pixels that each set of kinds sees
    set_of: dict[int, int] = {}
    met = [0] * len(kinds)
    groups: dict[tuple[int, int], list[int]] = {}
    for feature, kind in enumerate(kind_of.tolist()):  # in the order of the features, by which neighbours come in turn
        if kind not in set_of:
            pixels = kinds[kind]
            at = next((at for at, others in enumerate(taken) if not (others & pixels).any()), len(taken))
            taken[at : at + 1] = [taken[at] | pixels if at < len(taken) else pixels]
            set_of[kind] = at
        groups.setdefault((set_of[kind], met[kind]), []).append(feature)
        met[kind] += 1
    return [torch.tensor(members, device=seen.device) for members in groups.values()]
