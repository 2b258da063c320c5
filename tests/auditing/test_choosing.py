"""Victims chosen by their gradients, against plain autograd."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dosimeter import clients, defenses, models, presets
from dosimeter.auditing import Audit
from dosimeter.auditing.choosing import by_gradient
from dosimeter.data import load, pick


@pytest.fixture(scope="module")
def asked() -> Audit:
    pool = pick(load("mnist-5k", size=14), 12, batch=2, seed=1)
    model = models.build("mlp-2", shape=pool.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    return Audit(model=model, victims=pool, attack=presets.inverting_gradients(steps=1))


def norms(audit: Audit) -> list[float]:
    assert audit.victims is not None
    found = []
    for images, labels in zip(audit.victims.images, audit.victims.labels, strict=True):
        slopes = torch.autograd.grad(F.cross_entropy(audit.model(images), labels), list(audit.model.parameters()))
        found.append(float(torch.cat([g.flatten() for g in slopes]).norm()))
    return found


def test_victims_are_those_with_the_largest_or_smallest_gradients(asked: Audit) -> None:
    pool, size = asked.victims, norms(asked)
    assert pool is not None
    order = sorted(range(12), key=size.__getitem__)
    assert by_gradient(asked, 3, largest=False).ids == tuple(pool.ids[v] for v in order[:3])
    assert by_gradient(asked, 3, largest=True).ids == tuple(pool.ids[v] for v in order[::-1][:3])


def test_neither_the_step_nor_a_defense_of_updates_has_a_say(asked: Audit) -> None:
    plain = by_gradient(asked, 4, largest=True)
    noisy = replace(asked, defense=defenses.GaussianNoise(sigma=10.0), step=clients.LocalTraining(steps=3, lr=0.1))
    assert by_gradient(noisy, 4, largest=True).ids == plain.ids


def test_what_a_model_draws_is_drawn_alike_every_time(asked: Audit) -> None:
    noisy = replace(asked, defense=defenses.Precode(k=4))
    assert by_gradient(noisy, 5, largest=True).ids == by_gradient(noisy, 5, largest=True).ids
