"""Local training against torch.optim.SGD, clipped gradients against single images one after the other."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import clients
from dosimeter.errors import SettingError
from dosimeter.types import Step, Target

few = settings(max_examples=15, deadline=None)
BATCH = 6


def target(step: Step | None = None, seed: int = 0) -> Target:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 4)).double()
    model[3].bias.requires_grad_(False)
    return Target(model, F.cross_entropy, (1, 6, 6), torch.zeros(1, 1, 1), torch.ones(1, 1, 1), step=step)


def private(seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed + 1)
    return torch.rand(BATCH, 1, 6, 6, dtype=torch.float64), torch.randint(0, 4, (BATCH,))


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert not found[name].requires_grad
        assert torch.allclose(found[name], tensor, rtol=1e-9, atol=1e-11), name


@few
@given(lr=st.floats(1e-3, 10), seed=st.integers(0, 10_000))
def test_one_local_step_is_the_gradient(lr: float, seed: int) -> None:
    step = clients.LocalTraining(steps=1, lr=lr)
    found = clients.gradient(target(step, seed), *private(seed))
    assert_same(found, clients.gradient(target(None, seed), *private(seed)))


@few
@given(
    steps=st.integers(1, 5), lr=st.floats(1e-3, 1), batches=st.sampled_from([1, 2, 3, 6]), seed=st.integers(0, 10_000)
)
def test_local_steps_are_those_of_plain_sgd(steps: int, lr: float, batches: int, seed: int) -> None:
    task = target(clients.LocalTraining(steps=steps, lr=lr, batches=batches), seed)
    images, labels = private(seed)
    before = {name: p.detach().clone() for name, p in task.model.named_parameters()}
    model = copy.deepcopy(task.model)
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    size = BATCH // batches
    for step in range(steps):
        first = size * (step % batches)
        optimiser.zero_grad()
        F.cross_entropy(model(images[first : first + size]), labels[first : first + size]).backward()
        optimiser.step()
    after = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    assert_same(clients.gradient(task, images, labels), {name: (before[name] - after[name]) / lr for name in after})
    assert all(torch.equal(p, before[name]) for name, p in task.model.named_parameters())


@few
@given(bound=st.floats(1e-2, 5), seed=st.integers(0, 10_000))
def test_clipped_gradients_are_those_of_single_images(bound: float, seed: int) -> None:
    task = target(clients.ClippedGradient(bound=bound), seed)
    images, labels = private(seed)
    model = copy.deepcopy(task.model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in trained.items()}
    for x, y in zip(images, labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(x[None]), y[None]).backward()
        torch.nn.utils.clip_grad_norm_(list(trained.values()), bound)
        for name, p in trained.items():
            assert p.grad is not None
            total[name] += p.grad / BATCH
    found = clients.gradient(task, images, labels)
    assert list(found) == list(total)
    for name, tensor in total.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-7), name  # torch clips to bound / (norm + 1e-6)


def test_a_wide_bound_clips_nothing_and_a_narrow_one_is_the_norm() -> None:
    wide = clients.gradient(target(clients.ClippedGradient(bound=1e9)), *private())
    assert_same(wide, clients.gradient(target(), *private()))
    images, labels = private()
    alone = clients.gradient(target(clients.ClippedGradient(bound=1e-3)), images[:1], labels[:1])
    assert float(torch.cat([g.flatten() for g in alone.values()]).norm()) == pytest.approx(1e-3, rel=1e-12)


@pytest.mark.parametrize("step", [clients.LocalTraining(steps=3, lr=0.1), clients.ClippedGradient(bound=0.5)])
def test_steps_are_differentiable_in_the_images(step: Step) -> None:
    task = target(step)
    images, labels = private()

    def update(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(step(task, task.parameters, x, labels[:2]).values())

    assert torch.autograd.gradcheck(update, (images[:2].clone().requires_grad_(),), atol=1e-6)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"steps": -1}, {"batches": 0}, {"lr": 0.0}, {"lr": -1.0}])
def test_local_training_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SettingError, match="at least 1 step"):
        clients.LocalTraining(**{"steps": 2, "lr": 0.1, **bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("lr", ["nan", "inf"])
def test_a_learning_rate_that_is_no_number_is_refused(lr: str) -> None:
    with pytest.raises(SettingError, match="learning rate above 0"):
        clients.LocalTraining(steps=1, lr=float(lr))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_that_cannot_be_is_refused(bound: float) -> None:
    with pytest.raises(SettingError, match="bound above 0"):
        clients.ClippedGradient(bound=bound)


def test_images_that_cannot_be_cut_into_equal_batches_are_refused() -> None:
    task = target(clients.LocalTraining(steps=2, lr=0.1, batches=4))
    with pytest.raises(SettingError, match="6 images cannot be cut into 4 local batches"):
        clients.gradient(task, *private())
