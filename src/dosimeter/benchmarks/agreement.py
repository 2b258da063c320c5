"""Whether the engine's attack ends where the usual way's does: the same search twice, image by image."""

from typing import NamedTuple

import torch

from dosimeter import metrics
from dosimeter.attacks import Search
from dosimeter.auditing import Resources, audit
from dosimeter.types import Victims


class Agreement(NamedTuple):
    """SSIM of every image, by the engine and by the usual way, (n,)."""

    engine: torch.Tensor
    usual: torch.Tensor

    def text(self) -> str:
        apart = self.engine - self.usual
        engine, usual = float(self.engine.mean()), float(self.usual.mean())
        return (
            f"mean SSIM by the engine {engine:.4f}, by the usual way {usual:.4f}; "
            f"difference {float(apart.mean()):+.4f} on average, {float(apart.abs().mean()):.4f} an image, "
            f"{float(apart.abs().max()):.4f} at most, over {len(apart)} images"
        )


def compare(model: torch.nn.Module, victims: Victims, attack: Search, *, seed: int) -> Agreement:
    """Run the attack by the engine and by double backward one image at a time."""
    scores = []
    for way in (None, "one by one"):
        result = audit(model, victims, attack=attack, seed=seed, resources=Resources(way=way))
        scores.append(metrics.ssim(result.images.flatten(0, 1), victims.images.flatten(0, 1)))
    return Agreement(*scores)
