"""Batch norms with a mean and variance of their own for every victim, against plain autograd one victim at a time."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dosimeter import clients, engine, models
from dosimeter.engine import Products
from dosimeter.errors import ModelError
from dosimeter.types import Statistics
from engine.test_engine_layers import headed, shaken
from engine.test_engine_oracle import (
    CLASSES,
    Case,
    assert_close,
    assert_products,
    check,
    make,
    mixture,
    plain_gradients,
    plain_products,
)
from small import Scale

WAYS = (None, "tape", "vmap", "one by one")
SHAPE = (2, 6, 6)


def plain(*layers: nn.Module) -> nn.Module:
    return shaken(headed(SHAPE, nn.Conv2d(2, 4, 3), *layers, nn.Sigmoid()))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "images": lambda: plain(nn.BatchNorm2d(4)),
    "vectors": lambda: plain(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6)),
    "rows": lambda: plain(nn.Flatten(2), nn.BatchNorm1d(4)),
    "beside a scale": lambda: plain(nn.BatchNorm2d(4), Scale(), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.BatchNorm2d(3)),
    "without parameters": lambda: plain(nn.BatchNorm2d(4, affine=False)),
    "frozen": lambda: plain(nn.BatchNorm2d(4).requires_grad_(False)),
    "several": lambda: plain(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.BatchNorm2d(3, eps=0.1)),
    "residual": lambda: shaken(models.ResNet(shape=SHAPE, classes=CLASSES, depth=20, width=0.25)),
    "never tracked": lambda: headed(SHAPE, nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
}


def norms(model: nn.Module) -> dict[str, nn.BatchNorm1d | nn.BatchNorm2d]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)}


def sent(model: nn.Module, victims: int = 3) -> Statistics:
    """Different ones for every victim and layer."""
    torch.manual_seed(9)
    return {
        name: (torch.randn(victims, m.num_features).double(), torch.rand(victims, m.num_features).double() + 0.5)
        for name, m in norms(model).items()
    }


def told(case: Case, statistics: Statistics, victim: int) -> Case:
    """The case with the victim's statistics in every batch norm, and with the slopes of the candidate's own."""
    model = copy.deepcopy(case.target.model).eval()
    for name, layer in norms(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, Told(layer, *(t[victim] for t in statistics[name])))
    return case._replace(target=replace(case.target, model=model))


class Told(nn.Module):
    """Batch norm that puts out what a mean and variance of somebody else's make of x, and learns as if they were its.

    By the definition of a derivative: f(m(x), v(x), x) differs from f(m, v, x) by a constant shift of m and v only.
    """

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        self.eps, self.mean, self.variance = norm.eps, mean, variance

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).flatten(1)  # (C, everything else)
        here = rows.detach()
        mean = rows.mean(1) + (self.mean - here.mean(1))
        spread = (rows - rows.mean(1, keepdim=True)).square().mean(1)
        still = (here - here.mean(1, keepdim=True)).square().mean(1)
        out = (rows - mean[:, None]) / (spread - still + self.variance + self.eps).sqrt()[:, None]
        if self.weight is not None:
            out = out * self.weight[:, None] + self.bias[:, None]
        return out.reshape(x.transpose(0, 1).shape).transpose(0, 1)


def one(case: Case, i: int) -> Case:
    return case._replace(images=case.images[[i]], labels=case.labels[[i]], owner=case.owner[[i]])


def oracle(case: Case, statistics: Statistics) -> tuple[Products, Tensor]:
    """Products (N, P), and the slope (N, B, C, H, W) of the sum of every candidate's own mixture."""
    rows, slopes = [], []
    for i, victim in enumerate(case.owner.tolist()):
        products, slope = plain_products(one(told(case, statistics, victim), i))
        rows.append(products)
        slopes.append(slope(torch.tensor([0])))
    return Products(*(torch.cat(column) for column in zip(*rows, strict=True))), torch.cat(slopes)


def each_mixture(products: Products) -> Tensor:
    return torch.stack([mixture(Products(*(v[[i]] for v in products))) for i in range(len(products.cross))]).sum()


def attacked(model: nn.Module, batch: int, seen: str = "exact") -> tuple[Case, Statistics]:
    """A case whose model waits for statistics; the observations are of steps with them."""
    case, statistics = make(model, SHAPE, batch=batch, seen=seen), sent(model)
    waiting = copy.deepcopy(case.target.model)
    models.use_given_statistics(waiting)
    return case._replace(target=replace(case.target, model=waiting)), statistics


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_way_uses_every_victims_statistics(name: str, way: str | None, batch: int) -> None:
    torch.manual_seed(1)
    case, statistics = attacked(NETWORKS[name](), batch, seen="noisy" if batch == 3 else "exact")
    wanted, slope = oracle(case, statistics)
    for exact in (False, True):
        matcher = engine.Matcher(case.target, case.observed, statistics=statistics, way=way, exact=exact)  # type: ignore[arg-type]
        for rows in ([0, 1, 2, 3], [3, 1, 0], [2]):
            kept = torch.tensor(rows)
            x = case.images[kept].clone().requires_grad_()
            found = matcher(x, case.labels[kept], case.owner[kept])
            assert_products(found, Products(*(value[kept] for value in wanted)))
            assert_close(torch.autograd.grad(each_mixture(found), x)[0], slope[kept])
        assert matcher.way == (way or "tape"), matcher.why


@pytest.mark.parametrize("way", WAYS)
def test_entries_are_compared_with_every_victims_statistics(way: str | None) -> None:
    torch.manual_seed(1)
    case, statistics = attacked(NETWORKS["several"](), 2)
    matcher = engine.Matcher(case.target, case.observed, statistics=statistics, way=way)  # type: ignore[arg-type]
    found = matcher.entries(case.images, case.labels, case.owner, lambda s, o: (s - o).abs().sum(1))
    for i, victim in enumerate(case.owner.tolist()):
        alone = one(told(case, statistics, victim), i)
        gradient = plain_gradients(alone.target, alone.images[0], alone.labels[0])
        wanted = [(g - case.observed[name][victim]).abs().sum() for name, g in gradient.items()]
        assert_close(found[i].detach(), torch.stack(wanted))


def test_a_chain_refuses_statistics_that_are_sent() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))
    check(make(model, SHAPE), None, taken=("chain",))
    case, statistics = attacked(model, 1)
    matcher = engine.Matcher(case.target, case.observed, statistics=statistics)
    matcher(case.images, case.labels, case.owner)
    assert matcher.way == "tape"
    assert "statistics of their own" in matcher.why
    with pytest.raises(ModelError, match=r"'chain' does not work .* statistics of their own"):
        engine.Matcher(case.target, case.observed, statistics=statistics, way="chain")(
            case.images, case.labels, case.owner
        )


BATCHED = pytest.mark.parametrize("name", ["images", "without parameters", "several", "residual"])


@pytest.mark.parametrize("way", [None, "tape", "one by one"])
@BATCHED
def test_batch_statistics_are_taken_from_each_candidate(name: str, way: str | None) -> None:
    torch.manual_seed(1)
    model = NETWORKS[name]()
    models.use_batch_statistics(model)
    check(make(model, SHAPE, batch=3), way, taken=(way or "tape",))


@BATCHED
def test_vmap_of_batch_statistics_is_refused_for_its_wrong_slopes(name: str) -> None:
    torch.manual_seed(1)
    model = NETWORKS[name]()
    models.use_batch_statistics(model)
    case = make(model, SHAPE, batch=3)
    with pytest.raises(ModelError, match="second derivative of batch norm"):
        check(case, "vmap")
    # One step of local training is the gradient; it cannot go by the tape.
    trained = replace(case.target, step=clients.LocalTraining(steps=1, lr=0.1))
    matcher = engine.Matcher(trained, case.observed)
    x = case.images.clone().requires_grad_()
    found = matcher(x, case.labels, case.owner)
    wanted, slope = plain_products(case)
    assert matcher.way == "one by one"
    assert_products(found, wanted)
    assert_close(torch.autograd.grad(mixture(found), x)[0], slope(torch.arange(4)))


def test_a_model_that_waits_for_statistics_computes_nothing_without_them() -> None:
    for build in NETWORKS.values():
        model = build().double()
        models.use_given_statistics(model)
        assert model.eval()(torch.rand(2, *SHAPE).double()).isnan().all()
