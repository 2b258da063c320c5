"""Where a calibration begins, by the dose."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dosimeter import defenses
from dosimeter.auditing.panel.contenders import contenders
from dosimeter.channel import Channel, Noise
from dosimeter.defenses import Defense
from dosimeter.doses import White, strength_enough
from dosimeter.doses.plan import noise_enough
from dosimeter.errors import SettingError
from dosimeter.types import Victims

LEVELS = (1e-4, 1.0)


def small() -> tuple[nn.Module, Victims]:
    torch.manual_seed(0)
    images, places = torch.rand(2, 1, 1, 6, 6), torch.arange(2)[:, None]
    model = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 5))
    return model, Victims(images, places, places, ("test:0", "test:1"))


def start_of(make: Callable[[float], Defense], **how: Any) -> float:
    return strength_enough(*small(), make=make, strengths=LEVELS, share=0.2, prior=White(), **how)


def test_it_is_the_plans_noise_over_as_many_rounds_as_the_panel_averages() -> None:
    rounds = max(one.rounds for one in contenders(Channel((Noise("gaussian", 0.1),)), steps=1))
    assert rounds > 1
    planned = noise_enough(*small(), share=0.2, prior=White())
    expected = pytest.approx(planned * math.sqrt(rounds))
    assert start_of(lambda sigma: defenses.GaussianNoise(sigma=sigma)) == expected
    assert start_of(lambda scale: defenses.LaplaceNoise(scale=scale)) == expected


def test_noise_of_clipped_gradients_is_in_units_of_their_bound() -> None:
    pytest.importorskip("opacus")
    starts = [start_of(lambda sigma, clip=clip: defenses.DpSgd(clip=clip, sigma=sigma)) for clip in (1e3, 2e3)]
    assert starts[0] == pytest.approx(2 * starts[1], rel=0.05)


def test_defenses_that_the_dose_plans_no_noise_for_are_refused() -> None:
    for make, why in (
        (lambda ratio: defenses.Pruning(ratio=min(ratio, 0.9)), "one noise on all entries"),
        (lambda beta: defenses.Precode(k=3) | defenses.GaussianNoise(sigma=0.1), "grows with the strength"),
    ):
        with pytest.raises(SettingError, match=why):
            start_of(make)
