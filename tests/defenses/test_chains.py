"""Defenses side by side: each counts the model's own layers, whatever others put in."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import clients, models, rng
from dosimeter.attacks.around.key import recover
from dosimeter.auditing import Audit
from dosimeter.auditing.job import Job
from dosimeter.defenses import Cvb, Defense, DpSgd, Dropout, KeyLock, NoBias, Ppp, Precode, Soteria
from dosimeter.defenses.bottleneck import Bottleneck
from dosimeter.defenses.fedkl import HiddenLock, Lock
from dosimeter.defenses.layers import Dropped
from dosimeter.defenses.ppp import before_bottleneck
from dosimeter.engine import Matcher
from dosimeter.errors import SettingError
from dosimeter.types import Victims
from small import network, target_of

SHAPE = (1, 16, 16)


@pytest.mark.parametrize(
    ("defense", "where"),
    [
        (Cvb(position=1) | Precode(k=4, position=2), ["3", "6"]),
        (Cvb(position=1) | Dropout(position=2), ["3", "6"]),
        (Cvb(position=1) | Dropout(), ["3", "8"]),
        (Cvb(position=1) | Cvb(position=1), ["3", "3"]),
        (Cvb(position=1) | Cvb(position=2), ["3", "5"]),  # before the flatten
        (Cvb(position=2) | Cvb(position=2), ["5", "5"]),
        (KeyLock(key=4) | Cvb(position=1), ["3"]),
        (KeyLock(key=4, share="lock") | Cvb(position=1), ["3"]),
        (Precode(k=4) | KeyLock(key=4) | Dropout(position=2), ["6", "8"]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("way", ["on_model", "trained"])
def test_positions_are_of_the_models_own_layers(defense: Defense, where: list[str], way: str) -> None:
    model = getattr(defense, way)(network(), SHAPE)
    added = [path for path, layer in model.named_modules() if isinstance(layer, Bottleneck | Dropped)]
    assert [path.split(".")[0] for path in added] == where
    assert not any(one.startswith(f"{other}.") for one in added for other in added)


def test_a_second_bottleneck_is_not_put_into_the_first() -> None:
    with pytest.raises(SettingError, match="feature maps"):  # behind the first linear layer there are none
        (Cvb(position=1) | Cvb(position=3)).on_model(network(), SHAPE)


@pytest.mark.parametrize("before", [Precode(k=4, position=2), KeyLock(key=4, share="lock"), KeyLock(key=4)], ids=repr)
@pytest.mark.parametrize("turned", [False, True])
def test_soteria_defends_a_layer_of_the_models(before: Defense, turned: bool) -> None:
    chain = Soteria() | before if turned else before | Soteria()
    target = target_of(chain.on_model(network(), SHAPE), SHAPE)
    own = "6.layer" if isinstance(before, Precode) else "6"
    assert Soteria().defended(target.model, SHAPE) == own
    victims = Victims(torch.rand(1, 1, *SHAPE), torch.tensor([[2]]), torch.zeros(1, 1), ("train:0",))
    job = Job(
        Audit(model=network(), victims=victims, attack=dm.attacks.presets.inverting_gradients(steps=1), defense=chain)
    )
    (seen,) = job.observe(victims)
    weight = seen.gradient[f"{own}.weight"][0]
    assert int((weight == 0).all(0).sum()) >= int(0.8 * 24)
    with pytest.raises(SettingError, match="fully connected layer"):
        Soteria(layer="1.lock.scale").defended(target.model, SHAPE)


def test_ppp_perturbs_what_lies_before_its_own_bottleneck() -> None:
    ppp, early = Ppp(k=4), Ppp(k=3, position=1)
    for chain in (Cvb(position=1) | ppp, ppp | Cvb(position=1), early | ppp):
        model = chain.on_model(network(), SHAPE)
        assert {name.split(".")[0] for name in before_bottleneck(model, SHAPE, ppp)} == {"1", "3", "6"}
    assert before_bottleneck(model, SHAPE, early) == {"1.weight", "1.bias"}


def test_a_lock_does_not_make_a_model_of_convolutions_fully_connected() -> None:
    bare = nn.Sequential(nn.Conv2d(1, 4, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(SettingError, match="has none"):
        (KeyLock(key=4) | NoBias()).on_model(bare, SHAPE)


@pytest.mark.parametrize("share", ["none", "lock"])
@pytest.mark.parametrize("round_", ["first", "later"])
@pytest.mark.parametrize("way", ["on_model", "trained"])
def test_locks_work_without_biases(share: str, round_: str, way: str) -> None:
    if share == "lock" and round_ == "later":
        pytest.skip("the server knows such a lock in every round")
    lock = KeyLock(key=30, share=share, round=round_)  # type: ignore[arg-type]
    chain = lock | NoBias()
    target = target_of(getattr(chain, way)(network(), SHAPE), SHAPE)
    (layer,) = [m for m in target.model.modules() if isinstance(m, Lock)]
    assert layer.scale.bias is layer.shift.bias is None
    assert chain.private(target.model) == (
        {"1.lock.scale.weight", "1.lock.shift.weight"} if way == "trained" and share == "none" else set()
    )
    own = clients.draw_secrets(target, 2, rng.stream(0, "client"))
    drawn = own | dict(chain.draw(target, 2, rng.stream(0, "client")))
    images = torch.rand(2, *SHAPE, dtype=torch.float64)
    found: Tensor = torch.func.functional_call(target.model, drawn, (images,))
    assert found.isfinite().all()
    if isinstance(layer, HiddenLock) and round_ == "first":
        key = torch.rand(30, generator=rng.stream(0, "client"), dtype=torch.float64)
        with torch.no_grad():
            made = torch.cat([layer.scale(key), layer.shift(key)])
            u = drawn["1.lock.hidden"]
            assert torch.allclose(layer.centre + layer.spread @ u, made, atol=1e-6)  # gamma = W k


def test_what_a_server_expects_of_a_lock_without_bias_is_right() -> None:
    for round_ in ("first", "later"):
        model = (KeyLock(key=3, round=round_) | NoBias()).on_model(network(), SHAPE)  # type: ignore[arg-type]
        (lock,) = [m for m in model.modules() if isinstance(m, HiddenLock)]
        stream = rng.stream(1, "keys")
        u = torch.stack([lock.draw(stream)["hidden"] for _ in range(800)])
        assert float(u.mean(0).abs().max()) < 0.15
        assert float((u.T.cov() - torch.eye(u.shape[1])).abs().max()) < 0.2


def test_a_lock_that_is_loaded_is_the_one_that_is_expected() -> None:
    def lock_of(model: nn.Module) -> HiddenLock:
        (lock,) = [m for m in model.modules() if isinstance(m, HiddenLock)]
        return lock

    model, other = (KeyLock(key=30).on_model(network(), SHAPE) for _ in range(2))
    with torch.no_grad():
        lock_of(other).scale.weight.mul_(3)
        lock_of(other).scale.bias.add_(1)
    model = copy.deepcopy(model)
    model.load_state_dict(other.state_dict())
    lock = lock_of(model)
    key = torch.rand(30, generator=rng.stream(0, "client"), dtype=torch.float64).float()
    with torch.no_grad():
        made, middle = (torch.cat([lock.scale(k), lock.shift(k)]) for k in (key, torch.full_like(key, 0.5)))
    u = lock.draw(rng.stream(0, "client"))["hidden"]
    assert torch.allclose(lock.centre, middle, atol=1e-5)
    assert torch.allclose(lock.centre + lock.spread @ u, made, atol=1e-5)


class Unused(nn.Sequential):
    """A network with a layer that it never runs."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(256, 5))
        self.left = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self[1](self[0](x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["on_model", "trained"])
@pytest.mark.parametrize(
    ("defense", "model", "says"),
    [
        (DpSgd() | KeyLock(key=4), network, r"batch norm \('1.norm'\) mixes"),
        (Dropout() | DpSgd() | Dropout(), lambda: nn.Sequential(Unused(), nn.ReLU(), nn.Linear(5, 5)), "not init"),
        (DpSgd(), Unused, "Per sample gradient is not initialized"),
        (DpSgd(), lambda: models.ViT(shape=SHAPE, classes=5, width=8, depth=1, heads=2), "layer with buffers that"),
    ],
)
def test_dp_sgd_refuses_what_opacus_cannot_take(
    defense: Defense, model: Callable[[], nn.Module], says: str, way: str
) -> None:
    with pytest.raises(SettingError, match=says) as refusal:
        getattr(defense, way)(model(), SHAPE)
    assert "\n" not in str(refusal.value)


STEP = clients.LocalTraining(steps=3, lr=0.1, batch_size=2)


@pytest.mark.parametrize(
    ("defense", "step"),
    [
        (Precode(k=4) | DpSgd(clip=0.2, sigma=0.0), None),
        (Cvb(position=1) | DpSgd(clip=0.2, sigma=0.0), None),
        (DpSgd(clip=0.2, sigma=0.0) | Dropout(rate=0.6), None),
        (KeyLock(key=9), STEP),
        (KeyLock(key=9, share="lock"), STEP),
        (KeyLock(key=9, share="lock") | NoBias(), STEP),
    ],
    ids=repr,
)
def test_the_truth_explains_an_update_of_several_gradients(
    defense: Defense, step: clients.LocalTraining | None
) -> None:
    torch.manual_seed(4)
    images, labels = torch.rand(2, 3, *SHAPE), torch.randint(5, (2, 3))
    victims = Victims(images, labels, torch.arange(6).reshape(2, 3), ("train:0", "train:1"))
    attack = dm.attacks.presets.inverting_gradients(secrets="known")
    job = Job(
        Audit(
            model=network(),
            victims=victims,
            attack=attack,
            defense=defense,
            step=step,
            resources=dm.Resources(dtype=torch.float64),
        )
    )
    (seen,) = job.observe(victims)
    matcher = Matcher(job.attacker.target, seen.gradient)
    drawn, norms = seen.secrets or {}, matcher.norms.sum(1)
    right = matcher(images.double(), labels, torch.arange(2), drawn)
    wrong = matcher(images.double(), labels, torch.arange(2), {name: u.flip(-1) for name, u in drawn.items()})
    assert torch.allclose(right.cross.sum(1), norms, rtol=1e-6)
    assert torch.allclose(right.simulated.sum(1), norms, rtol=1e-6)
    assert not torch.allclose(wrong.cross.sum(1), norms, rtol=1e-4)


def test_local_steps_by_sgd_give_the_key_away() -> None:
    lock = KeyLock(key=9, share="lock")
    target = replace(target_of(lock.on_model(network(), SHAPE), SHAPE), step=STEP)
    drawn = clients.draw_secrets(target, 3, rng.stream(0, "client"))
    images = torch.rand(3, *SHAPE, dtype=torch.float64)
    update = clients.gradient(replace(target, drawn=drawn), images, torch.tensor([0, 1, 2]))
    found = recover(target, {name: g[None] for name, g in update.items()})
    assert torch.allclose(found["1.lock.key"][0], drawn["1.lock.key"], atol=1e-6)


@pytest.mark.parametrize("defense", [Precode(k=4), Cvb(position=1), Dropout()], ids=repr)
def test_what_is_drawn_in_every_pass_of_local_training_cannot_be_revealed(defense: Defense) -> None:
    victims = Victims(torch.rand(1, 2, *SHAPE), torch.tensor([[1, 2]]), torch.zeros(1, 2).long(), ("train:0",))
    attack = dm.attacks.presets.inverting_gradients(steps=2)
    setting = Audit(model=network(), victims=victims, attack=attack, defense=defense, step=STEP)
    found, _, truth = Job(setting).run(lambda *_, **__: None)
    assert found.images.isfinite().all()
    assert float(truth.abs().max()) < 1e-5  # the client's own draws explain its update, the attack's do not
    assert float(found.match.min()) > 1e-3
    with pytest.raises(SettingError, match="new numbers inside the model in every pass"):
        Job(replace(setting, threat=replace(attack.needs(), secrets=True)))
