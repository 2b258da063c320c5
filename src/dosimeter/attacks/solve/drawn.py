"""The image behind features that are known, in a network that draws noise on the way: image and draw side by side.

Once h, what went into some layer, and its slope s = dL/dh are solved for (see `below`), what lies before that layer is
a small network with a loss of its own, <s, h> + penalty, whose gradient is the observed one. Features alone say
nothing of the image where noise is drawn, since some noise makes any image give them; gradients below the noise do.
Both are searched for together, as image x and latent b = mean + deviation * noise, of which the noise follows:

    |h(x, b) - h|^2 / |h|^2  and the mean over parameters of  |g(x, b) - g|^2 / |g|^2

Ours; the noise as a function of image and latent is that of `latent`.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.attacks.solve.latent import Draw
from dosimeter.attacks.stages import Beat
from dosimeter.networks.trace import Trace, replay
from dosimeter.types import Gradient, Target

FEATURES = 3.0
"""How much the distance of features weighs beside that of gradients."""

PRIOR = 0.6
"""The share of the steps for which total variation counts."""

SPREAD = 0.3
"""Deviation of the latent where the search begins."""


class Wanted(NamedTuple):
    """What a layer of the victim's saw."""

    tensor: Tensor  # of the trace
    value: Tensor  # (1, c, h, w) what it was
    slope: Tensor  # (1, c, h, w) dL/d of it
    rectified: bool  # whether the value is that behind a ReLU, and tensor and slope are those before it


class Found(NamedTuple):
    image: Tensor  # (C, H, W)
    noise: Tensor  # (1, ...)


class Drawn:
    """A network with one draw, up to a layer whose input is known.

    Args:
        target: the model.
        trace: of it, with one image.
        noise: the buffer of the trace's model that is drawn.
        draw: where it enters.
        penalty: what the draw adds to the loss, a tensor of the trace.
        wanted: what is known.
        observed: {name: gradient}.
    """

    def __init__(
        self, target: Target, trace: Trace, noise: Tensor, draw: Draw, penalty: Tensor | None, wanted: Wanted,
        observed: Gradient,
    ) -> None:  # fmt: skip
        self._target, self._images, self._noise, self._draw, self._goal = target, trace.images, noise, draw, wanted
        self._tensors = [wanted.tensor, *([] if penalty is None else [penalty])]
        self._calls = trace.between([trace.images, noise], self._tensors)
        self._encoder = trace.between([trace.images], [draw.mean, draw.deviation])
        used = {id(tensor) for call in self._calls for tensor in call.inputs}
        low = {name: p for name, p in trace.model.named_parameters() if id(p) in used and p.requires_grad}
        self._parameters = list(low.values())
        self._held: Mapping[int, Tensor] = {id(p): p.detach() for p in self._parameters}
        self._observed = [observed[name].to(target.mean) for name in low]

    def noise_of(self, image: Tensor, latent: Tensor) -> Tensor:
        """The draw that makes the latent of an image (1, C, H, W)."""
        given = {**self._held, id(self._images): image}
        mean, deviation = replay(self._encoder, given, [self._draw.mean, self._draw.deviation])
        return (latent - mean) / deviation

    def apart(self, image: Tensor, latent: Tensor) -> Tensor:
        """How far image and latent are from what is known."""
        noise = self.noise_of(image, latent)
        found, *penalty = replay(self._calls, {id(self._images): image, id(self._noise): noise}, self._tensors)
        loss = (self._goal.slope * found).sum() + sum((each.sum() for each in penalty), found.new_zeros(()))
        slopes = torch.autograd.grad(loss, self._parameters, create_graph=True)
        match = sum((_share(a, b) for a, b in zip(slopes, self._observed, strict=True)), found.new_zeros(()))
        features = F.relu(found) if self._goal.rectified else found
        return FEATURES * _share(features, self._goal.value) + match / len(slopes)

    def search(self, rng: torch.Generator, steps: int, lr: float, tv: float, beat: Beat) -> Found:
        """By Adam on normalised pixels and latent, at a rate that goes to 0 along a cosine."""
        mean, std = self._target.mean, self._target.std
        low, high = (0 - mean) / std, (1 - mean) / std
        x = torch.randn(1, *self._target.shape, generator=rng).to(mean).requires_grad_()
        latent = (SPREAD * torch.randn(self._draw.latent.shape, generator=rng)).to(mean).requires_grad_()
        by = torch.optim.Adam([x, latent], lr=lr)
        for step in range(steps):
            beat()
            by.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
            with torch.enable_grad():
                loss = self.apart(x * std + mean, latent)
                if step < PRIOR * steps:
                    loss = loss + tv * variation(x)
                x.grad, latent.grad = torch.autograd.grad(loss, (x, latent))
            by.step()
            with torch.no_grad():
                x.copy_(torch.minimum(torch.maximum(x, low), high))
        with torch.no_grad():
            image = x * std + mean
            return Found(image[0], self.noise_of(image, latent))


def _share(found: Tensor, wanted: Tensor) -> Tensor:
    return (found - wanted).square().sum() / wanted.square().sum().clamp_min(1e-30)


def variation(x: Tensor) -> Tensor:
    """Total variation as in Inverting Gradients, Eq. 4."""
    down, right = (x[..., 1:, :] - x[..., :-1, :]).abs(), (x[..., :, 1:] - x[..., :, :-1]).abs()
    return down.mean() + right.mean()
