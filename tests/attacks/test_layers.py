"""Networks that are solved from their last layer to their first."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from dosimeter import clients, defenses, models
from dosimeter.attacks import Analytic, labels
from dosimeter.attacks.solve import fill
from dosimeter.attacks.solve.certificate import may_hold
from dosimeter.attacks.solve.fill import smoothest
from dosimeter.attacks.solve.inverses import INVERSES
from dosimeter.attacks.solve.layers import LayerSolver
from dosimeter.attacks.solve.straight import read_straight
from dosimeter.attacks.solve.system import least_squares
from dosimeter.attacks.stages import blank
from dosimeter.auditing import Resources, audit
from dosimeter.errors import SettingError
from dosimeter.reports.words import shares
from dosimeter.types import Observation, Reconstruction, Target, Victims
from small import observe, target_of

SHAPE = (1, 6, 6)
Layers = list[nn.Module]


def convolutions(
    seed: int,
    *,
    filters: tuple[int, ...],
    strides: tuple[int, ...],
    activation: Callable[[], nn.Module],
    shape: tuple[int, int, int] = SHAPE,
    padding: str = "zeros",
    bias: bool = True,
    between: Callable[[int], Layers] = lambda _: [],
) -> Target:
    """Convolutions 3x3 that see every pixel, each with an activation, then a classifier."""
    torch.manual_seed(seed)
    layers: Layers = [models.Normalise((0.4,), (0.3,))]
    channels, height, width = shape
    for count, stride in zip(filters, strides, strict=True):
        layers += [nn.Conv2d(channels, count, 3, stride=stride, padding=1, padding_mode=padding)]
        layers += [*between(count), activation()]
        channels, height, width = count, -(-height // stride), -(-width // stride)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, 4, bias=bias)).double()
    for name, p in model.named_parameters():  # wide enough that activations bend
        nn.init.normal_(p, std=0.3 if "bias" in name else 1.5 * p[0].numel() ** -0.5)
    return target_of(model, shape)


def private(target: Target, victims: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    images = torch.rand(victims, 1, *target.shape, generator=draws, dtype=torch.float64)
    return images.to(target.mean), torch.randint(4, (victims, 1), generator=draws)


def solve(target: Target, seen: Observation) -> Reconstruction:
    return Analytic(labels=labels.Known())(target, [seen], seed=0)


def noisy(seen: Observation, sigma: float) -> Observation:
    draws = torch.Generator().manual_seed(5)
    return seen._replace(
        gradient={k: g + sigma * torch.randn(g.shape, generator=draws, dtype=g.dtype) for k, g in seen.gradient.items()}
    )


def roughness(images: Tensor) -> Tensor:
    return images.diff(dim=-1).square().flatten(1).sum(1) + images.diff(dim=-2).square().flatten(1).sum(1)


class Stacked:
    """The equations of every convolution of a sequential model, written out by autograd from the true image."""

    def __init__(self, target: Target, image: Tensor, label: Tensor) -> None:
        self.matrices: dict[str, Tensor] = {}
        self.needed: dict[str, Tensor] = {}  # which numbers of a layer's input the layers above depend on
        x = image.clone()
        inputs: list[Tensor] = []
        assert isinstance(target.model, nn.Sequential)
        for layer in target.model:
            inputs.append(x.requires_grad_())
            x = layer(x)
        slopes = torch.autograd.grad(target.loss(x, label), [*inputs, x])
        for place, layer in enumerate(target.model):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                name = str(place) if self.matrices else "image"
                self._note(name, target, place, layer, inputs, slopes)

    def _note(
        self,
        name: str,
        target: Target,
        place: int,
        layer: nn.Conv2d | nn.Linear,
        inputs: list[Tensor],
        slopes: tuple[Tensor, ...],
    ) -> None:
        assert isinstance(target.model, nn.Sequential)
        last = place == len(target.model) - 1
        x, weights = inputs[place].detach(), {"weight": layer.weight.detach()}

        def output(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return torch.func.functional_call(layer, weights, (x,))

        back = slopes[place + 1]
        by_gradient = jacrev(lambda x: grad(lambda w: (output(w, x) * back).sum())(weights)["weight"])(x)
        rows = [by_gradient.reshape(-1, x.numel())]
        if not last:  # what the classifier gives is not in the update
            z = inputs[place + 1].detach()
            bend = target.model[place + 1]
            active = z > 0 if isinstance(bend, nn.ReLU) else torch.ones_like(z, dtype=torch.bool)
            above = slopes[place + 2].reshape(z.shape) != 0  # its use further up is what tells its value
            forward = jacrev(lambda x: output(weights, x))(x).reshape(z.numel(), -1)
            rows.append(forward[(active & above).flatten()])
        self.matrices[name] = torch.cat(rows)
        self.needed[name] = slopes[place].flatten() != 0

    def rank(self, layer: str) -> int:
        return int(torch.linalg.matrix_rank(self.matrices[layer]))

    def determined(self, layer: str) -> Tensor:
        """Which numbers of the input have no part in the null space."""
        _, values, right = torch.linalg.svd(self.matrices[layer], full_matrices=True)
        rank = int((values > 1e-12 * values.max()).sum()) if values.max() > 0 else 0
        return right[rank:].square().sum(0) < 1e-12


determined_by_construction = st.sampled_from(
    [((4,), (1,)), ((6,), (2,)), ((3, 6), (1, 1)), ((5, 12), (2, 1)), ((3, 14), (1, 2))]
)
"""At least twice as many forward equations as unknowns in every layer, but for those at the border."""


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    design=determined_by_construction,
    activation=st.sampled_from([nn.Sigmoid, nn.LeakyReLU, nn.Tanh, nn.Softplus, nn.ELU]),
    padding=st.sampled_from(["zeros", "circular"]),
    bias=st.booleans(),
)
def test_networks_with_more_equations_than_unknowns_give_their_image_away(
    seed: int,
    design: tuple[tuple[int, ...], tuple[int, ...]],
    activation: type[nn.Module],
    padding: str,
    bias: bool,
) -> None:
    filters, strides = design
    target = convolutions(seed, filters=filters, strides=strides, activation=activation, padding=padding, bias=bias)
    images, classes = private(target, 1, seed)
    found = solve(target, observe(target, images, classes))
    assert float((found.images - images).abs().max()) < 1e-6
    assert set(found.determined[0].values()) == {1.0}
    assert found.outcomes[0] == "recovered" or float(found.match[0]) > 1000 * torch.finfo(torch.float64).eps


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    filters=st.lists(st.integers(1, 6), min_size=1, max_size=2),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    activation=st.sampled_from([nn.ReLU, nn.ReLU, nn.Sigmoid, nn.LeakyReLU]),
)
@example(seed=225, filters=[2, 3], strides=(2, 2), activation=nn.ReLU)  # rounding above 0 is larger than below
def test_ranks_are_those_of_the_equations_and_nothing_is_certified_falsely(
    seed: int, filters: list[int], strides: tuple[int, int], activation: type[nn.Module]
) -> None:
    target = convolutions(
        seed, filters=tuple(filters), strides=strides[: len(filters)], activation=activation, shape=(2, 5, 5)
    )
    images, classes = private(target, 1, seed)
    found = solve(target, observe(target, images, classes))
    equations = Stacked(target, images[0], classes[0])
    order = list(reversed(equations.matrices))
    parts = found.determined[0]
    assert list(parts) == order[: len(parts)]
    for layer, share in parts.items():
        unknowns = equations.matrices[layer].shape[1]
        assert share == equations.rank(layer) / unknowns
    for above, layer in pairwise(order):  # it goes on for as long as all that is needed above is determined
        whole = bool((equations.determined(above) | ~equations.needed[above]).all())
        if above in parts:
            assert (layer in parts) == whole
    first, truth, guess = order[-1], images[0].flatten(), found.images[0].flatten()
    if found.outcomes[0] == "recovered":
        assert parts[first] == 1.0
        assert torch.allclose(guess, truth, atol=1e-6)
    elif found.outcomes[0] != "not determined":
        rank, unknowns = equations.rank(first), len(truth)
        assert rank < unknowns
        assert found.stopped[0].words == f"layer by layer: {rank} of {unknowns} numbers determined"
        assert float((equations.matrices[first] @ (guess - truth)).abs().max()) < 1e-6


@settings(max_examples=15, deadline=None)
@given(sigma=st.floats(-13, -1).map(lambda power: 10**power), seed=st.integers(0, 100))
def test_a_certificate_means_that_the_update_is_reproduced(sigma: float, seed: int) -> None:
    target = convolutions(seed, filters=(4,), strides=(1,), activation=nn.Sigmoid)
    images, classes = private(target, 1, seed)
    seen = noisy(observe(target, images, classes), sigma)
    found = solve(target, seen)
    simulated = clients.gradient(target, found.images[0], classes[0])
    apart = sum(float((simulated[k] - g[0]).square().sum()) for k, g in seen.gradient.items())
    size = sum(float(g[0].square().sum()) for g in seen.gradient.values())
    assert float(found.match[0]) >= 0.99 * (apart / size) ** 0.5 - 1e-15
    assert (found.outcomes[0] == "recovered") == (float(found.match[0]) <= 1000 * torch.finfo(torch.float64).eps)


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.ReLU])
def test_noise_takes_every_certificate_away(activation: type[nn.Module]) -> None:
    target = convolutions(0, filters=(6, 12), strides=(1, 1), activation=activation)
    seen = observe(target, *private(target, 4, 1))
    assert "not determined" not in solve(target, seen).outcomes
    assert set(solve(target, noisy(seen, 1e-2)).outcomes) == {"not determined"}


def test_an_update_of_another_image_is_not_certified() -> None:
    """A classifier's gradient that solves smoothly, above tensors that another image caused."""
    target = convolutions(0, filters=(4, 8), strides=(1, 1), activation=nn.Sigmoid)
    seen = observe(target, *private(target, 2, 4))
    for names in (("6.weight", "6.bias"), ("1.weight",)):
        mixed = {k: g.flip(0) if k in names else g for k, g in seen.gradient.items()}
        assert set(solve(target, seen._replace(gradient=mixed)).outcomes) == {"not determined"}


def test_single_precision_is_recovered_too() -> None:
    target = convolutions(3, filters=(4, 8), strides=(1, 1), activation=nn.Sigmoid)
    target = target_of(target.model, SHAPE, torch.float32)
    images, classes = private(target, 4, 2)
    found = solve(target, observe(target, images, classes))
    assert set(found.outcomes) == {"recovered"}
    assert float((found.images - images).abs().max()) < 1e-2


def test_pixels_that_the_network_never_sees_are_filled_smoothly() -> None:
    """Stride 2 without padding leaves the last row and column of 6x6 out, 11 of 36 pixels."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(32, 4)]
    target = target_of(nn.Sequential(*layers), SHAPE)
    across = torch.linspace(0.2, 0.8, 6).double()
    images = (across[None, :] * across[:, None]).reshape(1, 1, *SHAPE)
    found = solve(target, observe(target, images, torch.tensor([[1]])))
    assert found.stopped[0].words == "layer by layer: 25 of 36 numbers determined"
    assert torch.allclose(found.images[..., :5, :5], images[..., :5, :5], atol=1e-8)
    assert float((found.images - images).abs().max()) < 0.25
    assert float(roughness(found.images[0])) < float(roughness(images[0]))


def test_inactive_neurons_bound_what_the_equations_leave_open() -> None:
    """With few filters of ReLU the smoothest image alone would wake neurons that the update says are not active."""
    kept = 0
    for seed in range(6):
        target = convolutions(seed, filters=(1,), strides=(1,), activation=nn.ReLU, shape=(2, 6, 6))
        images, classes = private(target, 1, seed)
        found = solve(target, observe(target, images, classes))
        if found.determined[0]["image"] == 1.0:
            continue
        assert isinstance(target.model, nn.Sequential)
        true, simulated = (target.model[:3](x) > 0 for x in (images[0], found.images[0]))
        assert torch.equal(true, simulated)
        assert found.outcomes[0] == "partly determined"
        kept += 1
    assert kept


def hidden(bias: bool, last: bool) -> Target:
    torch.manual_seed(0)
    inside: Layers = [nn.Linear(36, 30, bias=bias), nn.ReLU(), nn.Linear(30, 20, bias=bias), nn.ReLU()]
    return target_of(nn.Sequential(nn.Flatten(), *inside, nn.Linear(20, 4, bias=last)), SHAPE)


@pytest.mark.parametrize(("bias", "last"), [(True, True), (False, True), (False, False)])
def test_fully_connected_layers_are_solved_by_their_slopes(bias: bool, last: bool) -> None:
    """Inverting Gradients, Prop. 2 and Cor. 1: layers without bias below one that has it; here even without any."""
    target = hidden(bias, last)
    images, classes = private(target, 3, 0)
    seen = observe(target, images, classes)
    solver = LayerSolver(target, seen, classes)
    for v in range(3):
        found = solver.solve(v)
        assert found.ended.outcome == "recovered"
        assert float((found.image - images[v, 0]).abs().max()) < 1e-8


def test_an_update_that_no_image_explains_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are met only where an image may explain the update: on noisy ones that took minutes and gave nothing."""
    torch.manual_seed(0)
    layers: Layers = [nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)]
    target = target_of(nn.Sequential(*layers), SHAPE)
    seen = observe(target, *private(target, 2, 0))
    met: list[int] = []
    settle = fill._settle
    monkeypatch.setattr(fill, "_settle", lambda *given: [met.append(1), settle(*given)][1])
    exact = solve(target, seen)
    assert met
    assert "not determined" not in exact.outcomes
    met.clear()
    noise = {name: 1e-6 * torch.randn_like(g) for name, g in seen.gradient.items()}
    noisy = solve(target, seen._replace(gradient={name: g + noise[name] for name, g in seen.gradient.items()}))
    assert not met
    assert set(noisy.outcomes) == {"not determined"}
    blind = blank(target).expand_as(noisy.images)
    assert (noisy.images != blind).flatten(1).any(1).all()  # what is near is shown all the same


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_an_image_may_explain_is_of_rank_one_but_for_rounding(dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(0)
    left, right, error = (torch.randn(n, generator=draws).double() for n in (10, 64, 640))
    weight, bound = left[:, None] * right, 1000 * torch.finfo(dtype).eps
    beyond = error.reshape(10, 64) / error.norm() * torch.linalg.norm(weight) * bound
    for size, holds in ((0, True), (0.9, True), (1.5, False)):
        assert may_hold(weight + size * beyond, {"last": weight}, bound) == holds
    assert may_hold(weight + 1.5 * beyond, {"last": weight, "first": weight}, bound)  # of the whole update's size
    assert may_hold(0 * weight, {"last": 0 * weight}, bound)


def test_average_pooling_after_an_activation_is_where_it_stops() -> None:
    torch.manual_seed(0)
    layers: Layers = [nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 4)]
    target = target_of(nn.Sequential(*layers), SHAPE)
    found = solve(target, observe(target, *private(target, 1, 0)))
    assert found.determined == ({"4": 0.25},)
    assert found.outcomes == ("not determined",)
    assert torch.equal(found.images[0, 0], blank(target))


@pytest.mark.parametrize(
    "between",
    [
        lambda channels: [nn.BatchNorm2d(channels)],
        lambda _: [nn.AvgPool2d(2, 1)],
        lambda channels: [nn.BatchNorm2d(channels), nn.Dropout(0.5), nn.Identity()],
    ],
)
def test_what_is_affine_before_an_activation_is_no_obstacle(between: Callable[[int], Layers]) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 12, 3, padding=1), *between(12), nn.Sigmoid(), nn.Flatten(), nn.LazyLinear(4)
    ).double()
    model(torch.rand(9, *SHAPE).double())  # running statistics other than 0 and 1
    target = target_of(model, SHAPE)
    images, classes = private(target, 2, 3)
    found = solve(target, observe(target, images, classes))
    assert set(found.outcomes) == {"recovered"}
    assert float((found.images - images).abs().max()) < 1e-7


class Functional(nn.Module):
    """The same as a sequential model, with functions instead of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 8, 3, padding="same"), nn.Linear(8 * 36, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.sigmoid(self.first((images - 0.5) / 0.25 + 0.1))
        logits: Tensor = self.last(x.view(x.size(0), -1))
        return logits


def test_functions_are_read_as_layers_are() -> None:
    torch.manual_seed(0)
    target = target_of(Functional(), SHAPE)
    images, classes = private(target, 2, 0)
    found = solve(target, observe(target, images, classes))
    assert found.outcomes == ("recovered", "recovered")
    (first, last) = read_straight(target)
    assert (first.learned.name, last.learned.name) == ("first", "last")


class Spoiled(nn.Module):
    """A mean over channels and rows, which gives as many numbers as there are channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(self.conv(images).mean((1, 2)))
        return logits


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(36, 4)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last((self.conv(images) + images).flatten(1))
        return logits


def after(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(1, 2, 3), *layers)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (after(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4)), "max_pool2d"),
        (after(nn.GELU(), nn.Flatten(), nn.Linear(32, 4)), "gelu"),
        (after(nn.ReLU(), nn.Sigmoid(), nn.Flatten(), nn.Linear(32, 4)), "bends the output of a layer twice"),
        (after(nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten(), nn.Linear(32, 4)), "statistics"),
        (after(nn.ReLU(), nn.Conv2d(2, 4, 4), nn.Flatten()), "fully connected"),
        (after(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 4)), "2 groups"),
        (Residual, "something else than the output"),
        (Spoiled, "calls mean"),
        (lambda: nn.Sequential(nn.Upsample(80), nn.Conv2d(1, 1, 3), nn.Flatten(), nn.LazyLinear(4)), "interpolate"),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3).requires_grad_(False), nn.Flatten(), nn.Linear(32, 4)), "trained"),
    ],
)
def test_other_networks_are_refused_in_one_line(model: Callable[[], nn.Module], why: str) -> None:
    with pytest.raises(SettingError, match=why) as refusal:
        Analytic().check(target_of(model(), SHAPE), 1)
    assert "--attack ig" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_local_training_of_convolutions_is_refused() -> None:
    target = convolutions(0, filters=(2,), strides=(1,), activation=nn.ReLU)
    local = Target(target.model, target.loss, SHAPE, target.mean, target.std, step=clients.LocalTraining(steps=2, lr=1))
    with pytest.raises(SettingError, match=r"LocalTraining.*--attack ig"):
        Analytic().check(local, 1)


def test_dead_layers_are_not_determined() -> None:
    target = convolutions(0, filters=(4,), strides=(1,), activation=nn.ReLU)
    layer = target.model.get_submodule("1")
    assert isinstance(layer, nn.Conv2d)
    with torch.no_grad():
        assert layer.bias is not None
        layer.bias -= 100
    found = solve(target, observe(target, *private(target, 1, 0)))
    assert found.outcomes == ("not determined",)
    assert found.determined[0]["image"] == 0.0
    assert torch.allclose(found.images[0, 0], blank(target))


def test_an_update_that_is_not_finite_is_not_determined() -> None:
    target = convolutions(0, filters=(4,), strides=(1,), activation=nn.Sigmoid)
    seen = observe(target, *private(target, 1, 0))
    for value in (torch.nan, torch.inf):
        broken = {
            k: g.index_fill(1, torch.tensor([0]), value) if k == "1.weight" else g for k, g in seen.gradient.items()
        }
        found = solve(target, seen._replace(gradient=broken))
        assert found.outcomes == ("not determined",)
        assert torch.equal(found.images[0, 0], blank(target))


def test_an_audit_records_what_was_determined() -> None:
    target = convolutions(0, filters=(4,), strides=(1,), activation=nn.Sigmoid)
    images, classes = private(target, 3, 0)
    victims = Victims(images.float(), classes, torch.arange(3)[:, None], ("a", "b", "c"))
    result = audit(target.model, victims, attack=Analytic(), resources=Resources(dtype=torch.float64, workers=2))
    assert [record.stopped for record in result.records] == ["recovered"] * 3
    assert result.scores.recovered.hits == 3
    assert result.scores.determined.mean == 1.0
    assert "Images recovered" in {share.name for share in shares(result)}
    noise = defenses.GaussianNoise(sigma=1e-2)
    spoiled = audit(target.model, victims, attack=Analytic(), defense=noise, resources=Resources(dtype=torch.float64))
    assert (spoiled.scores.recovered.hits, spoiled.scores.determined.mean) == (0, 0.0)
    assert result.records[1].determined == {"4": 1.0, "image": 1.0}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), sizes=st.tuples(*[st.integers(0, 9)] * 3))
def test_least_squares_are_those_of_the_pseudoinverse(seed: int, sizes: tuple[int, int, int]) -> None:
    draws = torch.Generator().manual_seed(seed)
    m, n, inner = sizes[0], sizes[1] + 1, sizes[2]
    rows = torch.randn(m, inner, generator=draws).double() @ torch.randn(inner, n, generator=draws).double()
    rest = torch.randn(m, generator=draws).double()
    solution, rank, open_ = least_squares(rows, rest, 1e-12)
    assert rank == (int(torch.linalg.matrix_rank(rows)) if m else 0)
    assert torch.allclose(solution, torch.linalg.pinv(rows) @ rest, atol=1e-6)
    assert open_.shape == (n, n - rank)
    assert torch.allclose(rows @ open_, torch.zeros(()).double(), atol=1e-9)
    assert torch.allclose(open_.T @ open_, torch.eye(n - rank).double(), atol=1e-9)


@pytest.mark.parametrize("name", sorted(INVERSES))
def test_an_activation_undone_is_its_input_and_slope(name: str) -> None:
    function: Callable[[Tensor], Tensor] = getattr(F, name)
    inputs = torch.linspace(-6, 9, 101).double()
    undone = INVERSES[name]()(function(inputs), 0.0)
    slopes = vmap(grad(lambda z: function(z)))(inputs)
    known = undone.trusted
    assert torch.allclose(undone.inputs[known], inputs[known], atol=1e-9)
    assert torch.allclose(undone.slopes, slopes, atol=1e-9)
    assert torch.equal(undone.below, inputs <= 0) if name == "relu" else not undone.below.any()
    assert known.all() or name == "relu"


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 12))
def test_the_fill_is_the_smoothest_image_within_its_bounds(seed: int, count: int) -> None:
    """No step along the open directions that keeps the bounds, with some margin, makes it smoother."""
    draws = torch.Generator().manual_seed(seed)
    image = torch.rand(1, 4, 4, generator=draws).double()
    directions = torch.linalg.qr(torch.randn(16, count, generator=draws).double()).Q.T.reshape(-1, 1, 4, 4)
    gate = torch.randn(16, 3, generator=draws).double()
    offset = (image.flatten() @ gate).abs() + 0.1  # the image itself keeps them

    def below(images: Tensor) -> Tensor:
        return images.flatten(1) @ gate - offset

    found = smoothest(image, directions, torch.full_like(image, 0.5), below)
    moved = (found - image).flatten()
    basis = directions.flatten(1)
    assert torch.allclose(basis.T @ (basis @ moved), moved, atol=1e-9)
    assert float(below(found[None]).max()) < 1e-3
    assert float((found - 0.5).abs().max()) < 0.5 + 1e-3
    trials = found + torch.einsum("nq,qchw->nchw", 0.05 * torch.randn(200, count, generator=draws).double(), directions)
    allowed = (below(trials).amax(1) <= -0.01) & ((trials - 0.5).abs().flatten(1).amax(1) <= 0.5)
    assert (roughness(trials[allowed]) >= roughness(found[None]) - 2e-3).all()
