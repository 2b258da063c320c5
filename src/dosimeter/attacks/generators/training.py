"""Training a small generator on images that are not attacked: a variational autoencoder whose decoder is kept."""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import checks, rng
from dosimeter.attacks.generators.network import SMALLEST, Network, blocks_for
from dosimeter.errors import DataError
from dosimeter.progress import Advance
from dosimeter.types import Shape

HELD_OUT = 256
"""Images, at most a tenth of all, that tell how well it learned."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a generator is trained.

    Args:
        latent: numbers of the latent; GGL's generators have 128.
        width: channels before the last block.
        epochs: passes over the images.
        batch: images of a step.
        lr: Adam's learning rate at first; it falls along a cosine.
        beta: weight of the latents' divergence from a standard normal; less makes sharper images of less usual latents.
        seed: names every random number.
    """

    latent: int = 128
    width: int = 8
    epochs: int = 10
    batch: int = 64
    lr: float = 5e-3
    beta: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for key, least, most in (
            ("latent", 1, 65_536),
            ("width", 1, 4096),
            ("epochs", 1, 100_000),
            ("batch", 2, 10**6),
        ):
            checks.count("Training a generator", key, getattr(self, key), least, most)
        checks.positive("Training a generator", "a learning rate lr", self.lr)
        checks.at_least("Training a generator", "a beta", self.beta, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A generator, and beside images that it was not trained on what it makes of their latents."""

    network: Network
    originals: Tensor  # (m, C, H, W)
    rebuilt: Tensor  # (m, C, H, W)


class Autoencoder(nn.Module):
    """Images -> latents -> images (Kingma and Welling 2014): strided convolutions down to 4x4, then the generator."""

    def __init__(self, *, shape: Shape, latent: int, width: int) -> None:
        super().__init__()
        blocks = blocks_for(shape)
        down, across = (SMALLEST * 2**blocks - side for side in shape[1:])
        self.margin = (across // 2, across - across // 2, down // 2, down - down // 2)
        widths = [shape[0], *(2 * width * 2**block for block in range(blocks))]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.encoder = nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * SMALLEST**2, 2 * latent))
        self.decoder = Network(shape=shape, latent=latent, width=width, trained=True)

    def latents(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the images' latents, (n, latent) twice."""
        mean, log_variance = self.encoder(F.pad(images, self.margin)).chunk(2, 1)
        return mean, log_variance.clamp(-12, 4)

    def loss(self, images: Tensor, beta: float, draws: torch.Generator) -> Tensor:
        """Cross-entropy summed over pixels plus `beta` times the divergence of the latents, mean over the images."""
        mean, log_variance = self.latents(images)
        noise = torch.randn(mean.shape, generator=draws)
        made = self.decoder(mean + (log_variance / 2).exp() * noise)
        away = (mean.square() + log_variance.exp() - 1 - log_variance).sum() / 2
        return (F.binary_cross_entropy(made, images, reduction="sum") + beta * away) / len(images)


def train_generator(images: Tensor, training: Training, advance: Advance | None = None) -> Trained:
    """Fit a variational autoencoder to images (n, C, H, W) in [0, 1] and keep its decoder.

    A few images are held out; `advance` is told how many steps are done, and the loss.
    """
    order = torch.randperm(len(images), generator=rng.stream(training.seed, "held out"))
    kept = min(HELD_OUT, len(images) // 10)
    held, images = images[order[:kept]], images[order[kept:]]
    each = len(images) // training.batch
    if not each:
        raise DataError(f"A generator needs at least {training.batch} images to learn from, got {len(images)}.")
    _, channels, height, across = images.shape
    with rng.scoped(training.seed, "generator"):
        model = Autoencoder(shape=(channels, height, across), latent=training.latent, width=training.width)
    optimiser = torch.optim.Adam(model.parameters(), lr=training.lr)
    steps = each * training.epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    draws = rng.stream(training.seed, "training")
    for step in range(steps):
        if step % each == 0:
            order = torch.randperm(len(images), generator=draws)
        at = step % each * training.batch
        loss = model.loss(images[order[at : at + training.batch]], training.beta, draws)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
        if advance is not None:
            advance(step + 1, f"loss {float(loss.detach()):.1f}", total=steps)
    model.eval()
    with torch.no_grad():
        rebuilt = model.decoder(model.latents(held)[0]) if kept else held
    return Trained(network=model.decoder, originals=held, rebuilt=rebuilt)
