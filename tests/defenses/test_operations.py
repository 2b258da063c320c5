"""What an attacker can differentiate is what a client does to its pictures."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import dosimeter as dm
from dosimeter import defenses as d
from dosimeter import rng
from dosimeter.defenses.operations import AUTOAUGMENT, VARIANTS, Operation


def drawn(image: Tensor, operation: Operation) -> Tensor:
    """By Pillow."""
    pixels = (image * 255).round().byte().numpy()
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1))
    found = torch.from_numpy(np.asarray(operation.picture(picture)).copy()).float() / 255
    return found[None] if found.ndim == 2 else found.permute(2, 0, 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_tensors_go_through_what_pictures_do(variant: str, channels: int) -> None:
    digit = dm.pick(dm.load("mnist-5k"), 1, seed=0).images[0]
    image = torch.cat([(digit * 0.7 + 0.2).roll(shift, -1) for shift in range(channels)], 1)
    kind, shape = VARIANTS[variant], (channels, 28, 28)
    found = {option for place in range(50) for option in kind.options(place, shape)}
    found |= {option for stage in kind.before() for option in stage}
    image = (image * 255).round() / 255
    for operation in found:
        error = (operation(image)[0] - drawn(image[0], operation)).abs()
        # Pillow shears by cubics and rounds to steps of 1 / 255, several times.
        assert float(error.mean()) < (0.02 if operation.smooth else 0.006), operation
        x = image.clone().requires_grad_()
        (slope,) = torch.autograd.grad(operation(x).sum(), x)
        assert slope.any(), operation


def test_magnitudes_are_those_of_the_program() -> None:
    """Facts that are known of it (Gao et al.'s policy.py and autoaugment.py)."""
    released = VARIANTS["released"]
    assert released.operations[7] == ("translate-y", 2)
    assert released.operations[21] == ("translate-x", 5)
    assert released.operations[13] == ("brightness", 5)
    assert [name for name, _ in released.operations] == [name for name, _ in AUTOAUGMENT]
    assert sum(a != b for a, b in zip(released.operations, AUTOAUGMENT, strict=True)) == 22
    shape = (3, 32, 32)
    up, down = released.options(7, shape)
    assert up.amount[5] == -down.amount[5] == pytest.approx(150 / 331 * 32 * 2 / 9)
    assert up.fill == 0
    assert [each.amount[0] for each in released.options(15, shape)] == [1.5, 0.5]
    assert len(released.options(2, shape)) == 1
    assert [len(stage) for stage in released.before()] == [81, 2]
    assert VARIANTS["autoaugment"].before() == ()


def test_one_of_the_stated_paths_is_what_the_client_did() -> None:
    images = (dm.pick(dm.load("mnist-5k"), 3, seed=0).images[:, 0] * 255).round() / 255
    ats = d.Ats(policy="7-13-21+24-0")
    changed, _ = ats.on_batch(images, torch.zeros(3), rng.stream(0, "x"))
    for image, made in zip(images, changed, strict=True):
        errors = []
        for moves, mirrors, *rest in ats.changes((1, 28, 28)):
            found = [image[None]]
            for stage in (moves, mirrors, *rest):
                found = [torch.cat([option(one) for option in stage for one in found])]
            errors.append(float((found[0] - made).abs().mean((1, 2, 3)).min()))
        assert min(errors) < 0.003


@dataclass(frozen=True, kw_only=True)
class Untold(dm.Defense):
    """Changes images and does not say how."""

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return images.sqrt(), labels


def test_paths_of_joined_defenses_follow_each_other() -> None:
    shape, ats = (1, 28, 28), d.Ats(policy="0+4", variant="autoaugment")
    assert [len(path) for path in ats.changes(shape)] == [1, 1]
    assert [len(path) for path in (ats | d.GaussianNoise() | ats).changes(shape)] == [2] * 4
    assert (ats | Untold()).changes(shape) == ()
    assert d.GaussianNoise().changes(shape) == (d.GaussianNoise() | d.GaussianNoise()).changes(shape) == ()
