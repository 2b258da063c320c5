"""Whether an image that was not read is hidden, or the search fell short."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from dosimeter import clients, defenses, models, presets
from dosimeter.attacks import Analytic, Attack, AverageOrders, AverageRounds, LeaveOut, generators
from dosimeter.attacks.search import optimisers
from dosimeter.auditing import Scoring, audit, rescore
from dosimeter.auditing.evidence import Evidence, explained, out_of_reach
from dosimeter.auditing.job import Job
from dosimeter.auditing.setting import Audit
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.data import load, pick
from dosimeter.defenses import Defense
from dosimeter.types import Step, Victims
from small import observe, target_of, tiny_target


@dataclass(frozen=True, eq=False)
class _At:
    """A start at given images, which no attack could make."""

    images: Tensor

    def draw(self, shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype) -> Tensor:
        return ((self.images - 0.13) / 0.31).to(dtype).reshape(shape)


@pytest.fixture(scope="module")
def digits() -> Victims:
    return pick(load("mnist-5k", size=32), 3, seed=1)


def evidence(victims: Victims, attack: Attack, defense: Defense, **parts: object) -> list[Evidence]:
    model = models.build("cnn", shape=victims.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    job = Job(Audit(model=model, victims=victims, attack=attack, defense=defense, **parts))  # type: ignore[arg-type]
    found, _, truth = job.run(lambda *_, **__: None)
    return explained(found, truth)


def short(steps: int) -> Attack:
    return presets.inverting_gradients(steps=steps)


@pytest.mark.parametrize(
    ("defense", "steps", "expected"),
    [
        (defenses.NoDefense(), 3, Evidence.FELL_SHORT),
        (defenses.GaussianNoise(sigma=1e-4), 3, Evidence.FELL_SHORT),
        (defenses.GaussianNoise(sigma=0.1), 3, Evidence.FELL_SHORT),
        (defenses.Precode(), 40, Evidence.FELL_SHORT),  # the plain search does not know the draws
        (defenses.GaussianNoise(sigma=10.0), 100, Evidence.HIDDEN),
    ],
)
def test_a_search_that_is_worse_than_the_truth_fell_short(
    digits: Victims, defense: Defense, steps: int, expected: Evidence
) -> None:
    assert evidence(digits, short(steps), defense) == [expected] * 3


@pytest.mark.parametrize(
    ("attack", "step"),
    [
        (short(1), None),
        (presets.dlg(steps=1), None),
        (presets.bayes(density="gaussian", scale=0.1, steps=1), None),
        (LeaveOut(attack=presets.inverting_gradients(steps=2)), None),
        (Analytic(), None),
        (short(1), clients.LocalTraining(steps=3, lr=0.01, batch_size=2)),
        (AverageOrders(attack=presets.inverting_gradients(steps=1), draws=2),
         clients.LocalTraining(epochs=1, lr=0.1, batch_size=2, shuffle=True)),
    ],
)  # fmt: skip
def test_the_clients_own_step_explains_an_update_that_no_defense_changed(attack: Attack, step: Step | None) -> None:
    images = 1 if step is None else 3
    draws = torch.Generator().manual_seed(0)
    private = torch.rand(2, images, 1, 8, 8, generator=draws)
    victims = Victims(private, torch.zeros(2, images, dtype=torch.long), torch.zeros(2, images).long(), ("a", "b"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 10))
    threat = replace(attack.needs(), labels=True)
    ran = Job(Audit(model=model, victims=victims, attack=attack, step=step, threat=threat)).run(lambda *_, **__: None)
    assert float(ran.truth.abs().max()) < 1e-6


def test_the_truth_is_measured_as_the_attack_measures_what_it_found(digits: Victims) -> None:
    """A search that starts at the private images and takes no step finds the same match."""
    attack = presets.inverting_gradients(steps=1)
    one = digits.take(slice(1))
    near = replace(attack, start=_At(one.images), optimiser=optimisers.Adam(lr=1e-12))
    model = models.build("cnn", shape=digits.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    for defense in (defenses.GaussianNoise(sigma=0.01), defenses.Soteria(), defenses.RandomPruning(rate=0.5)):
        ran = Job(Audit(model=model, victims=one, attack=near, defense=defense)).run(lambda *_, **__: None)
        assert torch.allclose(ran.found.match, ran.truth, atol=1e-4), defense


def test_records_and_summary_say_what_became_of_every_image(digits: Victims) -> None:
    model = models.build("cnn", shape=digits.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    result = audit(model, digits, attack=short(3))
    assert result.scores.evidence == {"fell short": 3}
    assert {record.evidence for record in result.records} == {"fell short"}
    lenient = rescore(result, Scoring(threshold=1e-3))
    assert lenient.scores.evidence == {"read": 3}


class _Plain(nn.Module):
    """Images of one grey each."""

    def forward(self, z: Tensor) -> Tensor:
        return z.sigmoid()[:, :1, None, None].expand(-1, 1, 32, 32)


class _Any(nn.Module):
    """Any image at all."""

    def forward(self, z: Tensor) -> Tensor:
        return z.sigmoid().reshape(-1, 1, 32, 32)


@pytest.mark.parametrize(
    ("network", "latent", "fits"), [(_Plain(), 2, False), (_Any(), 1024, True)], ids=["one grey", "any image"]
)
def test_what_a_generator_cannot_make_does_not_fit(
    digits: Victims, network: nn.Module, latent: int, fits: bool
) -> None:
    """Such a search can read nothing, whatever the update holds; that it fell short would call for more steps."""
    model = models.build("cnn", shape=digits.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    made = generators.Generator(network=network, latent=latent, shape=digits.shape)
    for by in ("adam", "cma"):
        attack = presets.ggl(generator=made, by=by, steps=2, labels="known")  # type: ignore[arg-type]
        result = audit(model, digits, attack=attack)
        assert result.scores.evidence == ({"fell short": 3} if fits else {"does not fit": 3})
        assert weigh(result).kind is Kind.INCONCLUSIVE
    if not fits:
        assert "no attack fits these updates" in weigh(result).sentence


def test_weights_of_a_generator_reach_any_digit(digits: Victims) -> None:
    target = target_of(
        models.build("cnn", shape=digits.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,)), (1, 32, 32)
    )
    beyond = out_of_reach(presets.grnn(width=4), target, digits.images[:1], 0.5, tile=1)
    assert beyond is not None
    assert not beyond.any()
    assert out_of_reach(presets.inverting_gradients(), target, digits.images, 0.5, tile=1) is None


class _Grey(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.sigmoid()[:, :1, None, None].expand(-1, 1, 6, 6)


@pytest.mark.parametrize("name", presets.BY_NAME)
def test_the_truth_of_every_preset_is_nearer_than_anything_else(name: str) -> None:
    """In its own measure, and at a distance of 0 unless that is a density; several updates are averaged or one is."""
    made = generators.Generator(network=_Grey(), latent=2, shape=(1, 6, 6))
    attack = presets.BY_NAME[name](**{"generator": made} if name == "ggl" else {})
    target = tiny_target()
    private = torch.rand(3, 1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    seen = observe(target, private, torch.tensor([[0], [1], [4]]))
    noise = torch.Generator().manual_seed(1)
    other = {key: g + 0.1 * torch.randn(g.shape, generator=noise) for key, g in seen.gradient.items()}
    for whole, rounds in ((attack, 1), (AverageRounds(attack=attack), 2)):
        own = whole.apart(target, [seen] * rounds, [seen] * rounds)
        far = whole.apart(target, [seen._replace(gradient=other)] * rounds, [seen] * rounds)
        assert own.shape == (3,)
        assert own.isfinite().all()
        assert (own < far).all()
        if name != "bayes":
            assert own.abs().max() < (2e-3 if name == "joint" else 1e-6)  # a chord is rounded off at 1e-3


def test_an_attack_on_labels_alone_is_no_evidence_for_images(digits: Victims) -> None:
    """One label that is right is no test, and images were not attacked at all; this was said to be no leak."""
    model = models.build("cnn", shape=digits.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    found = weigh(audit(model, digits.take(slice(1)), attack=presets.labels_only()))
    assert found.kind is Kind.INCONCLUSIVE
    assert "images were not looked for; use an attack on them (--attack ig, or auto)" in found.sentence
