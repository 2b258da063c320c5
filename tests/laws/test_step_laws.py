"""What is audited is what is trained: one client's step gives the same update in a round and in an audit."""

from typing import Literal

import numpy as np
import pytest
import torch

from dosimeter import clients, defenses, federated, presets, rng
from dosimeter.auditing import Audit, Updates
from dosimeter.auditing.captured.shadows import InPlace
from dosimeter.auditing.job import Job
from dosimeter.defenses import Defense
from dosimeter.types import Victims
from small_federation import federation

DEFENSES = {name: make() for name, make in defenses.BY_NAME.items() if name != "fedkl"} | {
    "fedkl:share=lock": defenses.KeyLock(share="lock"),  # of others an audit models the lock that stays with the client
    "joined": defenses.Cvb(kernel=3) | defenses.RandomPruning(rate=0.3) | defenses.GaussianNoise(sigma=0.1),
    "clipped": defenses.Precode(k=4) | defenses.DpSgd(clip=0.1, sigma=0.2),
}
ACTING = [name for name, defense in DEFENSES.items() if not defense.recomputes and name != "soteria"]
"""Those that may act on a change of weights, without its batch."""
PURPOSES = ("secrets", "defense", "batch", "order", "client")


@pytest.fixture(autouse=True)
def _same_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits and rounds name their streams differently; here a purpose alone names one."""
    plain = rng.stream

    def stream(seed: int, *names: str | int) -> torch.Generator:
        purpose = names[1] if names[0] == "training" else names[0]
        return plain(seed, purpose) if purpose in PURPOSES else plain(seed, *names)

    monkeypatch.setattr(rng, "stream", stream)
    monkeypatch.setattr(federated.client, "stream", stream)


def trained(
    defense: Defense, lr: float, perturbed: Literal["steps", "update"], rule: str = "plain", steps: int = 1
) -> tuple[dict[str, torch.Tensor], Job]:
    """What a client sends after its steps, and the audit of the same images."""
    momentum = 0.9 if rule == "momentum" else 0.0
    decay = 0.01 if rule == "momentum" else 0.0
    task = federation(
        defense, clients=1, rounds=1, epochs=None, steps=steps, batch_size=4, lr=lr, perturbed=perturbed,
        optimiser="adam" if rule == "adam" else "sgd", momentum=momentum, weight_decay=decay, validation=0.0,
    )  # fmt: skip
    before = task.initial()
    sent = federated.fit(task, before, 0, 0).sent
    places = np.concatenate(list(federated.client._batches(task, 0, 0)))
    images, labels = task.images("train", places), task.labels("train", places)
    victims = Victims(images[None], labels[None], torch.as_tensor(places)[None], ("one",))
    audited = federated.as_audited(task, federated.Training(before, {}, []))
    own = clients.optimisers.Adam() if rule == "adam" else clients.optimisers.SGD(momentum=momentum, weight_decay=decay)
    local = clients.LocalTraining(steps=steps, lr=lr, batch_size=4, optimiser=own, perturbed=perturbed)
    setting = Audit(
        model=task.template,
        victims=victims,
        attack=presets.inverting_gradients(steps=1),
        defense=InPlace(inner=audited, lr=lr) if perturbed == "update" else audited,
        step=local if steps > 1 else None,
        updates=Updates(batch_norm="batch" if "KeyLock" in repr(defense) else None),
    )
    return {name: (before[name] - tensor) / lr for name, tensor in sent.items()}, Job(setting)


def check(
    defense: Defense, lr: float, perturbed: Literal["steps", "update"], rule: str = "plain", steps: int = 1
) -> None:
    update, job = trained(defense, lr, perturbed, rule, steps)
    (seen,) = job.observe(job.victims)
    assert seen.gradient.keys() <= update.keys()
    for name, g in seen.gradient.items():
        if rule == "adam" and name.endswith("conv.bias"):  # batch norm takes it out: its slope is rounding, made large
            continue
        assert torch.allclose(update[name], g[0], atol=1e-5 / min(lr, 1.0), rtol=1e-4), name


@pytest.mark.parametrize("name", DEFENSES)
def test_a_step_that_is_perturbed_is_the_audits(name: str) -> None:
    check(DEFENSES[name], 1.0, "steps")


@pytest.mark.parametrize("name", ACTING)
def test_a_change_that_is_perturbed_is_the_audits(name: str) -> None:
    check(DEFENSES[name], 0.5, "update")


@pytest.mark.parametrize("name", DEFENSES)
def test_local_steps_that_are_perturbed_are_the_audits(name: str) -> None:
    check(DEFENSES[name], 0.1, "steps", "plain", 3)


@pytest.mark.parametrize("rule", ["momentum", "adam"])
@pytest.mark.parametrize("name", ["none", "cvb", "joined", "clipped", "fedkl:share=lock", "soteria", "ats"])
def test_local_steps_by_other_rules_are_the_audits(name: str, rule: str) -> None:
    check(DEFENSES[name], 0.01, "steps", rule, 3)


@pytest.mark.parametrize("name", ACTING)
def test_a_change_by_local_steps_that_is_perturbed_is_the_audits(name: str) -> None:
    check(DEFENSES[name], 0.1, "update", "momentum", 3)
