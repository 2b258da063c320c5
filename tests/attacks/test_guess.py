"""An attacker who has to guess how clients trained, on a network small enough for many short searches."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dosimeter import clients, trees
from dosimeter.attacks import GuessSteps, presets
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Target, ThreatModel, Trained
from small import observe, tiny_target

SEARCH = presets.inverting_gradients(steps=12, tv=1e-4)
GUESS = GuessSteps(attack=SEARCH, guesses=(1, 2, 4), trial=8)
TRAINING = clients.LocalTraining(steps=1, lr=1e-3)


def private(n: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(n, batch, 1, 6, 6, dtype=torch.float64), torch.randint(0, 5, (n, batch))


def seen_of(*trained: clients.LocalTraining, batch: int = 1, plain: bool = False) -> tuple[Target, Observation]:
    """The task, and what a server sees of clients that trained so; `plain` differences of weights on demand."""
    task = tiny_target()
    images, labels = private(len(trained), batch)
    updates = [
        clients.gradient(replace(task, step=one), x, y) for one, x, y in zip(trained, images, labels, strict=True)
    ]
    if plain:
        updates = [{n: one.lr * g for n, g in sent.items()} for one, sent in zip(trained, updates, strict=True)]
    return task, observe(task, images, labels)._replace(gradient=trees.stack(updates))


def attacked(task: Target, training: clients.LocalTraining, *told: str, batch: int = 1) -> Target:
    """The task as an attacker knows it who was told so much of the training."""
    return replace(task, step=training.untold(batch, steps="steps" in told, lr="lr" in told))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"lr": 0.1},
        {"batch_size": 2, "optimiser": clients.optimisers.SGD(momentum=0.9)},
        {"optimiser": clients.optimisers.Adam()},
    ],
    ids=["small", "large", "batches with momentum", "adam"],
)
def test_every_victims_own_number_of_steps_is_found(how: dict[str, Any]) -> None:
    numbers, batch = [4, 1, 2], 3 if "batch_size" in how else 1
    training = replace(TRAINING, **how)
    task, seen = seen_of(*(replace(training, steps=n) for n in numbers), batch=batch)
    found = GUESS(attacked(task, training, "lr", batch=batch), [seen], seed=0)
    assert found.trained == tuple(Trained(n, training.lr) for n in numbers)


def test_the_whole_search_runs_with_the_guess_and_victims_keep_their_places() -> None:
    trained = [clients.LocalTraining(steps=n, lr=0.1) for n in (1, 4, 2)]
    task, seen = seen_of(*trained)
    found = GUESS(attacked(task, trained[0], "lr"), [seen], seed=3)
    for v, training in enumerate(trained):
        one = trees.rows(seen, torch.tensor([v]))._replace(ids=(seen.ids[v],))
        alone = SEARCH(replace(task, step=training), [one], seed=3)
        assert torch.allclose(found.images[v], alone.images[0], atol=1e-9)
        assert torch.allclose(found.curve.match[v], alone.curve.match[0], atol=1e-9)
        assert float(found.match[v]) == pytest.approx(float(alone.match[0]), abs=1e-9)
    assert found.outcomes == ("steps",) * 3
    assert found.steps.tolist() == [12] * 3


def test_a_learning_rate_is_told_from_the_size_of_the_plain_difference_of_weights() -> None:
    rates = (1e-3, 1e-2, 0.1)
    trained = [clients.LocalTraining(steps=3, lr=lr) for lr in rates]
    task, seen = seen_of(*trained, plain=True)
    guess = replace(GUESS, guesses=(), rates=rates)
    found = guess(attacked(task, trained[0], "steps"), [seen], seed=0)
    assert found.trained == tuple(Trained(3, lr) for lr in rates)


def test_of_steps_and_rate_the_product_is_told() -> None:
    trained = [clients.LocalTraining(steps=2, lr=1e-2), clients.LocalTraining(steps=5, lr=1e-3)]
    task, seen = seen_of(*trained, plain=True)
    found = replace(GUESS, guesses=(2, 5), rates=(1e-3, 1e-2))(attacked(task, trained[0]), [seen], seed=0)
    assert [one.steps * one.lr for one in found.trained] == [one.count(1) * one.lr for one in trained]


def test_what_is_guessed_need_not_be_granted() -> None:
    assert GUESS.needs() == ThreatModel(labels=True, local_steps=False, defense=False)
    assert replace(GUESS, guesses=(), rates=(0.1,)).needs() == ThreatModel(labels=True, local_lr=False, defense=False)


def test_without_the_update_it_is_the_search_without_the_update() -> None:
    task, seen = seen_of(TRAINING)
    blind = GUESS.blind()(attacked(task, TRAINING, "lr"), [seen], seed=0)
    assert torch.equal(blind.images, SEARCH.blind()(task, [seen], seed=0).images)


def test_progress_rises_to_the_whole_and_an_interrupt_ends_all_searches() -> None:
    task, seen = seen_of(*(replace(TRAINING, steps=n) for n in (1, 4)))
    target, marks = attacked(task, TRAINING, "lr"), []

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        marks.append((done, total))
        if len(marks) == limit:
            raise KeyboardInterrupt

    limit = -1
    assert GUESS(target, [seen], seed=0, watch=watch).outcomes == ("steps",) * 2
    assert [done for done, _ in marks] == sorted(done for done, _ in marks)
    assert {total for _, total in marks} == {GUESS.cost(target, 1).steps} == {3 * 8 + 12}
    assert marks[-1][0] == 3 * 8 + 12
    for limit in (10, 3 * 8 + 5):  # within the tries, within the whole search
        marks.clear()
        found = GUESS(target, [seen], seed=0, watch=watch)
        assert "interrupted" in found.outcomes
        assert len(found.outcomes) == len(found.images) == len(found.trained) == 2
        assert len(marks) == limit


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"guesses": ()}, "numbers of local steps or learning rates to try, got none"),
        ({"guesses": (0, 1)}, "numbers of local steps of at least 1, got 0"),
        ({"rates": (-0.1,)}, "learning rates above 0"),
        ({"trial": 0}, "trial of at least 1, got 0"),
    ],
)
def test_guesses_that_cannot_be_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        replace(GUESS, **settings)


def test_what_is_told_is_not_guessed_and_what_is_not_told_is() -> None:
    task, _ = seen_of(TRAINING)
    for target, says in (
        (task, "clients send one gradient"),
        (replace(task, step=TRAINING), r"clients send LocalTraining\(steps=1"),
        (attacked(task, TRAINING, "steps"), "local steps are both granted and guessed"),
        (attacked(task, TRAINING), "local learning rates are neither granted nor guessed"),
    ):
        with pytest.raises(SettingError, match=says):
            GUESS.check(target, 1)
    GUESS.check(attacked(task, TRAINING, "lr"), 1)


def test_a_search_alone_cannot_simulate_what_it_was_not_told() -> None:
    task, seen = seen_of(TRAINING)
    with pytest.raises(SettingError, match="let it guess"):
        SEARCH(attacked(task, TRAINING, "lr"), [seen], seed=0)
