"""Local training against torch.optim and a data loader, clipped gradients against single images in turn."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dosimeter import clients, rng
from dosimeter.clients.optimisers import SGD, Adam, Optimiser
from dosimeter.errors import SettingError
from dosimeter.types import Step, Target
from small import Scale, target_of

few = settings(max_examples=10, deadline=None)
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


RULES: dict[str, tuple[Optimiser[Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (SGD(), torch.optim.SGD),
    "decay": (SGD(weight_decay=0.1), partial(torch.optim.SGD, weight_decay=0.1)),
    "momentum": (SGD(momentum=0.9), partial(torch.optim.SGD, momentum=0.9)),
    "momentum with decay": (
        SGD(momentum=0.5, weight_decay=0.01),
        partial(torch.optim.SGD, momentum=0.5, weight_decay=0.01),
    ),
    "nesterov": (
        SGD(momentum=0.8, nesterov=True, weight_decay=0.02),
        partial(torch.optim.SGD, momentum=0.8, nesterov=True, weight_decay=0.02),
    ),
    "adam": (Adam(), torch.optim.Adam),
    "adam with settings": (
        Adam(beta1=0.7, beta2=0.9, eps=1e-3, weight_decay=0.05),
        partial(torch.optim.Adam, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.05),
    ),
}


def train(
    task: Target, make: Callable[..., torch.optim.Optimizer], lr: float, batches: list[tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """The trained parameters after one step of torch.optim on every batch."""
    model = copy.deepcopy(task.model)
    optimiser = make([p for p in model.parameters() if p.requires_grad], lr=lr)
    for images, labels in batches:
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def assert_trained(task: Target, lr: float, update: Mapping[str, Tensor], after: dict[str, Tensor]) -> None:
    """The update is (before - after) / lr: weights agree to 1e-10, and so does the update as far as weights tell it."""
    before = task.parameters
    assert list(update) == list(after) == list(before)
    for name, end in after.items():
        assert not update[name].requires_grad
        assert (before[name] - lr * update[name] - end).abs().max() <= 1e-10, name
        assert (update[name] - (before[name] - end) / lr).abs().max() <= 1e-10 + 1e-15 / lr, name


@pytest.mark.parametrize("rule", list(RULES))
@few
@given(data=st.data(), size=st.integers(1, BATCH + 2), lr=st.floats(1e-4, 0.5), seed=st.integers(0, 10_000))
def test_local_training_is_that_of_torch_on_a_data_loaders_batches(
    rule: str, data: st.DataObject, size: int, lr: float, seed: int
) -> None:
    ours, theirs = RULES[rule]
    images, labels = private(seed)
    loader = DataLoader(TensorDataset(images, labels), batch_size=size, drop_last=False)
    length: dict[str, int] = data.draw(
        st.fixed_dictionaries({"epochs": st.integers(1, 3)}) | st.fixed_dictionaries({"steps": st.integers(1, 8)})
    )
    task = target(clients.LocalTraining(lr=lr, batch_size=size, optimiser=ours, **length), seed)
    before = {name: p.detach().clone() for name, p in task.model.named_parameters()}
    found = clients.gradient(task, images, labels)
    steps = length.get("steps", length.get("epochs", 0) * len(loader))
    batches = list(islice((batch for _ in count() for batch in loader), steps))
    assert_trained(task, lr, found, train(task, theirs, lr, batches))
    assert all(torch.equal(p, before[name]) for name, p in task.model.named_parameters())


@few
@given(size=st.integers(1, BATCH), epochs=st.integers(1, 3), seed=st.integers(0, 10_000))
def test_a_client_that_shuffles_sees_every_image_once_an_epoch(size: int, epochs: int, seed: int) -> None:
    step = clients.LocalTraining(lr=0.1, epochs=epochs, batch_size=size, shuffle=True)
    task = target(step, seed)
    images, labels = private(seed)
    found = clients.gradient(task, images, labels, rng.stream(seed, "order"))
    draws = rng.stream(seed, "order")
    batches = []
    for _ in range(epochs):
        order = torch.randperm(BATCH, generator=draws)
        batches += [(images[part], labels[part]) for part in order.split(size)]
    assert_trained(task, 0.1, found, train(task, torch.optim.SGD, 0.1, batches))


def test_an_order_changes_the_update_and_is_not_known_to_one_who_simulates() -> None:
    step = clients.LocalTraining(lr=0.5, epochs=2, batch_size=2, shuffle=True)
    task = target(step)
    images, labels = private()
    sent = [clients.gradient(task, images, labels, rng.stream(seed, "order"))["3.weight"] for seed in range(2)]
    simulated = step(task, task.parameters, images, labels)["3.weight"]
    fixed = clients.gradient(replace(task, step=replace(step, shuffle=False)), images, labels)["3.weight"]
    assert torch.equal(simulated, fixed)
    assert not torch.allclose(sent[0], sent[1], rtol=1e-4)
    assert not torch.allclose(sent[0], fixed, rtol=1e-4)
    with pytest.raises(SettingError, match=r"give a generator \(rng\)"):
        clients.gradient(task, images, labels)


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


def test_a_parameter_of_a_single_number_is_clipped_with_the_others() -> None:
    step = clients.ClippedGradient(bound=1e-3)
    task = replace(target_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 3), Scale()), (1, 6, 6)), step=step)
    sent = clients.gradient(task, torch.rand(1, 1, 6, 6, dtype=torch.float64), torch.tensor([1]))
    assert sent["2.scale"].shape == ()
    assert float(torch.cat([g.flatten() for g in sent.values()]).norm()) == pytest.approx(1e-3, rel=1e-12)


DIFFERENTIABLE: dict[str, Step] = {
    **{
        rule: clients.LocalTraining(steps=3, lr=0.1, batch_size=2, optimiser=ours)
        for rule, (ours, _) in RULES.items()
        if rule != "adam"
    },
    # At torch's eps the moves of small slopes jump within the width of a finite difference.
    "adam": clients.LocalTraining(steps=3, lr=0.1, batch_size=2, optimiser=Adam(eps=1e-2)),
    "clipped": clients.ClippedGradient(bound=0.5),
}


@pytest.mark.parametrize("step", list(DIFFERENTIABLE))
def test_steps_are_differentiable_in_the_images(step: str) -> None:
    task = target(DIFFERENTIABLE[step])
    images, labels = private()

    def update(x: Tensor) -> tuple[Tensor, ...]:
        assert task.step is not None
        return tuple(task.step(task, task.parameters, x, labels[:3]).values())

    assert torch.autograd.gradcheck(update, (images[:3].clone().requires_grad_(),), atol=1e-6, fast_mode=True)


def test_a_weight_that_never_had_a_slope_leaves_adams_derivative_finite() -> None:
    step = clients.LocalTraining(steps=2, lr=0.1, optimiser=Adam())
    task = target(step)
    images, labels = private()
    with torch.no_grad():
        task.model[0].bias.fill_(-1e3)  # type: ignore[index]  # tanh is flat: no slope reaches the convolution
    x = images.clone().requires_grad_()
    update = step(task, task.parameters, x, labels)
    assert not update["0.weight"].any()
    (slope,) = torch.autograd.grad(sum(u.sum() for u in update.values()), x)
    assert slope.isfinite().all()


def test_steps_and_epochs_are_counted_as_a_data_loader_does() -> None:
    training = clients.LocalTraining(epochs=3, lr=0.1, batch_size=4)
    assert [training.count(images) for images in (1, 4, 5, 8, 9)] == [3, 3, 6, 6, 9]
    assert clients.LocalTraining(epochs=3, lr=0.1).count(9) == 3
    assert clients.LocalTraining(steps=7, lr=0.1, batch_size=2).count(9) == 7


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"steps": 0}, "steps of at least 1"),
        ({"steps": None, "epochs": 0}, "epochs of at least 1"),
        ({"steps": None}, "steps or epochs, one of them"),
        ({"epochs": 2}, "steps or epochs, one of them"),
        ({"batch_size": 0}, "batch_size of at least 1"),
        ({"lr": 0.0}, "learning rate above 0"),
        ({"lr": -1.0}, "learning rate above 0"),
        ({"lr": math.nan}, "learning rate above 0"),
        ({"lr": math.inf}, "learning rate above 0"),
    ],
)
def test_local_training_that_cannot_be_is_refused(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        clients.LocalTraining(**{"steps": 2, "lr": 0.1, **bad})


@pytest.mark.parametrize(
    ("rule", "bad", "says"),
    [
        (SGD, {"momentum": 1.0}, r"momentum in \[0, 1\)"),
        (SGD, {"momentum": -0.1}, r"momentum in \[0, 1\)"),
        (SGD, {"nesterov": True}, "momentum above 0"),
        (SGD, {"weight_decay": -1.0}, "weight decay of at least 0"),
        (SGD, {"weight_decay": math.inf}, "weight decay of at least 0"),
        (Adam, {"beta1": 1.0}, r"beta1 in \[0, 1\)"),
        (Adam, {"beta2": math.nan}, r"beta2 in \[0, 1\)"),
        (Adam, {"eps": 0.0}, "eps above 0"),
        (Adam, {"weight_decay": -1.0}, "weight decay of at least 0"),
    ],
)
def test_an_optimiser_that_cannot_be_is_refused(rule: Callable[..., object], bad: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        rule(**bad)


def test_local_training_in_words_is_that_of_the_paper_unless_said_otherwise() -> None:
    assert clients.local() == clients.LocalTraining(steps=5, lr=1e-4)
    assert clients.local(epochs=2, lr=0.1, optimiser="momentum").optimiser == SGD(momentum=0.9)
    assert clients.local(optimiser="momentum", momentum=0.5, nesterov=True).optimiser == SGD(
        momentum=0.5, nesterov=True
    )
    assert clients.local(optimiser="adam", beta2=0.99, weight_decay=0.1).optimiser == Adam(beta2=0.99, weight_decay=0.1)
    with pytest.raises(SettingError, match="'adam' has no setting 'momentum'"):
        clients.local(optimiser="adam", momentum=0.9)
    with pytest.raises(SettingError, match="'sgd' has no setting 'eps'"):
        clients.local(eps=1e-3)


def test_an_attacker_who_is_not_told_holds_nothing_of_it() -> None:
    training = clients.LocalTraining(epochs=2, lr=0.1, batch_size=4, optimiser=Adam(eps=1e-3))
    untold = training.untold(6, steps=False, lr=False)
    assert (untold.steps, untold.lr) == (None, None)
    assert "0.1" not in repr(untold)
    assert untold.assume(steps=4, lr=0.1) == clients.LocalTraining(
        steps=4, lr=0.1, batch_size=4, optimiser=Adam(eps=1e-3)
    )
    half = training.untold(6, steps=True, lr=False)
    assert (half.steps, half.lr) == (4, None)
    with pytest.raises(SettingError, match="told 4 as the local steps"):
        half.assume(steps=3, lr=0.1)
    task = target()
    with pytest.raises(SettingError, match="not told how the clients train"):
        untold(task, task.parameters, *private())


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_that_cannot_be_is_refused(bound: float) -> None:
    with pytest.raises(SettingError, match="bound above 0"):
        clients.ClippedGradient(bound=bound)


@pytest.mark.parametrize("rule", ["sgd", "nesterov", "adam with settings"])
@pytest.mark.parametrize("stretch", [1, 3, 7])
def test_steps_that_are_computed_again_have_the_slopes_of_those_that_are_kept(rule: str, stretch: int) -> None:
    step = clients.LocalTraining(steps=7, lr=0.1, batch_size=4, optimiser=RULES[rule][0])
    kept = target(step)
    images, labels = private()
    x = torch.stack([images, images.flip(0)]).requires_grad_()  # two candidates
    far = {name: torch.randn(2, *p.shape, dtype=p.dtype) for name, p in kept.parameters.items()}

    def slope(task: Target, update: Callable[..., Any]) -> tuple[Mapping[str, Tensor], Tensor]:
        found = update(partial(step, task, task.parameters))
        return found, torch.autograd.grad(sum((found[n] * far[n]).sum() for n in found), x)[0]

    def alone(take: Callable[..., Any]) -> Any:
        each = [take(one, labels) for one in x]
        return {name: torch.stack([update[name] for update in each]) for name in far}

    (wanted, wanted_slope), again = slope(kept, alone), replace(kept, stretch=stretch)
    for update in (alone, lambda take: torch.func.vmap(take, in_dims=(0, None))(x, labels)):
        found, found_slope = slope(again, update)
        assert all(torch.allclose(found[n], wanted[n], rtol=1e-12, atol=1e-14) for n in far)
        assert torch.allclose(found_slope, wanted_slope, rtol=1e-10, atol=1e-13)
    if stretch == 3:  # finite differences, in some pixels

        def moved(row: Tensor) -> Tensor:
            whole = torch.cat([row, images[:, :, 1:]], 2)
            return step(again, again.parameters, whole, labels)["0.bias"]

        assert torch.autograd.gradcheck(moved, images[:, :, :1].clone().requires_grad_())


class Drawn(nn.Module):
    """Multiplies by what a client drew."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("drawn", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.drawn


def test_a_shuffled_order_and_a_clients_draws_survive_being_computed_again() -> None:
    """Both reach the steps from outside: the order as it is, draws differentiably."""
    step = clients.LocalTraining(epochs=2, lr=0.1, batch_size=2, shuffle=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), Drawn(36), nn.Linear(36, 4)).double()
    task = Target(model, F.cross_entropy, (1, 6, 6), torch.zeros(1, 1, 1), torch.ones(1, 1, 1), step=step)
    ordered = step.shuffled(BATCH, rng.stream(0, "order"))
    batch = private()
    u = torch.rand(3, 36, dtype=torch.float64, requires_grad=True)

    def slope(task: Target) -> Tensor:
        def take(drawn: Tensor) -> Any:
            return ordered(replace(task, drawn={"1.drawn": drawn}), task.parameters, *batch)

        return torch.autograd.grad(torch.func.vmap(take)(u)["2.weight"].square().sum(), u)[0]

    assert slope(task).abs().sum() > 0
    assert torch.allclose(slope(replace(task, stretch=2)), slope(task), rtol=1e-10)
