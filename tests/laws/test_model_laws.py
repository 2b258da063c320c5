"""Every model that goes by name can be audited in every way it says, and trained; tried on narrow ones.

The oracle is plain autograd, one victim at a time, through the model as torch itself trains or evaluates it.
"""

import copy
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import clients, engine, models
from dosimeter.attacks import presets
from dosimeter.auditing import Audit, Resources, Updates
from dosimeter.auditing.job import Job
from dosimeter.errors import ModelError
from dosimeter.types import BatchNorm, Observation, Target, Victims
from engine.test_engine_statistics import Told
from models.test_every_model import NARROW

CLASSES, BATCH, VICTIMS = 5, 3, 2


def side(name: str) -> int:
    """Small images that the model still takes; on smaller ones batch norm by the batch makes chaos of 152 layers."""
    return 32 if name == "resnet152" else max(8, models.BY_NAME[name].least)


def build(name: str) -> nn.Module:
    size = side(name)
    shape = (3, size, size)
    return models.build(name, shape=shape, classes=CLASSES, mean=(0.4,), std=(0.25,), seed=0, settings=NARROW.get(name))


def norms(model: nn.Module) -> dict[str, nn.BatchNorm1d | nn.BatchNorm2d]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)}


WITH_NORM = [name for name in models.BY_NAME if norms(build(name))]
MODES: list[tuple[str, BatchNorm]] = [
    *((name, "running") for name in models.BY_NAME),
    *((name, "batch") for name in WITH_NORM),
    *((name, "sent") for name in WITH_NORM),
]


class Seen(NamedTuple):
    """An audit's view of two victims, and the same model for the oracle."""

    model: nn.Module
    client: Target
    attacked: Target
    victims: Victims
    observation: Observation


def observe(name: str, mode: BatchNorm) -> Seen:
    torch.manual_seed(0)
    size = side(name)
    victims = Victims(
        torch.rand(VICTIMS, BATCH, 3, size, size, dtype=torch.float64),
        torch.randint(CLASSES, (VICTIMS, BATCH)),
        torch.arange(VICTIMS * BATCH).reshape(VICTIMS, BATCH),
        ("one", "other"),
    )
    model = build(name).double().eval()
    for layer in norms(model).values():  # as after some training
        layer.running_mean.uniform_(-0.1, 0.1)  # type: ignore[union-attr]
        layer.running_var.uniform_(0.8, 1.2)  # type: ignore[union-attr]
    job = Job(
        Audit(
            model=model,
            victims=victims,
            attack=presets.inverting_gradients(),
            updates=Updates(batch_norm=mode),
            resources=Resources(dtype=torch.float64),
        )
    )
    seen = job.observe(victims)[0]
    return Seen(model, job.client.target, job.attacker.target, victims, seen)


def gradients(model: nn.Module, images: Tensor, labels: Tensor, **how: bool) -> list[Tensor]:
    loss = F.cross_entropy(model(images), labels)
    return list(torch.autograd.grad(loss, list(model.parameters()), **how))


def simulated(seen: Seen, mode: BatchNorm, victim: int) -> nn.Module:
    """The model as the attacker should run it for this victim, by torch's own means."""
    model = copy.deepcopy(seen.model).train(mode == "batch")
    if mode == "sent":
        assert seen.observation.statistics is not None
        for name, layer in norms(model).items():
            parent, _, own = name.rpartition(".")
            told = Told(layer, *(t[victim] for t in seen.observation.statistics[name]))
            setattr(model.get_submodule(parent), own, told)
    return model


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert float((found - wanted).abs().max()) <= 1e-6 * float(wanted.abs().max())


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_clients_and_engine_do_as_torch_does(name: str, mode: BatchNorm) -> None:
    seen = observe(name, mode)
    client = copy.deepcopy(seen.model).train(mode != "running")
    for v, (x, y) in enumerate(zip(seen.victims.images, seen.victims.labels, strict=True)):
        for sent, plain in zip(seen.observation.gradient.values(), gradients(client, x, y), strict=True):
            assert sent[v].shape == plain.shape
            assert float((sent[v] - plain).abs().max()) <= 1e-9 * max(1.0, float(plain.abs().max()))

    matcher = engine.Matcher(seen.attacked, seen.observation.gradient, statistics=seen.observation.statistics)
    truth = matcher(seen.victims.images, seen.victims.labels, torch.arange(VICTIMS))
    assert (truth.difference.sum(1) <= 1e-9 * truth.observed.sum(1)).all()  # the true images explain what was seen
    if (name, mode) == ("resnet152", "sent"):
        return  # a hundred-thousandth away from the truth its slopes are 1e50 and no two computations of them agree
    owner = torch.tensor([1, 0])
    candidates = torch.rand_like(seen.victims.images)
    if mode == "sent":  # far from the truth the statistics of another batch make chaos of deep networks
        candidates = seen.victims.images[owner] + 1e-4 * candidates
    candidates.requires_grad_()
    products = matcher(candidates, seen.victims.labels[owner], owner)
    assert matcher.way in ("chain", "tape"), matcher.why
    cosine = products.cross.sum(1) / (products.simulated.sum(1) * products.observed.sum(1)).sqrt()
    (slope,) = torch.autograd.grad(cosine.sum(), candidates)

    for i, v in enumerate(owner.tolist()):
        x = candidates[i].detach().requires_grad_()
        found = gradients(simulated(seen, mode, v), x, seen.victims.labels[v], create_graph=True)
        wanted = [g[v] for g in seen.observation.gradient.values()]
        one, other = (torch.cat([g.flatten() for g in tree]) for tree in (found, wanted))
        match = F.cosine_similarity(one, other, dim=0, eps=0)
        assert_close(cosine[i].detach(), match.detach())
        assert_close(slope[i], torch.autograd.grad(match, x)[0])


@pytest.mark.parametrize("name", models.BY_NAME)
def test_a_few_steps_of_training_lower_the_loss(name: str) -> None:
    torch.manual_seed(0)
    model, size = build(name).train(), side(name)
    images, labels = torch.rand(8, 3, size, size), torch.arange(8) % CLASSES
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0], losses


@pytest.mark.parametrize("name", models.BY_NAME)
def test_it_takes_images_from_the_size_it_says(name: str) -> None:
    entry = models.BY_NAME[name]
    scale = {"classes": CLASSES, "mean": (0.4,), "std": (0.25,), "seed": 0, "settings": NARROW.get(name)}
    for size in (entry.least, entry.least + entry.multiple):
        model = models.build(name, shape=(1, size, size), **scale).eval()  # type: ignore[arg-type]
        assert model(torch.rand(2, 1, size, size)).shape == (2, CLASSES)
    if name == "convbig":
        return  # it would take smaller ones
    for size in {entry.least - 1, entry.least + entry.multiple - 1} - {0, entry.least}:
        with pytest.raises(ModelError, match="--size"):
            models.build(name, shape=(1, size, size), **scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WITH_NORM)
def test_statistics_are_of_every_batch_norm(name: str) -> None:
    seen = observe(name, "sent")
    assert seen.observation.statistics is not None
    assert list(seen.observation.statistics) == list(norms(seen.model))
    again = clients.statistics(seen.client, seen.victims.images[1])
    assert all(torch.equal(pair[0], seen.observation.statistics[key][0][1]) for key, pair in again.items())
