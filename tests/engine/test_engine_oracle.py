"""Gradients written out by plain autograd, one candidate at a time: what every way of the engine must agree with.

The files beside this one bring networks; `check` compares all products and their slopes in the images, for candidates
that share victims, change places and leave.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dosimeter import engine, trees
from dosimeter.engine import Products
from dosimeter.errors import ModelError
from dosimeter.types import Gradient, Target
from small import target_of

FAST = ("chain", "tape")
"""The ways that never write gradients out."""

MAY_REFUSE = ("chain",)
"""Ways that only some networks can go; where they refuse, there is nothing to compare."""

each_way = pytest.mark.parametrize("way", [None, "chain", "tape"])
"""The ways to test. A new one is added here, and to MAY_REFUSE if it is not for every network."""

CLASSES = 4


def squares(output: Tensor, wanted: Tensor) -> Tensor:
    return (output - wanted).square().mean()


def margins(output: Tensor, labels: Tensor) -> Tensor:
    """A loss of the user's own, which is no sum of what torch has."""
    return (output.logsumexp(1) - output.gather(1, labels[:, None]).squeeze(1)).square().mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": F.cross_entropy,
    "mse": squares,
    "own": margins,
}
SEEN = ("exact", "noisy", "zero")


class Case(NamedTuple):
    """Three victims' observations and four candidates, the last two for the same victim."""

    target: Target
    observed: dict[str, Tensor]
    images: Tensor  # (N, B, C, H, W)
    labels: Tensor
    owner: Tensor


def plain_gradients(target: Target, images: Tensor, labels: Tensor, **how: Any) -> dict[str, Tensor]:
    """The gradient of one batch as anybody would write it."""
    parameters = {name: p for name, p in target.model.named_parameters() if p.requires_grad}
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        loss = target.loss(target.model(images), labels)
    slopes = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True, **how)
    return dict(zip(parameters, slopes, strict=True))


def make(
    model: nn.Module,
    shape: tuple[int, int, int],
    *,
    batch: int = 1,
    loss: str = "cross entropy",
    seen: str = "exact",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Case:
    torch.manual_seed(seed)
    base = target_of(model, shape, dtype)
    target = Target(base.model, LOSSES[loss], shape, base.mean, base.std)
    truth = torch.rand(3, batch, *shape, dtype=dtype)
    labels = torch.randn(3, batch, CLASSES, dtype=dtype) if loss == "mse" else torch.randint(0, CLASSES, (3, batch))
    observed = trees.stack([plain_gradients(target, x, y) for x, y in zip(truth, labels, strict=True)])
    if seen == "noisy":
        observed = {name: g + 0.1 * g.std() * torch.randn_like(g) for name, g in observed.items()}
    if seen == "zero":
        observed[next(iter(observed))].zero_()
    owner = torch.tensor([2, 0, 1, 1])
    return Case(target, observed, torch.rand(4, batch, *shape, dtype=dtype), labels[owner], owner)


def mixture(products: Products) -> Tensor:
    """A scalar that depends on every product, differently for every candidate and tensor."""
    n, p = products.cross.shape
    weights = torch.linspace(0.5, 1.5, n * p, dtype=products.cross.dtype).reshape(n, p)
    return (weights * (products.cross + 0.3 * products.simulated + 0.2 * products.difference)).sum()


def plain_products(case: Case) -> tuple[Products, Callable[[Tensor], Tensor]]:
    """Products (N, P), and the slope (N, B, C, H, W) of any scalar of candidates kept, by differentiating twice."""
    x = case.images.clone().requires_grad_()
    rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for image, labels, victim in zip(x, case.labels, case.owner.tolist(), strict=True):
        found = plain_gradients(case.target, image, labels, create_graph=True)
        pairs = [(g, case.observed[name][victim]) for name, g in found.items()]
        rows.append(
            (
                torch.stack([(s * o).sum() for s, o in pairs]),
                torch.stack([s.square().sum() for s, _ in pairs]),
                torch.stack([o.square().sum() for _, o in pairs]),
                torch.stack([(s - o).square().sum() for s, o in pairs]),
            )
        )
    products = Products(*(torch.stack(column) for column in zip(*rows, strict=True)))

    def slope(kept: Tensor) -> Tensor:
        scalar = mixture(Products(*(value[kept] for value in products)))
        return torch.autograd.grad(scalar, x, retain_graph=True)[0][kept]

    return products, slope


def assert_products(found: Products, wanted: Products, tolerance: float = 1e-9) -> None:
    """Equal on the scale of the norms that were multiplied; a tensor whose gradient is mere rounding counts as 0."""
    simulated, observed = (
        torch.maximum(norm, 1e-12 * norm.sum(1, keepdim=True)) for norm in (wanted.simulated, wanted.observed)
    )
    scales = {
        "cross": (simulated * observed).sqrt(),
        "simulated": simulated,
        "observed": observed,
        "difference": simulated + observed,
    }
    for key, scale in scales.items():
        one, other = getattr(found, key).detach(), getattr(wanted, key).detach()
        assert one.shape == other.shape
        worst = (one - other).abs() - tolerance * scale.detach()
        assert float(worst.max()) <= 0, f"{key}: {one.tolist()} instead of {other.tolist()}"


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = 1e-9) -> None:
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= tolerance * float(wanted.abs().max())


def ways_of(case: Case, way: str | None, **settings: Any) -> engine.Matcher | None:
    """A matcher that has chosen its way, or None where that way is not for this network."""
    matcher = engine.Matcher(case.target, case.observed, way=way, **settings)  # type: ignore[arg-type]
    try:
        matcher(case.images, case.labels, case.owner)
    except ModelError as refusal:
        if way in MAY_REFUSE and "other numbers" not in str(refusal):  # those would be a mistake of the way
            return None
        raise
    return matcher


def check(case: Case, way: str | None, *, taken: tuple[str, ...] = FAST, **settings: Any) -> None:
    """All candidates; all in another order; two of them after the others left; one alone."""
    matcher = ways_of(case, way, **settings)
    if matcher is None:
        return
    assert matcher.way in taken, matcher.explain()
    wanted, slope = plain_products(case)
    for rows in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 0], [1]):
        kept = torch.tensor(rows)
        x = case.images[kept].clone().requires_grad_()
        found = matcher(x, case.labels[kept], case.owner[kept])
        assert_products(found, Products(*(value[kept] for value in wanted)))
        assert_close(torch.autograd.grad(mixture(found), x)[0], slope(kept))


def finite_difference(case: Case, matcher: engine.Matcher, step: float = 1e-6) -> None:
    """The slope along random directions against central differences."""
    x = case.images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mixture(matcher(x, case.labels, case.owner)), x)
    for _ in range(3):
        way = torch.randn_like(x)
        ends = [mixture(matcher(x.detach() + s * step * way, case.labels, case.owner)) for s in (1, -1)]
        measured = float((ends[0] - ends[1]).detach()) / (2 * step)
        assert measured == pytest.approx(float((slope * way).sum()), rel=1e-5, abs=1e-5 * float(slope.norm()))


def small_network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Sigmoid(), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, CLASSES)
    )


def test_the_oracle_tells_a_wrong_product_from_a_right_one() -> None:
    case = make(small_network(), (2, 6, 6), batch=3)
    wanted, _ = plain_products(case)
    assert_products(wanted, wanted)
    for key in ("cross", "simulated", "observed", "difference"):
        bent = getattr(wanted, key).detach().clone()
        bent[1, 2] += 1e-6 * float((wanted.simulated + wanted.observed)[1, 2].detach())
        with pytest.raises(AssertionError, match=key):
            assert_products(wanted._replace(**{key: bent}), wanted)


@pytest.mark.parametrize("way", [None, "chain", "tape", "vmap", "one by one"])
@pytest.mark.parametrize("seen", SEEN)
def test_every_way_gives_the_products_of_gradients_written_out(way: str | None, seen: str) -> None:
    for batch in (1, 3):
        case = make(small_network(), (2, 6, 6), batch=batch, seen=seen)
        check(case, way, taken=FAST if way is None else (way,))
        check(case, way, taken=FAST if way is None else (way,), exact=True)


@each_way
def test_permuting_victims_permutes_products(way: str | None) -> None:
    case = make(small_network(), (2, 6, 6), batch=2)
    order = torch.tensor([1, 2, 0])  # victim order[i] moves to place i
    moved: Gradient = {name: g[order] for name, g in case.observed.items()}
    places = torch.argsort(order)[case.owner]
    here = engine.Matcher(case.target, case.observed, way=way)(case.images, case.labels, case.owner)  # type: ignore[arg-type]
    there = engine.Matcher(case.target, moved, way=way)(case.images, case.labels, places)  # type: ignore[arg-type]
    assert_products(there, here)
