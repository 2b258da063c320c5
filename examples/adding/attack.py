"""An attack of your own is put together from parts, of which a new one is a small class; or it is one method.

dosimeter audit --attack examples/adding/attack.py:blurred:steps=300,radius=2
"""

from dataclasses import dataclass

import torch.nn.functional as F

import dosimeter as dm
from dosimeter.attacks import Found
from dosimeter.attacks.search.priors import Prior, View
from dosimeter.types import Ended, Outcome


@dataclass(frozen=True, kw_only=True)
class Blurred(Prior):
    """An image is near its own blurred copy: the mean squared distance between the two."""

    radius: int = 1

    def loss(self, view: View):
        images = view.images.flatten(0, 1)  # (N * B, C, H, W)
        blurred = F.avg_pool2d(images, 2 * self.radius + 1, stride=1, padding=self.radius, count_include_pad=False)
        return (images - blurred).square().flatten(1).mean(1).view(*view.images.shape[:2]).mean(1)  # (N,)


def blurred(*, steps: int = 500, weight: float = 1e-2, radius: int = 1) -> dm.Search:
    """Cosine match as in Inverting Gradients, with a prior of one's own."""
    return dm.Search(
        name="blurred",
        likelihood=dm.likelihoods.Cosine(),
        prior=weight * Blurred(radius=radius),
        optimiser=dm.optimisers.Adam(lr=0.1, signed=True),
        stop=dm.Stop(steps=steps),
    )


@dataclass(frozen=True, kw_only=True)
class Ratio(dm.Attack):
    """A first layer W x + b shows its input: the rows of its weight's gradient over the entries of its bias's."""

    def solve(self, target, seen, *, seed, beat):
        weight, bias = (gradient[0] for gradient in list(seen.gradient.values())[:2])  # (m, pixels), (m,)
        inputs = (weight.T @ bias / bias.square().sum()).reshape(target.shape)
        return Found(inputs * target.std + target.mean, 0.0, Ended(Outcome.NOT_DETERMINED))


if __name__ == "__main__":
    victims = dm.pick(dm.load("mnist-5k", size=32), 2, seed=0)
    model = dm.models.build("cnn", shape=victims.shape, classes=10, mean=(0.13,), std=(0.31,), seed=0)
    print(dm.audit(model, victims, attack=blurred(steps=100)).summary())  # noqa: T201
    model = dm.models.build("mlp", shape=victims.shape, classes=10, mean=(0.13,), std=(0.31,), seed=0)
    print(dm.audit(model, victims, attack=Ratio()).summary())  # noqa: T201
