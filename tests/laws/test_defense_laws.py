"""Every defense meets every attack: it runs, or refuses in one sentence before any work."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import defenses, models
from dosimeter.attacks import Attack, generators, presets
from dosimeter.errors import SettingError
from dosimeter.types import Victims

SHAPE, CLASSES = (1, 16, 16), 10


class Paint(nn.Module):
    """A generator of images from four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 256)

    def forward(self, z: Tensor) -> Tensor:
        painted: Tensor = torch.sigmoid(self.layer(z)).reshape(-1, *SHAPE)
        return painted


@cache
def attacks() -> dict[str, Attack]:
    torch.manual_seed(0)
    own = generators.Generator(network=Paint(), latent=4, shape=SHAPE, name="paint")
    short = {
        "grnn": presets.grnn(steps=1, width=2),
        "ggl": presets.ggl(generator=own, steps=1, population=4),
        "analytic": presets.analytic(),
        "features": presets.features(),
        "labels": presets.labels_only(),
        "eliminate": presets.eliminate(),
        "unlock": presets.unlock(),
        "ig-a": presets.inverting_gradients_a(steps=1, restarts=2),
        "ig-b": presets.inverting_gradients_b(steps=1, restarts=2),
    }
    return {name: short[name] if name in short else make(steps=1) for name, make in presets.BY_NAME.items()}


@cache
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        models.Normalise((0.13,), (0.31,)),
        nn.Conv2d(1, 4, 5, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(4, 4, 3),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(64, 12),
        nn.Sigmoid(),
        nn.Linear(12, CLASSES),
    )


@cache
def victims() -> Victims:
    return dm.pick(dm.load("mnist-5k", size=16), 1, seed=3)


DEFENSES = {name: make() for name, make in defenses.BY_NAME.items()} | {
    "fedkl:share=lock": defenses.KeyLock(share="lock"),
    "fedkl:share=lock|no-bias": defenses.KeyLock(share="lock") | defenses.NoBias(),
}
LOCKED = {name for name in DEFENSES if name.startswith("fedkl")}
INSIDE = LOCKED | {"precode", "ppp", "cvb", "dropout"}
"""Defenses that draw numbers inside the model."""

REFUSED = {
    **{(by, name): "draws none" for by in ("ignore", "ig-ppp") for name in DEFENSES if name not in INSIDE},
    **{("eliminate", name): "draws" for name in DEFENSES if name not in {"precode", "ppp", "cvb"}},
    **{("unlock", name): "defense that has one" for name in DEFENSES if name not in LOCKED},
    **{("recover-key", name): "fedkl:share=lock" for name in DEFENSES if "share=lock" not in name},
    **{("analytic", name): "layers in a row" for name in INSIDE},
    ("features", "no-bias"): "with a bias",
    ("features", "fedkl:share=lock|no-bias"): "with a bias",
    **{(name, "dp-sgd"): "solves one gradient" for name in ("analytic", "features", "eliminate")},
    **{("eliminate", name): "enters otherwise" for name in ("dropout", *LOCKED)},
    **{("deep", name): "No convolution" for name in DEFENSES},
    ("deep", "dp-sgd"): "solves one gradient",
}
"""(attack, defense): what the refusal says."""


@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize("attack", presets.BY_NAME)
def test_it_runs_or_says_why_not(attack: str, defense: str) -> None:
    reason = REFUSED.get((attack, defense))

    def run() -> dm.Result:
        return dm.audit(
            network(),
            victims(),
            attack=attacks()[attack],
            defense=DEFENSES[defense],
            resources=dm.Resources(progress=False),
        )

    if reason is None:
        result = run()
        assert result.images.isfinite().all()
        assert result.settings["defense"] == ("none" if defense == "none" else repr(DEFENSES[defense]))
        return
    with pytest.raises(SettingError, match=reason) as refusal:
        run()
    assert "\n" not in str(refusal.value)
