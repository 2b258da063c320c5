"""Batch norm by running statistics, by those of the batch and by those that are sent, through the whole audit."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dosimeter as dm
from dosimeter.auditing import Audit
from dosimeter.auditing.job import Job
from dosimeter.errors import ModelError, SettingError, UpdateError
from dosimeter.types import Ended, Observation, Outcome, Reconstruction, Target, ThreatModel

MODES = ("running", "batch", "sent")
FEW = dm.presets.inverting_gradients(steps=3)


def images_model() -> nn.Module:
    """Batch norm over places, with running statistics that are nobody's."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    norm.running_mean.normal_()  # type: ignore[union-attr]
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), norm, nn.Sigmoid(), nn.Flatten(), nn.Linear(256, 10))


def vectors_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.Sigmoid(), nn.Linear(16, 10))


def some_victims(n: int = 2, batch: int = 1) -> dm.Victims:
    return dm.pick(dm.load("mnist-5k"), n, batch=batch, seed=0)


def plain_update(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(images), labels)
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))


@pytest.mark.parametrize("batch", [1, 3])
def test_clients_send_the_gradient_of_their_mode_and_statistics_where_they_should(batch: int) -> None:
    victims = some_victims(3, batch)
    for mode in MODES:
        model = images_model()
        job = Job(
            Audit(
                model=model,
                victims=victims,
                attack=FEW,
                updates=dm.Updates(batch_norm=mode),
                resources=dm.Resources(dtype=torch.float64),
            )
        )
        assert job.threat.statistics == mode
        seen = job.observe(victims)[0]
        model.double().train(mode != "running")
        for v, (x, y) in enumerate(zip(victims.images.double(), victims.labels, strict=True)):
            for name, g in plain_update(model, x, y).items():
                assert torch.allclose(seen.gradient[name][v], g, atol=1e-12), (mode, name)
        if mode != "sent":
            assert seen.statistics is None
            continue
        assert seen.statistics is not None
        mean, variance = seen.statistics["1"]
        features = model[0](victims.images.double().flatten(0, 1)).unflatten(0, (3, batch))  # type: ignore[index]
        assert torch.allclose(mean, features.mean((1, 3, 4)))
        assert torch.allclose(variance, features.var((1, 3, 4), correction=0))


class Spy(dm.Attack):
    """An attack that only looks at what it is given."""

    name, restarts = "spy", 1

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.seen: list[Observation] = []

    def needs(self) -> ThreatModel:
        return ThreatModel()

    def blind(self) -> "Spy":
        return self

    def __call__(self, target: Target, observations: Any, *, seed: int, watch: Any = None) -> Reconstruction:
        (seen,) = observations
        v, shape = len(seen.ids), (seen.batch, *target.shape)
        self.outputs.append(target.model(torch.rand(4, *target.shape)))
        self.seen.append(seen)
        zero = torch.zeros(v, dtype=torch.long)
        curve = dm.types.Curve((0,), torch.zeros(v, 1))
        ended = (Ended(Outcome.STEPS),) * v
        return Reconstruction(torch.zeros(v, *shape), None, torch.zeros(v), zero, zero, ended, curve)


def test_an_attacker_has_no_statistics_but_those_of_the_threat_model() -> None:
    for mode in MODES:
        spy = Spy()
        dm.audit(
            images_model(),
            some_victims(),
            attack=spy,
            updates=dm.Updates(batch_norm=mode),
            resources=dm.Resources(workers=1),
        )
        assert spy.outputs[0].isnan().all() == (mode == "sent")  # it waits for what was sent, and has nothing else
        assert (spy.seen[0].statistics is not None) == (mode == "sent")
        moved = images_model()
        moved[1].running_mean.add_(1)  # type: ignore[index, union-attr, operator]
        other = Spy()
        dm.audit(
            moved, some_victims(), attack=other, updates=dm.Updates(batch_norm=mode), resources=dm.Resources(workers=1)
        )
        same = all(torch.equal(g, other.seen[0].gradient[name]) for name, g in spy.seen[0].gradient.items())
        assert same == (mode != "running")  # running statistics matter there and nowhere else


@pytest.mark.parametrize("mode", MODES)
def test_same_seed_same_bytes_and_the_mode_beside_the_numbers(mode: Any) -> None:
    first, again = (
        dm.audit(images_model(), some_victims(), attack=FEW, updates=dm.Updates(batch_norm=mode)) for _ in range(2)
    )
    assert json.dumps(first.document()) == json.dumps(again.document())
    assert first.document()["threat"]["statistics"] == mode
    said = dm.audit(images_model(), some_victims(), attack=FEW, threat=ThreatModel(labels=True, statistics=mode))
    assert json.dumps(said.document()) == json.dumps(first.document())


def test_the_modes_are_not_the_same() -> None:
    images = [
        dm.audit(images_model(), some_victims(), attack=FEW, updates=dm.Updates(batch_norm=mode)).images
        for mode in MODES
    ]
    assert not any(torch.equal(images[i], images[j]) for i, j in ((0, 1), (1, 2), (0, 2)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("distance", ["cosine", "l2", "l1"])
def test_every_way_ends_with_the_same_images(mode: Any, distance: Any) -> None:
    attack = dm.presets.inverting_gradients(steps=20, signed=False, distance=distance)
    ways = (None, "tape", "one by one") + (("vmap",) if mode != "batch" else ())
    found = [
        dm.audit(
            images_model(),
            some_victims(2, 2),
            attack=attack,
            updates=dm.Updates(batch_norm=mode),
            resources=dm.Resources(dtype=torch.float64, way=way),
        )
        for way in ways
    ]
    for other in found[1:]:
        assert torch.allclose(found[0].images, other.images, atol=1e-5)


def test_a_victim_meets_its_own_statistics_whoever_is_beside_it() -> None:
    attack = dm.presets.inverting_gradients(steps=20, signed=False)
    victims = some_victims(5)
    noise = dm.defenses.GaussianNoise(sigma=1e-3)
    settings: dict[str, Any] = {"attack": attack, "updates": dm.Updates(batch_norm="sent"), "defense": noise}
    one, three = (dm.Resources(dtype=torch.float64, workers=workers) for workers in (1, 3))
    whole = dm.audit(images_model(), victims, **settings, resources=one)
    side = dm.audit(images_model(), victims, **settings, resources=three)
    alone = dm.audit(images_model(), victims.take(slice(3, 4)), **settings, resources=one)
    assert whole.settings["tile"] == 5
    assert side.settings["tile"] == 2
    assert torch.allclose(whole.images, side.images, atol=1e-6)
    assert torch.allclose(whole.images[3:4], alone.images, atol=1e-6)


def test_digits_are_read_by_batch_statistics() -> None:
    attack = dm.presets.inverting_gradients(steps=200, tv=1e-3)
    result = dm.audit(images_model(), some_victims(), attack=attack, updates=dm.Updates(batch_norm="batch"))
    assert result.scores["ssim"].mean > 0.2 + result.scores.baseline["ssim"].mean


class Functional(nn.Module):
    """Calls batch norm by itself."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.last, self.norm, self.of_batch = nn.Linear(784, 10), nn.BatchNorm2d(1), training

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(self.norm(x), torch.zeros(1), torch.ones(1), training=self.of_batch)
        out: Tensor = self.last(x.flatten(1))
        return out


def untracked() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(784, 10))


def no_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


ONE_VALUE = "one value a channel, (1, 16), which has no variance; take more images"
REFUSED = [
    (vectors_model(), {"updates": dm.Updates(batch_norm="batch")}, ModelError, ONE_VALUE),
    (vectors_model(), {"updates": dm.Updates(batch_norm="sent")}, ModelError, ONE_VALUE),
    (no_norm(), {"updates": dm.Updates(batch_norm="batch")}, ModelError, "has no batch norm"),
    (no_norm(), {"threat": ThreatModel(labels=True, statistics="sent")}, ModelError, "has no batch norm"),
    (untracked(), {}, ModelError, "no running statistics"),
    (Functional(False), {"updates": dm.Updates(batch_norm="batch")}, ModelError, "outside torch's layers"),
    (Functional(False), {"updates": dm.Updates(batch_norm="sent")}, ModelError, "outside torch's layers"),
    (Functional(True), {"updates": dm.Updates(batch_norm="sent")}, ModelError, "outside torch's layers"),
    (Functional(True), {}, ModelError, "no running statistics"),
    (images_model(), {"updates": dm.Updates(batch_norm="bacth")}, SettingError, "Did you mean 'batch'?"),
    (
        images_model(),
        {"updates": dm.Updates(batch_norm="sent"), "threat": ThreatModel(labels=True, statistics="batch")},
        SettingError,
        "say one of them",
    ),
    (
        images_model(),
        {"updates": dm.Updates(batch_norm="sent"), "step": dm.clients.LocalTraining(steps=2, lr=0.1)},
        SettingError,
        "sent with one gradient",
    ),
    (
        images_model(),
        {"updates": dm.Updates(batch_norm="batch"), "step": dm.clients.ClippedGradient(bound=1.0)},
        SettingError,
        "mixes the images",
    ),
    (
        images_model(),
        {"updates": dm.Updates(batch_norm="sent"), "resources": dm.Resources(way="chain")},
        ModelError,
        "statistics of their own",
    ),
]


@pytest.mark.parametrize(("model", "settings", "kind", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_is_refused_in_one_line(
    model: nn.Module, settings: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as refused:
        dm.audit(model, some_victims(), attack=FEW, **settings)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_local_batches_of_one_value_a_channel_are_refused_in_one_line() -> None:
    step = dm.clients.LocalTraining(steps=2, lr=0.1, batch_size=1)
    with pytest.raises(
        ModelError, match="step cannot be taken: ValueError: Expected more than 1 value per channel"
    ) as refused:
        dm.audit(vectors_model(), some_victims(1, 2), attack=FEW, step=step, updates=dm.Updates(batch_norm="batch"))
    assert "\n" not in str(refused.value)
    pairs = replace(step, batch_size=2)
    assert dm.audit(
        vectors_model(), some_victims(1, 4), attack=FEW, step=pairs, updates=dm.Updates(batch_norm="batch")
    ).records


def test_models_without_batch_norm_are_as_they_were() -> None:
    for updates in (dm.Updates(), dm.Updates(batch_norm="running")):
        assert dm.audit(no_norm(), some_victims(), attack=FEW, updates=updates).threat.statistics == "running"


def test_a_captured_update_comes_with_its_statistics() -> None:
    victims, model = some_victims(1, 2), images_model()
    x, y = victims.images[0], victims.labels[0]
    update = plain_update(model.train(), x, y)
    features = model[0](x).detach()  # type: ignore[index]
    pair = (features.mean((0, 2, 3)), features.var((0, 2, 3), correction=0))
    plain = dm.Capture(update, (1, 28, 28), 2, y)
    whole = plain._replace(statistics={"1": pair})
    found = dm.reconstruct(model, whole, batch_norm="sent", attack=FEW)
    assert found.images.shape == (1, 2, 1, 28, 28)
    audited = dm.audit(model, victims._replace(ids=("update",)), attack=FEW, updates=dm.Updates(batch_norm="sent"))
    assert float(found.match[0]) == pytest.approx(audited.records[0].match, rel=1e-3)
    assert dm.reconstruct(model, plain, batch_norm="batch", attack=FEW).match[0] != found.match[0]
    for statistics in (
        None,
        {},
        {"1": pair, "2": pair},
        {"1": (pair[0][:2], pair[1])},
        {"1": (pair[0] * torch.nan,) * 2},
        {"1": (pair[0], -pair[1])},
    ):
        with pytest.raises((SettingError, UpdateError), match="tatistics"):
            dm.reconstruct(model, plain._replace(statistics=statistics), batch_norm="sent", attack=FEW)
    with pytest.raises(SettingError, match="only with it"):
        dm.reconstruct(model, whole, attack=FEW)


def test_a_captured_update_with_statistics_is_audited_where_nothing_can_be_solved_for() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 3))
    update = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    capture = dm.Capture(update, (1, 8, 8), statistics={"1": (torch.zeros(4), torch.ones(4))})
    found = dm.captured(model, capture, attack="ig:steps=1", batch_norm="sent")
    assert found.scores.certificate.refused
