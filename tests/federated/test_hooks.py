"""Every hook of a defense acts in training as it does in audits, and what cannot act is refused before any work."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import auditing, clients, defenses, federated
from dosimeter.auditing.job import Job
from dosimeter.data import pick
from dosimeter.defenses import Defense
from dosimeter.errors import SettingError
from dosimeter.federated import Federation, State, evaluate, fit, train
from dosimeter.rng import stream
from dosimeter.types import Secrets, Target
from small_federation import dataset, federation, model, same


def one_step(defense: Defense) -> tuple[Federation, State]:
    """What client 0 sends after one step of SGD with rate 1, and of what federation."""
    task = federation(defense, epochs=None, steps=1, batch_size=4, optimiser="sgd", lr=1.0)
    return task, fit(task, task.initial(), 0, 0).sent


@dataclass(frozen=True, kw_only=True)
class Clipping(Defense):
    """Clips every example's gradient."""

    bound: float = 1e-3

    def clips(self) -> float:
        return self.bound


def gradient_of(task: Federation, sent: State) -> dict[str, Tensor]:
    """What one step at a rate of 1 went down."""
    return {name: before - sent[name] for name, before in task.initial().items()}


@pytest.mark.parametrize("around", [defenses.NoDefense(), defenses.Precode(k=4)], ids=["plain", "precode"])
def test_a_defense_of_ones_own_clips_every_example(around: Defense) -> None:
    """As autograd does it, image by image, with what the client drew for each."""
    bound = 0.5
    task, sent = one_step(around | Clipping(bound=bound))
    target = task.target(copy.deepcopy(task.template))
    places = next(iter(federated.client._batches(task, 0, 0)))
    drawn = clients.draw_secrets(target, 4, stream(0, "training", "secrets", "0", "round 0"))
    images, labels = task.images("train", places), task.labels("train", places)
    total = {name: torch.zeros_like(p) for name, p in target.parameters.items()}
    norms = []
    for at in range(4):
        one = replace(target, drawn={name: value[at : at + 1] for name, value in drawn.items()})
        slope = torch.func.grad(one.objective)(one.parameters, images[at : at + 1], labels[at : at + 1])
        norms.append(float(torch.cat([g.flatten() for g in slope.values()]).norm()))
        total = {name: value + min(1.0, bound / norms[-1]) * slope[name] / 4 for name, value in total.items()}
    assert max(norms) > bound
    assert all(torch.allclose(gradient_of(task, sent)[name], value, atol=1e-6) for name, value in total.items())


def test_training_clips_as_audits_do_and_noise_comes_after() -> None:
    task, sent = one_step(Clipping(bound=1e-3))
    norm = float(torch.cat([g.flatten() for g in gradient_of(task, sent).values()]).norm())
    assert 1e-4 < norm <= 1e-3 * (1 + 1e-4)
    _, noisy = one_step(Clipping(bound=1e-3) | defenses.GaussianNoise(sigma=0.3))
    away = torch.cat([(noisy[name] - sent[name]).flatten() for name in sent])
    assert 0.27 < float(away.std()) < 0.33


def test_dp_sgd_is_not_clipped_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sent = one_step(defenses.DpSgd(clip=0.01, sigma=0.0))
    monkeypatch.setattr(clients, "ClippedGradient", None)
    assert same(one_step(defenses.DpSgd(clip=0.01, sigma=0.0))[1], sent)
    assert same(one_step(Clipping(bound=1e-6) | defenses.DpSgd(clip=0.01, sigma=0.0))[1], sent)  # as in audits


@dataclass(frozen=True, kw_only=True)
class Silent(defenses.Precode):
    """PRECODE that draws in its own way: always the mean."""

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets:
        return {name: torch.zeros(secret.full_shape(batch)) for name, secret in target.secrets.items()}


def test_a_defense_of_ones_own_draws_its_secrets() -> None:
    task, sent = one_step(Silent(k=4))
    assert not same(sent, one_step(defenses.Precode(k=4))[1])
    target = task.target(copy.deepcopy(task.template))  # until draws are given, its secrets are zeros
    places = next(iter(federated.client._batches(task, 0, 0)))
    slope = torch.func.grad(target.objective)(
        target.parameters, task.images("train", places), task.labels("train", places)
    )
    assert all(torch.allclose(gradient_of(task, sent)[name], g, atol=1e-6) for name, g in slope.items())
    plain = federation(defenses.Precode(k=4))
    assert evaluate(task, task.initial()) != evaluate(plain, plain.initial())


@dataclass(frozen=True, kw_only=True)
class OwnKey(defenses.KeyLock):
    """FedKL whose clients have a key of ones."""

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets:
        return {name: torch.full(secret.shape, 5.0) for name, secret in target.secrets.items()}


def test_a_defense_of_ones_own_draws_what_a_client_keeps() -> None:
    task = federation(OwnKey(key=8))
    for client in (0, 1):
        drawn = federated.client.client_secrets(task, task.target(task.template), client)
        assert all(float(value.min()) == 5.0 for value in drawn.values())
    plain = federation(defenses.KeyLock(key=8))
    assert not same(fit(task, task.initial(), 0, 0).sent, fit(plain, task.initial(), 0, 0).sent)


@pytest.mark.parametrize(
    ("defense", "who"),
    [
        (defenses.DpSgd(), "DP-SGD clips every example"),
        (defenses.Soteria(), "Soteria looks at the client's features"),
        (defenses.GaussianNoise(sigma=0.1) | defenses.Soteria(), "Soteria looks"),
    ],
    ids=["dp-sgd", "soteria", "joined"],
)
def test_a_defense_that_needs_the_batch_is_refused_before_any_client_trains(
    defense: Defense, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federated.client._Trainer, "step", None)
    with pytest.raises(SettingError, match=f"perturbed=update.*{who}.*use perturbed=steps") as refused:
        train(federation(defense, perturbed="update"))
    assert "\n" not in str(refused.value)


def test_clipping_beside_batch_norm_is_refused_before_any_client_trains() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))
    with pytest.raises(SettingError, match="mixes the images"):
        train(federation(Clipping(), net))


@dataclass(frozen=True, kw_only=True)
class Loud(defenses.Precode):
    """PRECODE that draws in its own way: three times as far from the mean."""

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets:
        return {
            name: 3 * torch.randn(secret.full_shape(batch), generator=rng) for name, secret in target.secrets.items()
        }


@pytest.mark.parametrize(
    ("defense", "kept"), [(Loud(k=4), False), (defenses.KeyLock(key=8), True)], ids=["image", "client"]
)
def test_audits_draw_for_images_in_every_round_and_for_clients_once(defense: Defense, kept: bool) -> None:
    victims = pick(dataset(), 2, seed=0)
    setting = auditing.Audit(
        model=model(),
        victims=victims,
        attack=dm.presets.inverting_gradients(steps=1),
        defense=defense,
        threat=dm.ThreatModel(secrets=True, labels=True),
        updates=dm.Updates(rounds=2),
    )
    job = Job(setting)
    first, second = (seen.secrets for seen in job.observe(victims))
    assert first is not None
    assert second is not None
    assert all(torch.equal(value, second[name]) == kept for name, value in first.items())
    if not kept:
        assert all(1.5 < float(value.std()) < 5 for value in first.values())
