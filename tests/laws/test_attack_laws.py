"""Every attack on every small model it claims to support: better than without the update, or a reason why not."""

from functools import cache
from typing import NamedTuple

import pytest
from torch import nn

import dosimeter as dm
from dosimeter import defenses, models
from dosimeter.attacks import Attack, AverageRounds, generators, presets
from dosimeter.auditing import Audit, Result
from dosimeter.auditing.job import Job
from dosimeter.errors import SettingError
from dosimeter.types import Victims

SIZE, CLASSES = 32, 10
MODELS = ("mlp", "mlp-no-bias", "lenet", "cnn", "cnn-bayes", "vit")
NARROW = {
    "mlp": {"width": 64, "depth": 2},
    "mlp-no-bias": {"width": 64, "depth": 2},
    "vit": {"width": 32, "depth": 1, "heads": 4},
}


class Case(NamedTuple):
    """An attack with settings that suit a quick test, and what it is made for."""

    attack: Attack
    defense: defenses.Defense = defenses.NoDefense()
    model: str = "lenet"  # on which it can be watched


CASES = {
    "joint": Case(presets.joint(steps=150, plateau=50), defenses.Precode(k=16)),
    "leave-out": Case(presets.leaving_out(steps=150), defenses.Soteria()),
    "ig": Case(presets.inverting_gradients(steps=150)),
    "ig-a": Case(presets.inverting_gradients_a(steps=150, restarts=2)),
    "ig-b": Case(presets.inverting_gradients_b(steps=150, restarts=2)),
    "ig-cvb": Case(presets.inverting_gradients_cvb(steps=150)),
    "ig-ppp": Case(presets.inverting_gradients_ppp(steps=150), defenses.Precode(k=16)),
    "ignore": Case(presets.ignoring(steps=150), defenses.Precode(k=16)),
    "bayes": Case(presets.bayes(steps=150, scale=1e-3), defenses.GaussianNoise(sigma=1e-3)),
    "grad-inversion": Case(presets.grad_inversion(steps=150)),
    "dlg": Case(presets.dlg(steps=20, restarts=3)),
    "idlg": Case(presets.idlg(steps=12)),
    "cpl": Case(presets.cpl(steps=150)),
    "grnn": Case(presets.grnn(steps=150, width=4, lr=1e-3)),
    "analytic": Case(presets.analytic()),
    "eliminate": Case(presets.eliminate(), defenses.Precode(k=16)),
    "features": Case(presets.features()),
    "deep": Case(presets.deep(), model="cnn"),
    "recover-key": Case(
        presets.recover_key(steps=150, distance="cosine", tv=1e-4), defenses.KeyLock(key=64, share="lock")
    ),
}

ELSEWHERE = {
    "labels": "it recovers labels and no images; tests/laws/test_label_laws.py says what of",
    "unlock": "it needs a lock after a convolution; tests/attacks/test_locks.py solves for it",
    "ggl": "it needs a trained generator; tests/test_cli_generator.py trains one and searches it",
}

VIT = "the update of an untrained ViT leads no search to the image in a test's time; 1,000 steps of ig do not either"
SIGMOID = "the sigmoid LeNet's first layers see a slope that is small beside the noise, its own or the other layers'"
POOLED = "pooled ReLU features leave too many equations out; the least that is known is grey"
FIRST = "Soteria hides the first weight there, and without that an MLP's update says little of the image"
REASONS = {
    ("ignore", "lenet"): SIGMOID,
    ("ig-ppp", "lenet"): SIGMOID,
    ("bayes", "lenet"): SIGMOID,
    ("analytic", "cnn-bayes"): POOLED,
    ("eliminate", "cnn-bayes"): POOLED,
    ("leave-out", "mlp"): FIRST,
    ("leave-out", "mlp-no-bias"): FIRST,
    ("features", "cnn"): "64 features of one layer do not determine 1,024 pixels",
} | {(name, "vit"): VIT for name in CASES if name not in ("analytic", "eliminate", "deep")}
"""(attack, model): why it does not have to be better there."""

REFUSED = {
    ("eliminate", "vit"): "layers in a row",
    ("features", "mlp-no-bias"): "with a bias",
    **{("deep", model): "No convolution" for model in ("mlp", "mlp-no-bias", "lenet", "cnn-bayes", "vit")},
    ("recover-key", "mlp"): "locks a convolution",
    ("recover-key", "mlp-no-bias"): "locks a convolution",
}
"""(attack, model): what the refusal says that comes before any work."""


@cache
def victims(n: int = 1) -> Victims:
    return dm.pick(dm.load("mnist-5k", size=SIZE), n, seed=3)


def built(model: str) -> nn.Module:
    settings = NARROW.get(model)
    shape = (1, SIZE, SIZE)
    return models.build(model, shape=shape, classes=CLASSES, mean=(0.13,), std=(0.31,), seed=0, settings=settings)


def run(case: Case, model: str) -> Result:
    return dm.audit(
        built(model), victims(), attack=case.attack, defense=case.defense, resources=dm.Resources(progress=False)
    )


def gain(result: Result) -> float:
    """Decibels more than without the update."""
    return result.scores["psnr"].mean - result.scores.baseline["psnr"].mean


def test_no_attack_is_left_out() -> None:
    assert CASES.keys() | ELSEWHERE.keys() == presets.BY_NAME.keys()
    assert ENDED.keys() >= presets.BY_NAME.keys()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", CASES)
def test_the_update_helps(name: str, model: str) -> None:
    if (name, model) in REASONS:
        pytest.skip(REASONS[name, model])
    if (name, model) in REFUSED:
        with pytest.raises(SettingError, match=REFUSED[name, model]):
            run(CASES[name], model)
        return
    result = run(CASES[name], model)
    assert gain(result) > 1


def test_a_key_without_bias_helps_too() -> None:
    lock = defenses.KeyLock(key=256, share="lock") | defenses.NoBias()
    assert gain(run(Case(presets.recover_key(steps=150, distance="cosine", tv=1e-4), lock), "cnn")) > 1


def painter() -> generators.Generator:
    network = nn.Sequential(nn.Linear(4, SIZE**2), nn.Sigmoid(), nn.Unflatten(1, (1, SIZE, SIZE)))
    return generators.Generator(network=network, latent=4, shape=(1, SIZE, SIZE))


ENDED = CASES | {
    "labels": Case(presets.labels_only()),
    "unlock": Case(presets.unlock(), defenses.KeyLock(key=9)),
    "ggl": Case(presets.ggl(generator=painter(), population=4)),
    "rounds averaged": Case(AverageRounds(attack=presets.features())),
}


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("name", ENDED)
def test_every_attack_ends_as_soon_as_its_watch_says_so(name: str, at: int) -> None:
    """At its third word too, which is within the work on its first victim for all but those that take a moment."""
    case, some = ENDED[name], victims(3 if name == "labels" else 1)
    job = Job(Audit(model=built(case.model), victims=some, attack=case.attack, defense=case.defense))
    calls = 0

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        nonlocal calls
        calls += 1
        assert 0 <= done <= total
        if calls == at:
            raise KeyboardInterrupt

    target = job.attacker.target
    found = case.attack(target, job.observe(some), seed=0, watch=watch)
    assert calls == at
    assert found.outcomes[-1] == "interrupted"
    assert found.images.shape == some.images.shape
