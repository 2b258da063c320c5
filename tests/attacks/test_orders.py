"""An attacker who averages over the orders of clients that shuffle."""

from dataclasses import replace

import pytest
import torch

from dosimeter import clients, rng, trees
from dosimeter.attacks import AverageOrders, presets
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Target
from small import observe, tiny_target

SEARCH = presets.inverting_gradients(steps=12, tv=1e-4)
TRAINING = clients.LocalTraining(epochs=2, lr=0.1, batch_size=2, shuffle=True)
BATCH = 3


def shuffled(seed: int = 0) -> tuple[Target, Observation]:
    """The task, and what two clients send that have drawn their orders."""
    torch.manual_seed(seed)
    task = replace(tiny_target(), step=TRAINING)
    images, labels = torch.rand(2, BATCH, 1, 6, 6, dtype=torch.float64), torch.randint(0, 5, (2, BATCH))
    seen = observe(replace(task, step=None), images, labels)
    sent = [
        clients.gradient(task, x, y, rng.stream(seed, "order", i))
        for i, (x, y) in enumerate(zip(images, labels, strict=True))
    ]
    return task, seen._replace(gradient=trees.stack(sent))


def test_it_is_the_search_on_the_mean_update_of_its_own_orders() -> None:
    task, seen = shuffled()

    def mean(target, parameters, images, labels):  # type: ignore[no-untyped-def]
        drawn = (TRAINING.shuffled(BATCH, rng.stream(7, "assumed order", k)) for k in range(3))
        one, two, three = (step(target, parameters, images, labels) for step in drawn)
        return {name: (one[name] + two[name] + three[name]) / 3 for name in one}

    found = AverageOrders(attack=SEARCH, draws=3)(task, [seen], seed=7)
    wanted = SEARCH(replace(task, step=mean), [seen], seed=7)
    assert torch.allclose(found.images, wanted.images, atol=1e-8)
    assert not torch.allclose(found.images, SEARCH(task, [seen], seed=7).images, atol=1e-3)


def test_over_many_orders_every_image_counts_alike() -> None:
    task, _ = shuffled()
    steps = [replace(TRAINING, lr=1e-9).shuffled(BATCH, rng.stream(0, k)) for k in range(200)]
    images, labels = torch.rand(BATCH, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 2])
    mean = torch.stack([step(task, task.parameters, images, labels)["1.3.weight"] for step in steps]).mean(0)
    even = clients.gradient(replace(task, step=None), images, labels)["1.3.weight"]
    assert float(torch.cosine_similarity(mean.flatten(), even.flatten(), dim=0)) > 0.999


def test_clients_that_do_not_shuffle_are_refused() -> None:
    task, seen = shuffled()
    attack = AverageOrders(attack=SEARCH)
    attack.check(task, BATCH)
    for step in (None, replace(TRAINING, shuffle=False), clients.ClippedGradient(bound=1.0)):
        with pytest.raises(SettingError, match="where clients shuffle"):
            attack.check(replace(task, step=step), BATCH)
    with pytest.raises(SettingError, match="draws of at least 1"):
        replace(attack, draws=0)
    blind = attack.blind()(task, [seen], seed=0)
    assert torch.equal(blind.images, SEARCH.blind()(task, [seen], seed=0).images)
