"""Transformers by hand give the numbers of gradients written out, in whatever way a model writes its attention."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import engine
from dosimeter.engine.curves import CURVES
from dosimeter.engine.projection import cheapest, low_rank
from dosimeter.engine.transformer import Transformer
from engine.test_engine_networks import vit
from engine.test_engine_oracle import CLASSES, SEEN, Case, check, finite_difference, make, ways_of

SHAPE = (2, 6, 6)


def by_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def by_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(torch.matmul(q / math.sqrt(q.shape[-1]), k.mT), -1).matmul(v)


def heads_in_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b, c = (t.flatten(0, 1) for t in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(a, b.transpose(1, 2)) * 0.7, -1), c).view(q.shape)


ATTEND: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "function": by_function,
    "products": by_products,
    "scaled before": scaled_before,
    "heads in the batch": heads_in_the_batch,
}


class Attention(nn.Module):
    """Queries, keys and values of one layer, in either order of its columns, or of three layers."""

    def __init__(self, width: int, heads: int, *, how: str, cut: str, bias: bool) -> None:
        super().__init__()
        self.heads, self.how, self.cut = heads, how, cut
        count = 3 if cut == "three layers" else 1
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width // count, bias=bias) for _ in range(count))
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        if self.cut == "three layers":
            q, k, v = (layer(x).view(b, t, self.heads, -1).transpose(1, 2) for layer in self.layers)
        elif self.cut == "by parts":  # as in timm
            q, k, v = self.layers[0](x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        elif self.cut == "by heads":  # columns of a head together
            q, k, v = self.layers[0](x).unflatten(2, (self.heads, -1)).transpose(1, 2).chunk(3, -1)
        else:
            q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.layers[0](x).split(w, 2))
        out: Tensor = self.out(ATTEND[self.how](q, k, v).transpose(1, 2).reshape(b, t, w))
        return out


class Mlp(nn.Module):
    def __init__(self, width: int, act: nn.Module, *, bias: bool) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Linear(width, 10, bias=bias), act, nn.Dropout(0.1), nn.Linear(10, width, bias=bias)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts(x)
        return out


ACTS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU(approximate="tanh"),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Small(nn.Module):
    """A vision transformer of a user's own."""

    def __init__(
        self,
        *,
        width: int = 8,
        heads: int = 2,
        depth: int = 2,
        how: str = "function",
        cut: str = "by parts",
        act: str = "gelu",
        bias: bool = True,
        token: int = 1,
        positions: str = "after",
        before: bool = True,
        pool: str = "first",
        embed: str = "conv",
        gain: bool = False,
    ) -> None:
        super().__init__()
        self.before, self.pool, self.embed, self.places = before, pool, embed, positions
        self.first = nn.Conv2d(2, width, 3, stride=3, bias=bias) if embed == "conv" else nn.Linear(18, width, bias=bias)
        self.token = nn.Parameter(torch.randn(1, token, width)) if token else None
        rows = 4 + (token if positions in ("after", "fixed") else 0)
        self.positions = nn.Parameter(torch.randn(1, rows, width)) if positions != "none" else None
        if positions == "fixed":
            self.positions.requires_grad_(False)  # type: ignore[union-attr]
        self.gains = nn.ParameterList(torch.randn(width) for _ in range(depth if gain else 0))
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=bias) for _ in range(2 * depth + 1))
        self.attend = nn.ModuleList(Attention(width, heads, how=how, cut=cut, bias=bias) for _ in range(depth))
        self.mlps = nn.ModuleList(Mlp(width, ACTS[act](), bias=bias) for _ in range(depth))
        self.last = nn.Linear(width, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.4) / 0.3
        if self.embed == "conv":
            x = self.first(x).flatten(2).transpose(1, 2)
        else:
            x = self.first(x.unfold(2, 3, 3).unfold(3, 3, 3).permute(0, 2, 3, 1, 4, 5).reshape(len(x), 4, 18))
        if self.positions is not None and self.places == "before":
            x = x + self.positions
        if self.token is not None:
            x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)
        if self.positions is not None and self.places in ("after", "fixed"):
            x = x + self.positions
        for place, (attend, mlp) in enumerate(zip(self.attend, self.mlps, strict=True)):
            one, two = self.norms[2 * place], self.norms[2 * place + 1]
            x = x + attend(one(x)) if self.before else one(x + attend(x))
            y = mlp(two(x) if self.before else x)
            y = y * self.gains[place] if len(self.gains) else y
            x = y + x if self.before else two(y + x)
        x = self.norms[-1](x)
        out: Tensor = self.last(
            x[:, 0] if self.pool == "first" else x[:, 1:].mean(1) if self.pool == "rest" else x.mean(1)
        )
        return out


def check_by_hand(case: Case) -> None:
    """The way is taken, gives the numbers, and is that of transformers."""
    check(case, None, taken=("chain",))
    matcher = ways_of(case, "chain")
    assert matcher is not None
    assert {each.why for each in matcher.explain()} == {"a transformer, by hand"}


@settings(max_examples=25, deadline=None)
@given(
    how=st.sampled_from(list(ATTEND)),
    cut=st.sampled_from(["three layers", "by parts", "by heads", "split"]),
    act=st.sampled_from(list(ACTS)),
    bias=st.booleans(),
    token=st.sampled_from([0, 1, 2]),
    positions=st.sampled_from(["none", "before", "after", "fixed"]),
    gain=st.booleans(),
    before=st.booleans(),
    pool=st.sampled_from(["first", "rest", "all"]),
    depth=st.integers(1, 2),
    heads=st.sampled_from([1, 2, 4]),
    batch=st.sampled_from([1, 1, 3]),
    seen=st.sampled_from(SEEN),
    seed=st.integers(0, 10_000),
)
def test_transformers(batch: int, seen: str, seed: int, **kind: object) -> None:
    torch.manual_seed(seed)
    check_by_hand(make(Small(**kind), SHAPE, batch=batch, seen=seen, seed=seed))  # type: ignore[arg-type]


class Encoder(nn.Module):
    """torch's own layers."""

    def __init__(self, *, batch_first: bool, norm_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.first = nn.Conv2d(2, 8, 3, stride=3)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        layer = nn.TransformerEncoderLayer(
            8, 2, 10, dropout=0.1, activation="gelu", batch_first=batch_first, norm_first=norm_first
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        x = self.blocks(x) if self.batch_first else self.blocks(x.transpose(0, 1)).transpose(0, 1)
        out: Tensor = self.last(x[:, 0])
        return out


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torchs_own_encoder(batch_first: bool, norm_first: bool) -> None:
    torch.manual_seed(3)
    model = Encoder(batch_first=batch_first, norm_first=norm_first)
    check_by_hand(make(model, SHAPE, batch=2, seen="noisy"))


@pytest.mark.parametrize("kind", [{}, {"depth": 3}, {"bias": False, "twice": True, "activation": "relu", "depth": 2}])
def test_the_houses_own(kind: dict[str, object]) -> None:
    torch.manual_seed(1)
    check_by_hand(make(vit(**kind), SHAPE))


def test_patches_by_hand() -> None:
    torch.manual_seed(2)
    check_by_hand(make(Small(embed="unfold"), SHAPE))


def test_slopes_agree_with_finite_differences() -> None:
    torch.manual_seed(4)
    case = make(Small(), SHAPE, batch=2, seen="noisy")
    matcher = ways_of(case, "chain")
    assert matcher is not None
    finite_difference(case, matcher)


@pytest.mark.parametrize("name", list(CURVES))
def test_curves_have_the_derivatives_of_their_functions(name: str) -> None:
    a = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
    wanted = ACTS[name]()(a)
    (slope,) = torch.autograd.grad(wanted.sum(), a, create_graph=True)
    found = CURVES[name](a.detach(), torch.ones_like(a.detach()))
    torch.testing.assert_close(found.z, wanted.detach())
    torch.testing.assert_close(found.slope, slope.detach())
    if found.bend is None:
        assert not slope.requires_grad or float(torch.autograd.grad(slope.sum(), a)[0].abs().max()) == 0
    else:
        torch.testing.assert_close(found.bend, torch.autograd.grad(slope.sum(), a)[0])


def test_the_last_block_works_on_the_token_that_is_looked_at() -> None:
    """All of its layers but that of keys and values see one row an image, and their gradients have rank one."""
    torch.manual_seed(0)
    case = make(Small(depth=2), SHAPE)
    network = Transformer(case.target, case.observed, 1)
    network(case.images, case.labels, case.owner)
    rows = {
        tuple(node.pieces[:1]): tuple(node.a.shape)[:-1]  # type: ignore[attr-defined]
        for node in network._nodes
        if node.pieces and "weight" in node.pieces[0] and hasattr(node, "gram")
    }
    assert rows["mlps.0.parts.0.weight",] == (4, 5)
    assert rows["mlps.1.parts.0.weight",] == rows["mlps.1.parts.3.weight",] == rows["attend.1.out.weight",] == (4, 1)


class Masked(Small):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).flatten(2).transpose(1, 2)
        q, k, v = self.attend[0].layers[0](x).chunk(3, 2)  # type: ignore[union-attr, operator, index]
        out: Tensor = self.last(F.scaled_dot_product_attention(q, k, v, is_causal=True).mean(1))
        return out


class Mixed(Small):
    """Images of a batch attend to each other, so they cannot run together with those of other candidates."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).flatten(2).transpose(1, 2).transpose(0, 1)
        out: Tensor = self.last(self.attend[0](x).transpose(0, 1).mean(1))
        return out


@pytest.mark.parametrize("kind", [Masked, Mixed])
def test_what_it_does_not_know_goes_another_way(kind: type[Small]) -> None:
    torch.manual_seed(0)
    case = make(kind(token=0, positions="none", depth=1), SHAPE, batch=2)
    assert ways_of(case, "chain") is None
    other = engine.Matcher(case.target, case.observed)
    other(case.images, case.labels, case.owner)
    assert other.way != "chain"


def test_two_slopes_of_one_step_and_of_steps_in_another_order() -> None:
    torch.manual_seed(0)
    case = make(Small(token=0), SHAPE, batch=3)
    matcher = ways_of(case, "chain")
    assert matcher is not None
    one, other = (case.images[:2].clone().requires_grad_(), case.images[2:].clone().requires_grad_())
    first = matcher(one, case.labels[:2], case.owner[:2]).simulated.sum()
    second = matcher(other, case.labels[2:], case.owner[2:]).simulated.sum()
    (late,) = torch.autograd.grad(first, one, retain_graph=True)
    (again,) = torch.autograd.grad(first, one)
    torch.autograd.grad(second, other)
    fresh = one.detach().requires_grad_()
    (wanted,) = torch.autograd.grad(matcher(fresh, case.labels[:2], case.owner[:2]).simulated.sum(), fresh)
    torch.testing.assert_close(late, wanted)
    torch.testing.assert_close(again, wanted)


def test_losses_of_entries_are_those_of_the_tape() -> None:
    torch.manual_seed(0)
    case = make(Small(), SHAPE, batch=2)
    found = []
    for way in ("chain", "tape"):
        matcher = ways_of(case, way)
        assert matcher is not None
        found.append(matcher.entries(case.images, case.labels, case.owner, lambda s, o: (s - o).abs().sum(1)))
    torch.testing.assert_close(*found)


def test_a_matrix_is_split_by_its_rank_and_no_more() -> None:
    torch.manual_seed(0)
    left, right = torch.randn(2, 20, 3, dtype=torch.float64), torch.randn(2, 3, 30, dtype=torch.float64)
    factors = low_rank(left @ right, 8)
    assert factors is not None
    assert factors[0].shape == (2, 20, 3)
    torch.testing.assert_close(factors[0] @ factors[1], left @ right)
    assert low_rank(torch.randn(2, 20, 30, dtype=torch.float64), 8) is None


def test_forms_by_their_cost() -> None:
    assert cheapest(65, 65, 256, 1024) == "factored"
    assert cheapest(65, 0, 256, 1024) == "Gram"
    assert cheapest(1000, 0, 256, 1024) == "dense"
    assert cheapest(1, 0, 256, 1024) == "Gram"


@pytest.mark.parametrize("batch", [1, 2])
def test_a_step_holds_no_more_memory_than_is_planned(batch: int) -> None:
    torch.manual_seed(0)
    model = vit(depth=3, width=48, heads=3, hidden=192)
    case = make(model, SHAPE, batch=batch, dtype=torch.float32)
    network = Transformer(case.target, case.observed, batch)
    images = case.images.clone().requires_grad_()
    torch.autograd.grad(network(images, case.labels, case.owner)[0].sum(), images)
    model_and_seen = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *case.observed.values())}
    held: dict[int, int] = {}
    assert network._there is not None
    assert network._back_again is not None
    for call in (*network._there.calls, *network._back_again.calls):
        for value in (*call.args, *call.kwargs.values(), call.into):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                held[storage.data_ptr()] = storage.nbytes()
    taken = sum(size for place, size in held.items() if place not in model_and_seen)
    planned = engine.plan(case.target, victims=4, batch=batch, restarts=1, workers=1)
    assert planned.victims == 4
    assert 0.2 * planned.bytes < taken < planned.bytes
