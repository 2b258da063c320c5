"""Parameters that are used outside known layers: their gradients are written out, and nothing else is."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import engine, models
from dosimeter.attacks.search.likelihoods import L1, Cosine, Likelihood, MeanCosine, SquaredL2
from dosimeter.engine import Products
from engine.test_engine_networks import Network
from engine.test_engine_oracle import CLASSES, SEEN, Case, assert_close, check, finite_difference, make, plain_products
from small import Scale

SHAPE = (2, 6, 6)


def tokens(m: Network, x: Tensor) -> Tensor:
    """(B, 12, 6) behind a class token."""
    return torch.cat([m.token.expand(len(x), 1, -1), m.embed(x.flatten(1, 2))], 1)


def scale() -> nn.Module:
    return Network(
        lambda m, x: m.last((x + m.scale * torch.tanh(m.conv(x))).flatten(1)),
        scale=nn.Parameter(torch.tensor(0.7)),
        conv=nn.Conv2d(2, 2, 3, padding=1),
        last=nn.Linear(72, CLASSES),
    )


def class_token() -> nn.Module:
    return Network(
        lambda m, x: m.last(torch.tanh(m.mix(tokens(m, x).transpose(1, 2))).flatten(1)),
        token=nn.Parameter(torch.randn(6)),
        embed=nn.Linear(6, 6),
        mix=nn.Linear(13, 3),
        last=nn.Linear(18, CLASSES),
    )


def transformer() -> nn.Module:
    """A class token, an embedding of places, scales of residual links; attention of its own and torch's."""

    def run(m: Network, x: Tensor) -> Tensor:
        z = tokens(m, x) + m.places(torch.arange(13))
        q, k, v = m.qkv(m.norm(z)).chunk(3, -1)
        z = z + m.gamma * F.scaled_dot_product_attention(q, k, v)
        z = z + m.more(z, z, z, need_weights=False)[0]
        out: Tensor = m.last(z[:, 0])
        return out

    return Network(
        run,
        token=nn.Parameter(torch.randn(1, 1, 6)),
        places=nn.Embedding(13, 6),
        gamma=nn.Parameter(torch.randn(6)),
        embed=nn.Linear(6, 6),
        qkv=nn.Linear(6, 18),
        norm=nn.LayerNorm(6),
        more=nn.MultiheadAttention(6, 2, batch_first=True),
        last=nn.Linear(6, CLASSES),
    )


def used_twice() -> nn.Module:
    return Network(
        lambda m, x: m.last(torch.tanh(x * m.place + m.place[0].flip(-1)).flatten(1)),
        place=nn.Parameter(torch.randn(2, 6, 6)),
        last=nn.Linear(72, CLASSES),
    )


def tied() -> nn.Module:
    """A decoder with the weight of its encoder, and a bias that is used a second time."""
    return Network(
        lambda m, x: m.last(F.linear(torch.tanh(m.inner(x.flatten(1))), m.inner.weight.T)) + m.last.bias,
        inner=nn.Linear(72, 9),
        last=nn.Linear(72, CLASSES),
    )


def convolved_with_a_norm() -> nn.Module:
    """Group and batch norm on either side of a parameter, and a kernel that is standardised."""
    return Network(
        lambda m, x: m.last(
            (m.gain * m.norm(F.conv2d(x, m.kernel - m.kernel.mean()))).relu().add(m.group(m.conv(x))).flatten(1)
        ),
        kernel=nn.Parameter(torch.randn(4, 2, 3, 3)),
        gain=nn.Parameter(torch.randn(4, 1, 1)),
        norm=nn.BatchNorm2d(4),
        conv=nn.Conv2d(2, 4, 3, groups=2),
        group=nn.GroupNorm(2, 4),
        last=nn.Linear(64, CLASSES),
    )


def in_place() -> nn.Module:
    def run(m: Network, x: Tensor) -> Tensor:
        z = m.conv(x)
        z += m.shift
        out: Tensor = m.last(z.relu_().flatten(1))
        return out

    return Network(run, conv=nn.Conv2d(2, 4, 3), shift=nn.Parameter(torch.randn(4, 1, 1)), last=nn.Linear(64, CLASSES))


def linear_of_its_own() -> nn.Module:
    return Network(
        lambda m, x: m.last(torch.tanh(F.linear(x.flatten(1), m.weight))),
        weight=nn.Parameter(0.2 * torch.randn(5, 72)),
        last=nn.Linear(5, CLASSES),
    )


def rows_in_another_order() -> nn.Module:
    """Nothing is outside, but known layers see the images of all candidates mixed, where they run as one batch."""
    return Network(
        lambda m, x: m.last(torch.tanh(m.inner(x.flatten(1, 2).transpose(0, 1))).transpose(0, 1).flatten(1)),
        inner=nn.Linear(6, 6),
        last=nn.Linear(72, CLASSES),
    )


def layer_on_a_constant() -> nn.Module:
    return Network(
        lambda m, x: m.last(x.flatten(1)) + m.shift(torch.ones(1, 3, dtype=x.dtype)),
        last=nn.Linear(72, CLASSES),
        shift=nn.Linear(3, CLASSES),
    )


MHA = ("more.in_proj_weight", "more.in_proj_bias", "more.out_proj.weight", "more.out_proj.bias")
NETWORKS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "scale": (scale, {"scale"}),
    "class token": (class_token, {"token"}),
    "transformer": (transformer, {"token", "places.weight", "gamma", *MHA}),
    "used twice": (used_twice, {"place"}),
    "tied": (tied, {"inner.weight", "last.bias"}),
    "convolved with a norm": (convolved_with_a_norm, {"kernel", "gain"}),
    "in place": (in_place, {"shift"}),
    "linear of its own": (linear_of_its_own, {"weight"}),
    "conv along a line": (
        lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(2, 3, 5), nn.Tanh(), nn.Flatten(), nn.Linear(96, CLASSES)),
        {"1.weight", "1.bias"},
    ),
    "rows in another order": (rows_in_another_order, set()),
    "layer on a constant": (layer_on_a_constant, set()),
}


def case_of(name: str, *, batch: int = 1, seen: str = "exact", loss: str = "cross entropy") -> Case:
    torch.manual_seed(0)
    return make(NETWORKS[name][0](), SHAPE, batch=batch, seen=seen, loss=loss)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_only_what_is_used_outside_known_layers_is_written_out(name: str, batch: int) -> None:
    for seen in SEEN:
        check(case_of(name, batch=batch, seen=seen), None, taken=("tape",))
    case = case_of(name, batch=batch, loss="own")
    check(case, "tape", taken=("tape",), exact=True)
    matcher = engine.Matcher(case.target, case.observed)
    matcher(case.images, case.labels, case.owner)
    lines = {line.tensor: line for line in matcher.explain()}
    assert list(lines) == list(case.target.parameters)
    assert {tensor for tensor, line in lines.items() if line.form == "written out"} == NETWORKS[name][1]
    assert all("outside" in lines[tensor].why for tensor in NETWORKS[name][1])


@pytest.mark.parametrize("name", ["transformer", "tied"])
def test_slopes_agree_with_finite_differences(name: str) -> None:
    case = case_of(name, batch=2, seen="noisy")
    finite_difference(case, engine.Matcher(case.target, case.observed))


@pytest.mark.parametrize("likelihood", [Cosine(), MeanCosine(), SquaredL2()])
@pytest.mark.parametrize("name", ["scale", "transformer", "tied"])
def test_matches_and_their_slopes_are_those_of_autograd(name: str, likelihood: Likelihood) -> None:
    """Over all tensors and over some of them."""
    case = case_of(name, batch=2, seen="noisy")
    for mask in (slice(None), slice(0, None, 2)):
        x, z = (case.images.clone().requires_grad_() for _ in range(2))
        found = engine.Matcher(case.target, case.observed, exact=likelihood.exact)(x, case.labels, case.owner)
        wanted = plain_products(case._replace(images=z))[0]
        losses = [likelihood.loss(Products(*(value[:, mask] for value in each))) for each in (found, wanted)]
        assert_close(losses[0].detach(), losses[1].detach())
        assert_close(torch.autograd.grad(losses[0].sum(), x)[0], torch.autograd.grad(losses[1].sum(), z)[0])


def test_losses_over_every_entry() -> None:
    case = case_of("tied", batch=2, seen="noisy")
    found, wanted = (
        engine.Matcher(case.target, case.observed, way=way).entries(  # type: ignore[arg-type]
            case.images, case.labels, case.owner, L1().entry_loss
        )
        for way in ("tape", "one by one")
    )
    assert_close(found.detach(), wanted.detach())


def test_unused_parameters_count_for_nothing_and_leave_the_rest_as_it_is() -> None:
    torch.manual_seed(0)
    parts = {"spare": nn.Parameter(torch.tensor(1.0)), "head": nn.Linear(4, 3)}
    model = Network(lambda m, x: m.last((x + m.conv(x)).flatten(1)), conv=nn.Conv2d(2, 2, 3, padding=1), **parts)
    model.last = nn.Linear(72, CLASSES)
    case = make(model, SHAPE, batch=2)
    check(case, None, taken=("tape",))
    matcher = engine.Matcher(case.target, case.observed)
    matcher(case.images, case.labels, case.owner)
    why = {line.tensor: line.why for line in matcher.explain()}
    assert [tensor for tensor, reason in why.items() if reason == "nothing uses it"] == [
        "spare",
        "head.weight",
        "head.bias",
    ]


def test_what_cannot_be_lifted_goes_through_vmap() -> None:
    """A convolution of single images, as no layer gets them here."""
    torch.manual_seed(0)
    model = Network(
        lambda m, x: m.last(torch.stack([m.conv(image) for image in x]).flatten(1)),
        conv=nn.Conv2d(2, 4, 3),
        last=nn.Linear(64, CLASSES),
    )
    case = make(model, SHAPE, batch=3)
    check(case, None, taken=("vmap",))
    matcher = engine.Matcher(case.target, case.observed)
    matcher(case.images, case.labels, case.owner)
    assert all(line.form == "vmap" and "tape cannot take the model" in line.why for line in matcher.explain())


def test_batch_norm_by_the_batch_beside_a_parameter() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), Scale(), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 6))
    model.extend([nn.BatchNorm1d(6, affine=False), nn.Linear(6, CLASSES)])
    models.use_batch_statistics(model)
    check(make(model, SHAPE, batch=3), None, taken=("tape",))
