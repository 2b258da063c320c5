"""Every attack on every small model it claims to support: better than without the update, or a reason why not."""

from functools import cache
from typing import NamedTuple

import pytest

import dosimeter as dm
from dosimeter import defenses, models
from dosimeter.attacks import presets
from dosimeter.auditing import Result
from dosimeter.types import Attack, Victims

SIZE, CLASSES = 28, 10
MODELS = ("mlp", "mlp-no-bias", "lenet", "lenet-bn", "cnn", "cnn-bayes", "vit")
NARROW = {
    "mlp": {"width": 64, "depth": 2},
    "mlp-no-bias": {"width": 64, "depth": 2},
    "vit": {"width": 32, "depth": 1, "heads": 4},
}


class Case(NamedTuple):
    """An attack with settings that suit a quick test, and what it is made for."""

    attack: Attack
    defense: defenses.Defense = defenses.NoDefense()


CASES = {
    "ig": Case(presets.inverting_gradients(steps=200)),
    "ig-a": Case(presets.inverting_gradients_a(steps=200, restarts=2)),
    "ig-b": Case(presets.inverting_gradients_b(steps=200, restarts=2)),
    "ig-cvb": Case(presets.inverting_gradients_cvb(steps=200)),
    "ignore": Case(presets.ignoring(steps=300), defenses.Precode(k=16, beta=1e-3)),
    "bayes": Case(presets.bayes(steps=200, scale=1e-3, tv=1.0), defenses.GaussianNoise(sigma=1e-3)),
    "grad-inversion": Case(presets.grad_inversion(steps=200)),
    "dlg": Case(presets.dlg(steps=20)),
    "idlg": Case(presets.idlg(steps=20)),
    "cpl": Case(presets.cpl(steps=300)),
    "analytic": Case(presets.analytic()),
}

REASONS: dict[tuple[str, str], str] = {}
"""(attack, model): why it does not have to be better there."""


@cache
def victims() -> Victims:
    return dm.pick(dm.load("mnist-5k"), 1, seed=3)


def run(name: str, model: str) -> Result:
    case = CASES[name]
    built = models.build(
        model, shape=(1, SIZE, SIZE), classes=CLASSES, mean=(0.13,), std=(0.31,), seed=0, settings=NARROW.get(model)
    )
    return dm.audit(built, victims(), attack=case.attack, defense=case.defense, progress=False)


def test_no_attack_is_left_out() -> None:
    assert CASES.keys() == presets.BY_NAME.keys()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", CASES)
def test_the_update_helps(name: str, model: str) -> None:
    reason = REASONS.get((name, model))
    if reason:
        pytest.skip(reason)
    result = run(name, model)
    found, blind = (result.scores[kind]["psnr"]["mean"] for kind in ("scores", "baseline"))
    assert found > blind + 1
