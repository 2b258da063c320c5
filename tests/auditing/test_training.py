"""Audits of clients that train locally, by attackers who were told how and by those who were not."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dosimeter as dm
from dosimeter.auditing import Audit, estimate, explain
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Step, Target, Trained, Watch

SEARCH = dm.presets.inverting_gradients(steps=15, tv=1e-3)
GUESS = dm.GuessSteps(attack=SEARCH, guesses=(1, 2, 4), trial=10)
STEP = dm.clients.LocalTraining(steps=2, lr=0.01)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 12), nn.Sigmoid(), nn.Linear(12, 10))


def some_victims(n: int = 2, batch: int = 1) -> dm.Victims:
    return dm.pick(dm.load("mnist-5k"), n, batch=batch, seed=0)


@dataclass(frozen=True, kw_only=True)
class Spy(dm.Attack):
    """Keeps what an attack is handed; attacks with nothing."""

    grants: dm.ThreatModel
    name: str = "spy"
    seen: list[tuple[Step | None, Observation]] = field(default_factory=list)

    def needs(self) -> dm.ThreatModel:
        return self.grants

    def blind(self) -> dm.Search:
        return SEARCH.blind()

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        self.seen.append((target.step, observations[0]))
        return SEARCH.blind()(target, observations, seed=seed)


def spied(step: Step, batch: int = 1, **withheld: bool) -> tuple[Step | None, Observation]:
    spy = Spy(grants=dm.ThreatModel(labels=True, **withheld))
    dm.audit(small_model(), some_victims(1, batch), attack=spy, step=step)
    ((told, seen),) = spy.seen
    return told, seen


def test_an_attacker_is_told_what_is_granted_and_nothing_else() -> None:
    step = dm.clients.LocalTraining(epochs=2, lr=0.0123, batch_size=2)
    untold = dm.clients.UntoldTraining
    assert spied(step, 3)[0] == step
    assert spied(step, 3, local_steps=False)[0] == untold(steps=None, lr=0.0123, batch_size=2)
    assert spied(step, 3, local_lr=False)[0] == untold(steps=4, lr=None, batch_size=2)
    assert spied(step, 3, local_steps=False, local_lr=False)[0] == untold(steps=None, lr=None, batch_size=2)


def test_without_the_rate_an_update_is_the_plain_difference_of_weights() -> None:
    _, told = spied(STEP)
    _, plain = spied(STEP, local_lr=False)
    for name, g in told.gradient.items():
        assert torch.allclose(plain.gradient[name], 0.01 * g, rtol=1e-5)


def test_a_client_draws_its_order_from_a_stream_of_its_own() -> None:
    fixed = dm.clients.LocalTraining(epochs=1, lr=0.5, batch_size=1)
    shuffled = replace(fixed, shuffle=True)
    (_, plain), (told, drawn), (_, again) = spied(fixed, 5), spied(shuffled, 5), spied(shuffled, 5)
    assert told == shuffled
    assert torch.equal(drawn.gradient["1.weight"], again.gradient["1.weight"])
    assert not torch.allclose(drawn.gradient["1.weight"], plain.gradient["1.weight"], rtol=1e-3)


def test_an_audit_by_guessing_says_what_was_guessed_and_how_often_it_was_right() -> None:
    result = dm.audit(small_model(), some_victims(), attack=GUESS, step=STEP)
    assert [(r.guessed_steps, r.guessed_lr) for r in result.records] == [(2, 0.01)] * 2
    assert (result.scores.trained.hits, result.scores.trained.of) == (2, 2)
    assert result.threat == dm.ThreatModel(labels=True, local_steps=False)
    assert result.settings["attack_name"] == "ig-guess"
    whole = dm.Audit(model=small_model(), victims=some_victims(), attack=GUESS, step=STEP)
    assert explain(whole)
    wrong = dm.audit(small_model(), some_victims(), attack=replace(GUESS, guesses=(1, 4)), step=STEP)
    assert wrong.scores.trained.hits == 0
    told = dm.audit(small_model(), some_victims(), attack=SEARCH, step=STEP)
    assert told.scores.trained is None
    assert torch.allclose(told.images, result.images, atol=1e-4)


def test_a_captured_update_of_torchs_own_training_is_read() -> None:
    victims, model = some_victims(1), small_model()
    trained = copy.deepcopy(model)
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(trained(victims.images[0]), victims.labels[0]).backward()
        optimiser.step()
    after = dict(trained.named_parameters())
    change = {name: (p - after[name]).detach() for name, p in model.named_parameters()}
    sent = dm.Capture(change, (1, 28, 28), labels=victims.labels[0])
    slopes = sent._replace(update={n: g / 0.05 for n, g in change.items()})
    momentum = dm.clients.optimisers.SGD(momentum=0.9)
    step = dm.clients.LocalTraining(steps=3, lr=0.05, optimiser=momentum)
    attack = dm.presets.inverting_gradients(steps=80, tv=1e-3)
    found = dm.reconstruct(model, slopes, attack=attack, step=step)
    assert float(dm.metrics.ssim(found.images[0].clamp(0, 1), victims.images[0])) > 0.6
    guess = dm.GuessSteps(attack=SEARCH, guesses=(1, 3, 6), trial=10)
    untold = step.untold(1, steps=False, lr=True)
    assert dm.reconstruct(model, slopes, attack=guess, step=untold).trained == (Trained(3, 0.05),)
    guess = dm.GuessSteps(attack=SEARCH, guesses=(), rates=(0.01, 0.05), trial=10)
    untold = step.untold(1, steps=True, lr=False)
    found = dm.reconstruct(model, sent, attack=guess, step=untold)
    assert found.trained == (Trained(3, 0.05),)
    with pytest.raises(SettingError, match="nothing to guess"):
        dm.reconstruct(model, sent, attack=guess)


REFUSED: list[tuple[dm.Attack, dict[str, Any], str]] = [
    (SEARCH, {"step": STEP, "threat": dm.ThreatModel(labels=True, local_steps=False)}, "let the attack guess"),
    (SEARCH, {"step": STEP, "threat": dm.ThreatModel(labels=True, local_lr=False)}, "let the attack guess"),
    (GUESS, {"step": STEP, "threat": dm.ThreatModel(labels=True)}, "nothing to guess"),
    (GUESS, {"step": None}, "clients send one gradient"),
    (GUESS, {"step": dm.clients.ClippedGradient(bound=1.0)}, "is no LocalTraining"),
    (GUESS, {"step": STEP, "threat": dm.ThreatModel(local_steps=False)}, "needs the labels"),
    (GUESS, {"step": STEP, "threat": dm.ThreatModel(labels=True, local_steps=False, local_lr=False)}, "withholds some"),
]


@pytest.mark.parametrize(("attack", "settings", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_guessed_is_refused_before_any_work(
    attack: dm.Attack, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says) as refused:
        dm.audit(small_model(), some_victims(), attack=attack, **settings)
    assert "\n" not in str(refused.value)


def test_more_local_steps_take_more_memory_whoever_simulates_them() -> None:
    def planned(attack: dm.Attack, steps: int) -> float:
        setting = Audit(
            model=small_model(),
            victims=some_victims(),
            attack=attack,
            step=dm.clients.LocalTraining(steps=steps, lr=0.1),
            resources=dm.Resources(workers=1),
        )
        return estimate(setting)["bytes"]

    one, two, guessed = planned(SEARCH, 1), planned(SEARCH, 2), planned(replace(GUESS, guesses=(1, 9)), 2)
    assert one < two < guessed
