"""Which way a model goes, what is said about it, and that the result is the same."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import clients, engine, trees
from dosimeter.engine import Matcher, Products
from dosimeter.errors import ModelError
from dosimeter.types import Target, Way
from engine.test_engine_networks import Network
from engine.test_engine_oracle import (
    CLASSES,
    FAST,
    Case,
    assert_close,
    assert_products,
    check,
    make,
    mixture,
    plain_products,
)
from small import observe, tiny_target


def test_explain_names_the_form_of_every_tensor() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 2, groups=2), nn.Flatten())
    case = make(model.extend([nn.Linear(18, 12), nn.LayerNorm(12), nn.Linear(12, CLASSES)]), (2, 6, 6))
    matcher = engine.Matcher(case.target, case.observed, way="tape")
    assert {line.form for line in matcher.explain()} == {"not decided yet"}
    matcher(case.images, case.labels, case.owner)
    forms = {line.tensor: line.form for line in matcher.explain()}
    assert list(forms) == list(case.target.parameters)
    assert forms == {
        **dict.fromkeys(("0.weight", "2.weight"), "dense"),
        **dict.fromkeys(("4.weight", "6.weight"), "factored"),
        **dict.fromkeys(("0.bias", "2.bias", "4.bias", "5.weight", "5.bias", "6.bias"), "vector"),
    }
    why = {line.tensor: line.why for line in matcher.explain()}
    assert "outer products" in why["0.weight"]
    assert "native kernels" in why["2.weight"]


def test_straight_and_linked_networks_are_run_by_hand_and_one_of_other_layers_is_not() -> None:
    torch.manual_seed(0)
    straight = make(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)), (2, 6, 6))
    check(straight, None, taken=("chain",))
    check(straight, None, taken=("tape",), exact=True)
    linked = Network(
        lambda m, x: m.last((x + m.conv(x)).flatten(1)),
        conv=nn.Conv2d(2, 2, 3, padding=1),
        last=nn.Linear(72, CLASSES),
    )
    check(make(linked, (2, 6, 6)), None, taken=("chain",))
    case = make(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(64, CLASSES)), (2, 6, 6))
    check(case, None, taken=("tape",))
    with pytest.raises(ModelError, match="'chain' does not work for this model"):
        engine.Matcher(case.target, case.observed, way="chain")(case.images, case.labels, case.owner)


def branching() -> nn.Module:
    """Looks at its data, which vmap cannot follow; its layer is none that the tape knows."""
    return Network(
        lambda m, x: F.linear(x.flatten(1) if bool(x.sum() > 36) else -x.flatten(1), m.weight),
        weight=nn.Parameter(0.2 * torch.randn(CLASSES, 72)),
    )


def test_a_model_that_branches_on_its_data_goes_one_by_one() -> None:
    case = make(branching(), (2, 6, 6))
    sums = case.images.flatten(1).sum(1) > 36
    assert sums.any()
    assert not sums.all()
    check(case, None, taken=("one by one",))
    matcher = engine.Matcher(case.target, case.observed)
    matcher(case.images, case.labels, case.owner)
    assert "vmap cannot take the model" in matcher.explain()[0].why
    with pytest.raises(ModelError, match="'vmap' does not work"):
        engine.Matcher(case.target, case.observed, way="vmap")(case.images, case.labels, case.owner)


@pytest.mark.parametrize("function", [torch.relu_, torch.sigmoid_, torch.tanh_])
@pytest.mark.parametrize("layer", ["linear", "conv", "norm"])
def test_an_output_overwritten_in_place_gives_no_wrong_numbers(
    layer: str, function: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(1)
    layers: dict[str, list[nn.Module]] = {
        "linear": [nn.Flatten(), nn.Linear(72, 64)],
        "conv": [nn.Conv2d(2, 4, 3)],
        "norm": [nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)],
    }
    model = Network(
        lambda m, x: m.last(function(m.first(x)).flatten(1)),
        first=nn.Sequential(*layers[layer]),
        last=nn.Linear(64, CLASSES),
    )
    check(make(model, (2, 6, 6)), None, taken=FAST)


def test_dropout_is_nothing_in_evaluation_and_refused_in_training() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Dropout(0.5), nn.Linear(9, CLASSES))
    case = make(model, (2, 6, 6))
    check(case, None)
    case.target.model.train()
    with pytest.raises(ModelError, match="draws random numbers"):
        engine.Matcher(case.target, case.observed)(case.images, case.labels, case.owner)


@pytest.mark.parametrize("way", [None, "tape", "vmap", "one by one"])
def test_noise_inside_the_model_is_refused_whichever_way(way: str | None) -> None:
    model = Network(
        lambda m, x: m.last(x.flatten(1)) + torch.randn(CLASSES, dtype=x.dtype), last=nn.Linear(72, CLASSES)
    )
    case = make(model, (2, 6, 6))
    with pytest.raises(ModelError, match="draws random numbers"):
        engine.Matcher(case.target, case.observed, way=way)(case.images, case.labels, case.owner)  # type: ignore[arg-type]


def by_hand(target: Target, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Two steps of SGD, or clipped gradients of single images, written as a loop of plain autograd."""
    theta = {name: p.detach() for name, p in target.model.named_parameters()}

    def slopes(now: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        leaves = {name: t if t.requires_grad else t.clone().requires_grad_() for name, t in now.items()}
        loss = target.loss(torch.func.functional_call(target.model, leaves, (x,)), y)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), create_graph=True), strict=True))

    if isinstance(target.step, clients.LocalTraining):
        now, lr = theta, target.step.lr
        for step in range(target.step.count(len(images))):
            rows = slice(2 * step, 2 * step + 2) if target.step.batch_size == 2 else slice(None)
            now = {name: now[name] - lr * g for name, g in slopes(now, images[rows], labels[rows]).items()}
        return {name: (theta[name] - now[name]) / lr for name in theta}
    assert isinstance(target.step, clients.ClippedGradient)
    total = {name: torch.zeros_like(t) for name, t in theta.items()}
    for x, y in zip(images, labels, strict=True):
        found = slopes(theta, x[None], y[None])
        norm = torch.cat([g.flatten() for g in found.values()]).norm()
        factor = target.step.bound / norm if norm > target.step.bound else torch.ones(())
        total = {name: total[name] + factor * g / len(images) for name, g in found.items()}
    return total


STEPS = {
    "one step": clients.LocalTraining(steps=1, lr=0.1),
    "two steps": clients.LocalTraining(steps=2, lr=0.1),
    "two batches": clients.LocalTraining(steps=2, lr=0.1, batch_size=2),
    "clipped": clients.ClippedGradient(bound=0.5),
    "some clipped": clients.ClippedGradient(bound=1.3),
}


@pytest.mark.parametrize("step", list(STEPS))
def test_a_clients_own_step_goes_through_vmap_and_equals_a_loop(step: str) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, CLASSES))
    plain = make(model, (2, 6, 6), batch=4)
    target = replace(plain.target, step=STEPS[step])
    truth = torch.rand(3, 4, 2, 6, 6, dtype=torch.float64)
    observed = trees.stack([clients.gradient(target, x, y) for x, y in zip(truth, plain.labels[:3], strict=True)])
    case = Case(target, observed, plain.images, plain.labels, plain.owner)
    matcher = engine.Matcher(target, observed)
    x = case.images.clone().requires_grad_()
    found = matcher(x, case.labels, case.owner)
    assert matcher.way == "vmap"
    assert "trains locally" in matcher.explain()[0].why
    z = case.images.clone().requires_grad_()
    rows = []
    for image, labels, victim in zip(z, case.labels, case.owner.tolist(), strict=True):
        pairs = [(s, observed[name][victim]) for name, s in by_hand(target, image, labels).items()]
        rows.append([[(s * o).sum(), s.square().sum(), o.square().sum(), (s - o).square().sum()] for s, o in pairs])
    columns = torch.stack([torch.stack([torch.stack(cell) for cell in row]) for row in rows])  # (N, P, 4)
    wanted = Products(*columns.unbind(2))
    assert_products(found, wanted)
    assert_close(torch.autograd.grad(mixture(found), x)[0], torch.autograd.grad(mixture(wanted), z)[0])


def test_images_without_a_graph_give_the_same_products() -> None:
    torch.manual_seed(3)
    case = make(nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.Tanh(), nn.Linear(9, CLASSES)), (2, 6, 6))
    matcher = engine.Matcher(case.target, case.observed)
    found = matcher(case.images, case.labels, case.owner)
    assert matcher.way in FAST
    assert_products(found, plain_products(case)[0])


@pytest.mark.parametrize("way", [None, "tape", "vmap", "one by one"])
def test_the_users_model_is_left_as_it_was(way: str | None) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(3), nn.Flatten())
    case = make(model.extend([nn.Linear(48, CLASSES)]), (2, 6, 6), batch=2)
    before = {name: t.clone() for name, t in case.target.model.state_dict().items()}
    matcher = engine.Matcher(case.target, case.observed, way=way)  # type: ignore[arg-type]
    x = case.images.clone().requires_grad_()
    mixture(matcher(x, case.labels, case.owner)).backward()
    after = case.target.model.state_dict()
    assert all(torch.equal(after[name], t) for name, t in before.items())
    assert case.target.model[1].inplace  # type: ignore[index]
    for parameter in case.target.model.parameters():
        assert type(parameter) is nn.Parameter
        assert parameter.requires_grad
        assert parameter.grad is None
    assert not any("forward" in vars(layer) for layer in case.target.model.modules())


@pytest.mark.parametrize("way", [None, "tape", "vmap", "one by one"])
def test_a_matcher_leaves_nothing_behind(way: Way | None) -> None:
    """Observations are the largest thing in memory; they must go with the matcher, not with the next collection."""
    target, labels = tiny_target(), torch.tensor([[1], [2]])
    images = torch.rand(2, 1, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    seen = observe(target, images.detach(), labels).gradient
    held = [weakref.ref(tensor) for tensor in seen.values()]
    matcher = Matcher(target, seen, way=way)
    gc.collect()
    gc.disable()
    try:
        for _ in range(25):  # beyond the runs after which a program is compiled
            torch.autograd.grad(matcher(images, labels, torch.arange(2)).cross.sum(), images)
        del matcher, seen
        assert not any(tensor() is not None for tensor in held)
    finally:
        gc.enable()


class OfSix(nn.Module):
    """Takes no other number of images than six."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) == 6
        out: Tensor = self.layer(x.flatten(1)).tanh()
        return out


@pytest.mark.parametrize("way", ["chain", "tape", "vmap", "one by one", None])
def test_batches_beyond_those_that_are_tried_have_the_same_numbers(way: Way | None) -> None:
    """Ways are compared on a few images of a batch and used on all of them."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES))
    assert engine.matching.FEW < 7
    check(make(model, (1, 4, 4), batch=7), way, taken=(way,) if way else FAST)


def test_a_model_of_one_number_of_images_alone_is_tried_on_all_of_them() -> None:
    check(make(OfSix(), (1, 4, 4), batch=6), None, taken=(*FAST, "one by one"))
