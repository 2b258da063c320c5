"""What DP-SGD costs is that of the training that ran, by Opacus' own accountant."""

from pathlib import Path

import pytest

from dosimeter import defenses
from dosimeter.federated import Federation, chosen, train
from dosimeter.federated.accounting import privacy, privacy_words
from dosimeter.federated.checkpoint import read_history
from small_federation import federation

PRIVATE = defenses.DpSgd(clip=1.0, sigma=0.8, delta=1e-4)


def opacus_says(steps: dict[tuple[float, int], int]) -> float:
    """The most that one of so many (rate, steps) costs, step by step."""
    from opacus.accountants import RDPAccountant

    found = []
    for rate, many in steps:
        accountant = RDPAccountant()
        for _ in range(many):
            accountant.step(noise_multiplier=0.8, sample_rate=rate)
        found.append(accountant.get_epsilon(delta=1e-4))
    return max(found)


def spent(task: Federation, rounds: int) -> dict[tuple[float, int], int]:
    """(rate, steps) of every client, counted by hand."""
    found = {}
    for client in range(task.protocol.clients):
        times = sum(client in chosen(task, round_) for round_ in range(rounds))
        images = len(task.holdings[client].train)
        batches = -(-images // 8)
        if times:
            found[min(8, images) / images, times * (task.protocol.steps or batches)] = client
    return found


@pytest.mark.parametrize("more", [{}, {"alpha": 0.5, "share": 0.4}, {"epochs": None, "steps": 5}], ids=str)
def test_the_cost_is_that_of_the_client_that_spent_most(more: dict[str, object]) -> None:
    task = federation(PRIVATE, **more)
    found = privacy(task, 3)
    assert found["epsilon"] == pytest.approx(opacus_says(spent(task, 3)))
    assert found["delta"] == 1e-4
    assert privacy(task, 0) == {"epsilon": 0.0, "delta": 1e-4}


def test_steps_that_are_left_out_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """DP-SGD refuses batch norm, so that nothing is left out of it today."""
    task = federation(PRIVATE, clients=3, batch_size=15)
    monkeypatch.setattr(type(task), "alone", False)
    assert privacy(task, 2)["epsilon"] == pytest.approx(opacus_says({(15 / 16, 2): 0}))


def test_it_is_the_defenses_own_figure_and_that_of_no_other_defense() -> None:
    one = federation(PRIVATE | defenses.Pruning(ratio=0.5), clients=1, batch_size=12)
    own = defenses.DpSgd(sigma=0.8, delta=1e-4, rate=0.25, steps=8).epsilon()
    assert privacy(one, 2)["epsilon"] == pytest.approx(own)
    assert privacy(federation(defenses.GaussianNoise(sigma=1.0)), 2) == {}
    silent = privacy(federation(defenses.DpSgd(sigma=0.0)), 2)
    assert silent == {"epsilon": None, "delta": 1e-5}
    assert privacy_words(silent) == "infinite at delta 1e-05"
    assert privacy_words({}) == ""


def test_every_round_says_what_was_spent_until_then(tmp_path: Path) -> None:
    task = federation(PRIVATE, epochs=None, steps=1, rounds=2)
    found = train(task, folder=tmp_path)
    assert [entry["epsilon"] for entry in found.history] == [privacy(task, done)["epsilon"] for done in (1, 2)]
    assert found.history[0]["epsilon"] < found.history[1]["epsilon"]
    assert read_history(tmp_path)["rounds"][-1]["epsilon"] == found.history[-1]["epsilon"]
    assert "epsilon" not in train(federation(rounds=1)).history[0]
