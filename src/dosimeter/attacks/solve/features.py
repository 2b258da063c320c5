"""Solving for what a fully connected layer inside the network saw, then for the image behind it.

Inverting Gradients, Prop. 1, holds for a fully connected layer with a bias wherever it stands: with one image in its
gradient, its input is  v = dW^T db / |db|^2.  All that lies before it is known to the server, v = f(x), so what is left
are equations for the image without any gradient in them (Sec. 4.1 there). They are solved by Gauss-Newton, its steps by
conjugate gradients, in float64.

An honest network may throw too much away before its fully connected layers; a dishonest server sees to it that it does
not (see `dosimeter.servers`). Where every image has weights of its own, a batch is solved image by image.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import checks, networks, rng
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.base import Attack, Found, Solve
from dosimeter.attacks.solve.certificate import ROUNDING
from dosimeter.attacks.solve.first_layer import SEARCH, in_double
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.errors import SettingError
from dosimeter.networks.remember import remembered
from dosimeter.types import Ended, Gradient, Observation, Outcome, Target

SMOOTH = 10.0
"""How much further a smooth difference from the blank image may go than a rough one, where both explain the input."""


NUDGE = 0.01
"""Deviation of the noise, in units of the data's, by which a search leaves a point that has no slope."""


class Layer(NamedTuple):
    """A fully connected layer that sees one image of the batch alone."""

    name: str
    weight: str  # names of its parameters
    bias: str
    image: int  # which one


@dataclass(frozen=True, kw_only=True)
class Features(Attack):
    """Prop. 1 of Inverting Gradients on the widest fully connected layer with a bias, and the image behind its input.

    Of all images that explain the input the one nearest to the blank one is found. A victim is `recovered` when its
    images reproduce the observed update to rounding and `not determined` otherwise; `match` is the relative error of
    the simulated update.

    Args:
        labels: only the check of the result needs them.
        steps: of Gauss-Newton, at most.
        inner: conjugate gradients in each, at most.
    """

    name: str = "features"
    labels: labels_.Labels = labels_.FromLastLayer()
    steps: int = 20
    inner: int = 200

    def __post_init__(self) -> None:
        checks.count("The attack 'features'", "steps", self.steps, least=0, most=checks.MOST_STEPS)
        checks.count("The attack 'features'", "inner", self.inner, most=checks.MOST_STEPS)

    def check(self, target: Target, batch: int) -> None:
        """Refuse what cannot be solved, before any work."""
        if target.step is not None:
            raise SettingError(
                f"The attack 'features' solves one gradient, but the client sends {target.step!r}; "
                f"leave the step out or {SEARCH}."
            )
        find_layers(target, batch)
        super().check(target, batch)

    def blind(self) -> "Features":
        """Without a step the image stays blank."""
        return replace(self, name=f"{self.name} without the update", steps=0)

    def prepare(self, target: Target, seen: Observation, labels: Tensor, *, seed: int) -> Solve:
        if seen.statistics:
            raise SettingError(f"The attack 'features' cannot use batch-norm statistics that were sent; {SEARCH}.")
        exact = in_double(target)
        layers, bound = find_layers(exact, seen.batch), ROUNDING * torch.finfo(target.mean.dtype).eps

        def solve(v: int, beat: Beat) -> Found:
            update = {name: seen.gradient[name][v].double() for name in exact.parameters}
            images = blank(exact).expand(seen.batch, *target.shape).clone()
            for layer in layers:
                images[layer.image] = self._solve(exact, layer, update, images, beat)
            match = mismatch(exact, images, labels[v], update)
            return Found(images, match, Ended(Outcome.RECOVERED if match <= bound else Outcome.NOT_DETERMINED))

        return solve

    def _solve(self, target: Target, layer: Layer, update: Gradient, images: Tensor, beat: Beat) -> Tensor:
        """(C, H, W): the image that gives the layer the input that is in its gradient."""
        weight, slopes = update[layer.weight], update[layer.bias]  # (m, n), (m,)
        image = images[layer.image].clone()
        if not slopes.any():
            return image
        wanted = weight.T @ slopes / slopes.square().sum()  # (n,)

        def rest_of(x: Tensor) -> Tensor:
            beat()
            others = images[: layer.image], x[None], images[layer.image + 1 :]
            return wanted - inputs_of(target.model, torch.cat(others), [layer.name])[layer.name].flatten()

        with torch.no_grad():
            left, least = float(rest_of(image).square().sum()), 1e-28 * float(wanted.square().sum())
            for step in range(self.steps):
                move = gauss_newton(rest_of, image, self.inner, beat)
                if not step and not move.any():  # without biases a blank image is where ReLUs have their corner
                    image = image + _nudge(image, target.std)
                    left, move = float(rest_of(image).square().sum()), gauss_newton(rest_of, image, self.inner, beat)
                for halving in range(8):
                    trial = image + move / 2**halving
                    after = float(rest_of(trial).square().sum())
                    if after < left:
                        break
                else:
                    break
                gain, image, left = after / left, trial, after
                if gain > 0.98 or left <= least:  # what is left is rounding, noise or out of reach
                    break
        return image


def _nudge(image: Tensor, std: Tensor) -> Tensor:
    """A little noise, the same in every run."""
    noise = torch.randn(image.shape, generator=rng.stream(0, "nudge"), dtype=torch.float64)
    return NUDGE * std * noise.to(image)


def gauss_newton(rest_of: Callable[[Tensor], Tensor], x: Tensor, inner: int, beat: Beat = unheard) -> Tensor:
    """The d = S u with |rest(x) + J d| least and |u| least, where S lets smooth images go further.

    Conjugate gradients on the normal equations, without writing J = d rest / d x down: J^T r is a backward pass, and
    since it is linear in r, J p is the backward pass through that one. (Torch's forward mode has one state for all
    threads, and tiles run side by side.)
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        rest = rest_of(x)
        anything = torch.zeros_like(rest, requires_grad=True)
        (through,) = torch.autograd.grad(rest, x, anything, create_graph=True)
    u, r = torch.zeros_like(x), -rest.detach()

    def back(r: Tensor) -> Tensor:
        return smooth(torch.autograd.grad(rest, x, r, retain_graph=True)[0])

    slope = back(r)
    p, size = slope, slope.square().sum()
    enough = 1e-14 * size
    for _ in range(inner):
        beat()
        if not size > enough:
            break
        (q,) = torch.autograd.grad(through, anything, smooth(p), retain_graph=True)
        step = size / q.square().sum()
        u, r = u + step * p, r - step * q
        slope = back(r)
        before, size = size, slope.square().sum()
        p = slope + size / before * p
    return smooth(u)


def smooth(images: Tensor) -> Tensor:
    """(C, H, W) plus `SMOOTH` times itself blurred by (1, 4, 6, 4, 1) / 16 across and down: symmetric as a matrix."""
    bell = images.new_tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    blurred = F.conv2d(images.unsqueeze(1), (bell[:, None] * bell)[None, None], padding=2).squeeze(1)
    return images + SMOOTH * blurred


def mismatch(target: Target, images: Tensor, labels: Tensor, update: Gradient) -> float:
    """The relative error of the update that the images would cause."""
    labels = labels.double() if labels.is_floating_point() else labels
    simulated = target.gradient(images, labels)
    apart = sum(float((simulated[name] - g).square().sum()) for name, g in update.items())
    size = sum(float(g.square().sum()) for g in update.values())
    return (apart / size) ** 0.5 if size else torch.inf  # an update of zeros says nothing


def inputs_of(model: nn.Module, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """What goes into these layers in one pass; a layer that is called twice or never is left out."""
    calls = networks.watch(model, lambda: model(images), lambda name, _layer: name in names)
    often = Counter(call.name for call in calls)
    return {call.name: call.inputs for call in calls if often[call.name] == 1}


@remembered
def find_layers(target: Target, batch: int) -> list[Layer]:
    """For every image of a batch the layer with the most inputs that sees it and no other."""
    trained = {id(p): name for name, p in target.model.named_parameters() if p.requires_grad}
    dense = {
        name: (trained[id(layer.weight)], trained[id(layer.bias)])
        for name, layer in target.model.named_modules()
        if isinstance(layer, nn.Linear) and id(layer.weight) in trained and id(layer.bias) in trained
    }
    plain = torch.full((batch, *target.shape), 0.5).to(target.mean)
    noise = torch.rand(target.shape, generator=torch.Generator().manual_seed(0)).to(target.mean)
    found: list[Layer] = []
    with torch.no_grad():
        before = inputs_of(target.model, plain, list(dense))
        alone = [name for name, v in before.items() if v.numel() == v.shape[-1]]
        for image in range(batch):
            changed = plain.clone()
            changed[image] = noise
            after = inputs_of(target.model, changed, alone)
            seeing = [name for name in alone if not torch.equal(after[name], before[name])]
            if not seeing:
                mixed = " of one image alone" if batch > 1 else ""
                raise SettingError(
                    f"No fully connected layer with a bias sees the features{mixed}, so there is no input to solve "
                    f"for; {SEARCH}{', or --batch 1' if batch > 1 else ''}."
                )
            widest = max(seeing, key=lambda name: before[name].numel())
            found.append(Layer(widest, *dense[widest], image))
    return found
