"""Residual networks by hand: lines that part and meet again, poolings, convolutions by Winograd and few positions."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import engine, models
from dosimeter.engine import Matcher, winograd
from dosimeter.engine.chain import Chain
from dosimeter.engine.ops import Memory, ReLU
from dosimeter.engine.patches import Window
from dosimeter.engine.tiles import Tiles, maps
from engine.test_engine_oracle import CLASSES, SEEN, Case, check, make

SHAPE = (2, 9, 9)


class Block(nn.Module):
    """activation(body(x) + shortcut(x)), with the shortcut's norm at 0 where asked for, as many begin training."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, inplace: bool, zero: bool, bias: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=bias),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=inplace),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=bias),
            nn.BatchNorm2d(outputs),
        )
        if zero:
            nn.init.zeros_(self.body.get_parameter("4.weight"))
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=bias)
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        if self.inplace:
            out += self.shortcut(x)
            return out.relu_()
        return torch.relu(self.shortcut(x) + out)


def moved(model: nn.Module) -> nn.Module:
    """With running statistics and affine parameters that are not those of a new model."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            nn.init.normal_(layer.running_mean, std=0.2)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
            if bool(layer.weight.any()):
                nn.init.normal_(layer.weight, 1.0, 0.3)
            nn.init.normal_(layer.bias, std=0.3)
    return model.eval()


POOLS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "max": lambda: nn.MaxPool2d(3, 2, 1),
    "average": lambda: nn.AvgPool2d(3),
}
HEADS = {"mean": nn.AdaptiveAvgPool2d(1), "all": nn.Identity()}


@st.composite
def residual(draw: st.DrawFn) -> nn.Module:
    torch.manual_seed(draw(st.integers(0, 99)))
    width, bias = draw(st.sampled_from([2, 5, 17])), draw(st.booleans())
    stem = nn.Conv2d(SHAPE[0], width, 3, 1, draw(st.integers(0, 1)), bias=bias)
    pool = draw(st.sampled_from(sorted(POOLS)))
    if pool == "average":
        stem.padding = (1, 1)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(), POOLS[pool]()]
    for _ in range(draw(st.integers(1, 3))):
        outputs = draw(st.sampled_from([width, 3, 20]))
        layers.append(
            Block(
                width,
                outputs,
                stride=draw(st.integers(1, 2)),
                inplace=draw(st.booleans()),
                zero=draw(st.booleans()),
                bias=bias,
            )
        )
        width = outputs
    model = nn.Sequential(*layers, HEADS[draw(st.sampled_from(sorted(HEADS)))], nn.Flatten())
    with torch.no_grad():
        size = model.eval()(torch.zeros(1, *SHAPE)).shape[1]
    return moved(nn.Sequential(*model, nn.Linear(size, CLASSES)))


@settings(max_examples=20, deadline=None)
@given(residual(), st.sampled_from(SEEN), st.integers(1, 3), st.sampled_from([1, 1000]))
def test_random_residual_networks_by_hand_equal_autograd(
    model: nn.Module, seen: str, batch: int, channels: int
) -> None:
    with patch.object(winograd, "LEAST", channels), patch.object(winograd, "FEW", 1):
        check(make(model, SHAPE, batch=batch, seen=seen), None, taken=("chain",))


@pytest.mark.parametrize("seen", ["exact", "noisy"])
@pytest.mark.parametrize("depth", [18, 20, 50])
def test_the_residual_networks_of_the_catalogue_run_by_hand(depth: int, seen: str) -> None:
    torch.manual_seed(0)
    model = models.ResNet(shape=(3, 16, 16), classes=CLASSES, depth=depth, width=0.25)
    check(make(moved(model), (3, 16, 16), seen=seen), None, taken=("chain",))


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("side", [4, 7, 10])
def test_maps_of_tiles_are_convolutions_and_adjoint(side: int, padding: int) -> None:
    window = Window((3, 3), (1, 1), (padding, padding), (1, 1))
    memory = Memory()
    tiles = Tiles(window, maps(torch.float64, torch.device("cpu")), memory)
    x = torch.randn(2, side, side + 1, 3, dtype=torch.float64)
    weight = torch.randn(5, 3, 3, 3, dtype=torch.float64)
    tiles.begin(x.shape)
    kernel = (tiles.maps.kernel @ weight.permute(2, 3, 1, 0).reshape(9, -1)).view(36, 3, 5)
    spread = tiles.spread(x, "a")
    z = tiles.gather(spread @ kernel, "z").clone()
    wanted = nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, padding=padding).permute(0, 2, 3, 1)
    torch.testing.assert_close(z, wanted, rtol=1e-11, atol=1e-11)
    back = torch.randn_like(z)
    adjoint = tiles.gather_back(tiles.spread_back(back, "d") @ kernel.transpose(1, 2), "images")
    torch.testing.assert_close((adjoint * x).sum(), (back * z).sum(), rtol=1e-11, atol=1e-11)


def rounding_apart(case: Case) -> Matcher:
    """A matcher to whose chain slopes are apart from autograd's in float32, as where an activation is near its kink."""
    matcher, slope, bent = Matcher(case.target, case.observed), Chain.slope, [0.1]

    def jump(chain: Chain, cross: Tensor, squared: Tensor, shape: torch.Size) -> Tensor:
        found = slope(chain, cross, squared, shape)
        return found * (1 + bent.pop()) if bent and found.dtype == torch.float32 else found

    with patch.object(Chain, "slope", jump):
        matcher(case.images, case.labels, case.owner)
    return matcher


def test_slopes_that_jump_in_float32_are_judged_in_float64() -> None:
    torch.manual_seed(0)
    model = moved(
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(196, CLASSES))
    )
    case = make(model, SHAPE, dtype=torch.float32)
    assert rounding_apart(case).way == "chain"
    tangent = ReLU.tangent
    with patch.object(ReLU, "tangent", lambda op, da: tangent(op, da * 1.0001)):
        assert rounding_apart(case).way == "tape"


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("side", [8, 32])
def test_what_residual_networks_hold_is_planned(side: int, batch: int) -> None:
    torch.manual_seed(0)
    shape = (3, side, side)
    model = models.ResNet(shape=shape, classes=CLASSES, depth=18, width=0.5).eval()
    base = make(model, shape, batch=1, dtype=torch.float32)
    chain = Chain(base.target, base.observed, batch)
    n = 2
    images, labels = torch.rand(n, batch, *shape, requires_grad=True), torch.zeros(n, batch, dtype=torch.long)
    cross, squared = chain(images, labels, torch.arange(n))
    (cross + squared).sum().backward()
    held = 4 * sum(t.numel() for t in chain.memory._held.values())
    plan = engine.plan(base.target, victims=16, batch=batch, restarts=1, workers=1)
    planned = plan.bytes / plan.victims
    seen = 8 * sum(p.numel() for p in model.parameters() if p.ndim != 2)  # the observation, twice
    assert 0.2 * n * (planned - seen) < held < n * (planned - seen)
