"""Models that work in place, on their input or on what their layers give, against the same models that do not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import clients, engine
from dosimeter.types import Way
from engine.test_engine_networks import Network
from engine.test_engine_oracle import CLASSES, assert_close, assert_products, make, mixture

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # clamp_ under vmap

SHAPE = (2, 6, 6)
WAYS: tuple[Way | None, ...] = (None, "tape", "vmap", "one by one")


def behind(first: Callable[[Tensor], Tensor]) -> Callable[[Network, Tensor], Tensor]:
    return lambda m, x: m.last(torch.tanh(first(x)).flatten(1))


def subtract(x: Tensor) -> Tensor:
    x -= 0.4
    return x


def replaced(x: Tensor) -> Tensor:
    x[:, 0] = 0.3
    return x


def residual(m: Network, x: Tensor) -> Tensor:
    """As torchvision's blocks."""
    x = torch.relu_(m.norm(m.conv(x)))
    out = m.norm(m.conv(x))
    out += x
    return m.last(F.relu(out, inplace=True).flatten(1))


def plain_residual(m: Network, x: Tensor) -> Tensor:
    x = torch.relu(m.norm(m.conv(x)))
    return m.last(torch.relu(m.norm(m.conv(x)) + x).flatten(1))


def modules(m: Network, x: Tensor) -> Tensor:
    return m.last(m.act(m.conv(m.act(x - 0.5))).flatten(1))


def linear(m: Network, x: Tensor) -> Tensor:
    return m.last(m.inner(x.flatten(1)).relu_())


Run = Callable[[Network, Tensor], Tensor]
PAIRS: dict[str, tuple[Run, Run]] = {
    "x -= mean": (behind(subtract), behind(lambda x: x - 0.4)),
    "clamp_": (behind(lambda x: x.clamp_(0.2, 0.7)), behind(lambda x: x.clamp(0.2, 0.7))),
    "x[:, 0] =": (behind(replaced), behind(lambda x: torch.cat([torch.full_like(x[:, :1], 0.3), x[:, 1:]], 1))),
    "first relu": (behind(lambda x: F.relu(x, inplace=True)), behind(torch.relu)),
    "residual": (residual, plain_residual),
    "modules": (modules, modules),
    "linear": (linear, lambda m, x: m.last(torch.relu(m.inner(x.flatten(1))))),
}


def network(name: str, which: int) -> nn.Module:
    torch.manual_seed(0)
    parts = {"conv": nn.Conv2d(2, 2, 3, padding=1), "norm": nn.BatchNorm2d(2), "inner": nn.Linear(72, 72)}
    used = {"residual": ("conv", "norm"), "modules": ("conv",), "linear": ("inner",)}.get(name, ())
    act = {"act": nn.ReLU(inplace=not which)} if name == "modules" else {}
    return Network(PAIRS[name][which], last=nn.Linear(72, CLASSES), **{part: parts[part] for part in used}, **act)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PAIRS)
def test_working_in_place_changes_nothing(name: str, way: Way | None) -> None:
    plain, case = (make(network(name, which), SHAPE, batch=2) for which in (1, 0))
    images = case.images.clone()
    results = []
    for each, how in ((plain, "one by one"), (case, way)):
        matcher = engine.Matcher(each.target, plain.observed, way=how)  # type: ignore[arg-type]
        x = images.clone().requires_grad_()
        found = matcher(x, each.labels, each.owner)
        results.append((found, torch.autograd.grad(mixture(found), x)[0]))
        assert torch.equal(x, images)
    assert matcher.way in (way, "chain", "tape"), matcher.explain()
    assert_products(results[1][0], results[0][0])
    assert_close(results[1][1], results[0][1])


STEPS = [None, clients.LocalTraining(steps=3, lr=0.1), clients.ClippedGradient(bound=0.1)]


@pytest.mark.parametrize("name", PAIRS)
def test_clients_send_what_they_would_and_keep_their_images(name: str) -> None:
    plain, case = (make(network(name, which), SHAPE, batch=2) for which in (1, 0))
    images, labels = case.images[0].clone(), case.labels[0]
    for step in STEPS:
        sent = clients.gradient(replace(case.target, step=step), images, labels)
        wanted = clients.gradient(replace(plain.target, step=step), images, labels)
        assert torch.equal(images, case.images[0])
        for key in wanted:
            assert_close(sent[key], wanted[key])
