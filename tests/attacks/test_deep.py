"""Deep networks read by what their wide convolutions saw."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import clients, models
from dosimeter.attacks.solve import below
from dosimeter.attacks.solve.deep import Deep, DeepSolver, find_wide
from dosimeter.attacks.solve.joined import Seen, Told, solve_joined
from dosimeter.attacks.solve.wide import Window, solve_given, solve_wide
from dosimeter.attacks.stages import unheard
from dosimeter.defenses import Cvb, Precode
from dosimeter.errors import SettingError
from dosimeter.networks.trace import Trace
from dosimeter.types import Outcome, Target
from small import observe, target_of, tiny_target

SHAPE = (3, 16, 16)
WINDOWS = {
    "3x3": Window((5, 6, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
    "stride 2": Window((5, 8, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
    "unpadded": Window((5, 7, 6), (3, 3), (1, 1), (0, 0), (1, 1)),
    "5x5, stride 3": Window((4, 12, 12), (5, 5), (3, 3), (2, 2), (1, 1)),
    "one direction": Window((9, 9, 6), (3, 5), (2, 1), (1, 2), (1, 1)),
}


class Block(nn.Module):
    """A residual block as torchvision writes it, in place, or out of place."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, in_place: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=in_place)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.in_place = in_place
        same = stride == 1 and inputs == outputs
        down = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.down = nn.Identity() if same else nn.Sequential(*down)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if not self.in_place:
            return self.relu(out + self.down(x))
        out += self.down(x)
        return self.relu(out)


def residual(*, in_place: bool = False, norm: str = "running") -> nn.Module:
    """Stages of 16x16, 8x8 and 4x4 places; 60 channels are enough for the last and not for those before."""
    torch.manual_seed(0)
    network = nn.Sequential(
        models.Normalise((0.4,) * 3, (0.3,) * 3),
        nn.Conv2d(3, 24, 3, 1, 1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(inplace=in_place),
        Block(24, 60, 2, in_place=in_place),
        Block(60, 60, 1, in_place=in_place),
        Block(60, 60, 2, in_place=in_place),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(60, 5),
    )
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):  # as after some training
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.1)
            layer.running_mean = 0.1 * torch.randn(layer.num_features)
            layer.running_var = 0.5 + torch.rand(layer.num_features)
            layer.track_running_stats = norm == "running"
            if norm != "running":
                layer.running_mean = layer.running_var = None
    return network


def pictures(n: int = 1) -> Tensor:
    """(n, 1, C, H, W) smooth ones."""
    coarse = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    return F.interpolate(coarse, size=SHAPE[1:], mode="bicubic").clamp(0, 1)[:, None]


def relative(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


@pytest.mark.parametrize("name", WINDOWS)
def test_a_wide_layer_tells_its_input_with_its_size(name: str) -> None:
    window = WINDOWS[name]
    torch.manual_seed(0)
    picture = torch.rand(window.shape, dtype=torch.float64)
    slopes = torch.randn(window.places, window.places + 3, dtype=torch.float64)
    weight, bias = slopes.T @ window.cut(picture[None])[0], slopes.sum(0)
    assert window.overlaps
    found = solve_wide(weight, bias, window, unheard)
    assert found.apart < 1e-8
    assert found.spread > 1e6
    assert relative(found.value, picture) < 1e-6


def test_without_full_rank_it_says_that_nothing_is_told() -> None:
    window = WINDOWS["3x3"]
    picture = torch.rand(window.shape, dtype=torch.float64)
    slopes = torch.randn(window.places, 50, dtype=torch.float64)
    slopes[:4] = 0  # nothing comes back to four places
    found = solve_wide(slopes.T @ window.cut(picture[None])[0], slopes.sum(0), window, unheard)
    assert found.spread < 10
    assert solve_wide(torch.zeros(50, 45).double(), torch.zeros(50).double(), window, unheard).spread == 0


def test_laying_patches_is_the_transpose_of_cutting_them() -> None:
    for window in WINDOWS.values():
        x, y = (
            torch.randn(window.shape),
            torch.randn(window.places, window.shape[0] * window.kernel[0] * window.kernel[1]),
        )
        torch.testing.assert_close((window.cut(x[None])[0] * y).sum(), (x * window.laid(y)).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("outputs", "told"), [(9, True), (2, False)])
def test_known_slopes_make_the_input_linear(outputs: int, told: bool) -> None:
    window = WINDOWS["3x3"]
    torch.manual_seed(0)
    picture = torch.rand(window.shape, dtype=torch.float64)
    slopes = torch.randn(outputs, window.places, dtype=torch.float64)
    found = solve_given(slopes @ window.cut(picture[None])[0], slopes, window)
    assert (found is not None) == told
    if found is not None:
        assert relative(found, picture) < 1e-8


def solver(target: Target, **settings: Any) -> tuple[DeepSolver, Tensor]:
    images = pictures()
    seen = observe(target, images, torch.tensor([[2]]))
    return DeepSolver(Deep(**settings), target, seen, torch.tensor([[2]]), 0), images[0]


@pytest.mark.parametrize("in_place", [False, True])
def test_layers_below_are_solved_through_residual_blocks(in_place: bool) -> None:
    target = target_of(residual(in_place=in_place), SHAPE)
    own, image = solver(target)
    observed, labels = own.update(0)
    (layer, *_) = own.wide
    assert layer.weight == "6.conv1.weight"
    source = own.trace.calls[layer.at].inputs[0]
    assert layer.shift is not None
    solved = solve_wide(observed[layer.weight].flatten(1), observed[layer.shift] * layer.scale, layer.window, unheard)
    assert below.cuts(own.trace, source)
    found = below.descend(own.exact, own.trace, source, solved.value, observed, labels, unheard).inputs
    true: dict[str, Tensor] = {}
    names = {id(m): f"{name}.weight" for name, m in target.model.named_modules()}
    hooks = [
        m.register_forward_pre_hook(lambda m, args: true.__setitem__(names[id(m)], args[0][0].clone()))
        for m in target.model.modules()
        if isinstance(m, nn.Conv2d)
    ]
    with torch.no_grad():
        target.model(image.double())
    for hook in hooks:
        hook.remove()
    weights = {each.at: each.weight for each in below.learned(own.trace)}
    assert relative(solved.value, true[layer.weight]) < 1e-7
    assert {weights[at] for at in found} >= {"5.conv2.weight", "5.conv1.weight", "4.conv2.weight"}
    for at, value in found.items():
        assert relative(value, true[weights[at]]) < 1e-5, weights[at]


def test_a_deep_network_is_read_without_labels() -> None:
    target = target_of(residual(), SHAPE, torch.float32)
    images, labels = pictures(2), torch.tensor([[2], [4]])
    attack = dm.presets.deep(steps=250)
    assert not attack.needs().labels
    found = attack(target, [observe(target, images, labels, granted=False)], seed=0)
    assert found.labels is not None
    assert found.labels.tolist() == labels.tolist()
    assert (found.images - images).abs().amax() < 0.01
    blind = attack.blind()(target, [observe(target, images, labels, granted=False)], seed=0)
    assert (blind.images - images).abs().amax() > 0.1
    assert blind.outcomes == (Outcome.NOT_DETERMINED,) * 2


def test_under_noise_nothing_is_claimed() -> None:
    target = target_of(residual(), SHAPE, torch.float32)
    seen = observe(target, pictures(), torch.tensor([[2]]))
    noisy = {name: g + 0.01 * g.std() * torch.randn_like(g) for name, g in seen.gradient.items()}
    found = dm.presets.deep(steps=20)(target, [seen._replace(gradient=noisy)], seed=0)
    assert found.outcomes == (Outcome.NOT_DETERMINED,)
    assert found.match.isfinite().all()


def test_it_refuses_what_it_cannot_solve() -> None:
    attack, target = dm.presets.deep(), target_of(residual(), SHAPE)
    with pytest.raises(SettingError, match="an update holds 2"):
        attack.check(target, 2)
    with pytest.raises(SettingError, match="No convolution"):
        attack.check(tiny_target(), 1)
    with pytest.raises(SettingError, match="No convolution"):
        attack.check(target_of(residual(norm="batch"), SHAPE), 1)
    local = clients.local(steps=2, lr=0.1)
    with pytest.raises(SettingError, match="solves one gradient"):
        attack.check(Target(target.model, target.loss, SHAPE, target.mean, target.std, step=local), 1)


def test_wide_layers_come_in_the_order_in_which_an_image_meets_them() -> None:
    trace = Trace(target_of(residual(), SHAPE).model, pictures()[0].double())
    assert [layer.weight for layer in find_wide(trace)] == ["6.conv1.weight", "6.conv2.weight"]


def test_units_near_zero_are_told_by_the_sum_of_what_passes() -> None:
    torch.manual_seed(0)
    true = torch.randn(1, 6, 8, 8).double().clamp_min(0)
    true[0, :, 0, 0] = torch.tensor([2e-6, 5e-6, 1e-5, 2e-5, 0, 0]).double()  # on by less than one takes for noise
    value = true + 1e-6 * torch.randn_like(true).clamp(-3, 1)
    slope = torch.randn_like(true)
    total = (slope * (true > 0)).sum((0, 2, 3))
    alone = below.on(value, slope, None)
    assert (alone != (true > 0)).any()
    assert torch.equal(below.on(value, slope, total), true > 0)


def test_the_analytic_attack_reads_networks_that_are_no_row_of_layers() -> None:
    target = target_of(residual(in_place=True), SHAPE, torch.float32)
    images, labels = pictures(), torch.tensor([[3]])
    found = dm.presets.analytic()(target, [observe(target, images, labels, granted=False)], seed=0)
    assert (found.images - images).abs().amax() < 0.01


def noisy(seed: int = 3) -> tuple[Target, Target]:
    """A deep network with CVB's bottleneck before its wide layers, and the same with what a client drew."""
    target = target_of(Cvb(beta=1e-3).on_model(residual(), SHAPE), SHAPE, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(s.full_shape(1), generator=generator) for name, s in target.secrets.items()}
    return target, replace(target, drawn=drawn)


def test_noise_below_the_wide_layers_hides_nothing() -> None:
    target, client = noisy()
    images, labels = pictures(), torch.tensor([[2]])
    seen = observe(client, images, labels, granted=False)
    found = dm.presets.eliminate()(target, [seen], seed=0)
    assert psnr(found.images, images) > 22
    assert found.outcomes == (Outcome.NOT_DETERMINED,)  # a search found it, no certificate
    blind = dm.presets.deep(steps=60).blind()(target, [seen], seed=0)
    assert psnr(blind.images, images) < 15


def test_an_input_that_gradients_leave_partly_open_is_solved_with_what_layers_gave() -> None:
    torch.manual_seed(0)
    narrow = Window((4, 8, 8), (3, 3), (2, 2), (1, 1), (1, 1))
    picture = torch.rand(1, *narrow.shape, dtype=torch.float64)
    first, second = nn.Conv2d(4, 6, 3, 2, 1).double(), nn.Conv2d(4, 24, 1, bias=False).double()

    class Two(nn.Module):
        """Two layers that see the same picture."""

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = F.relu(x)
            return F.relu(first(h)), F.relu(second(h))

    model = nn.Sequential(nn.Identity(), Joined(Two()))
    trace = Trace(model, picture)
    relus = [call for call in trace.calls if call.name == "relu"]
    seen = [Seen(call.inputs[0], call.outputs[0], call.outputs[0], call.outputs[0] > 0) for call in relus[1:]]
    slopes = torch.randn(6, narrow.places, dtype=torch.float64)
    told = Told(slopes @ narrow.cut(picture)[0], slopes, narrow)
    assert solve_given(*told) is None  # 54 equations for 64 pixels of a channel
    found = solve_joined(trace, relus[0].outputs[0], [told], seen, unheard)
    assert found is not None
    assert relative(found, picture[0]) < 1e-6
    assert solve_joined(trace, relus[0].outputs[0], [told], [], unheard) is None


class Joined(nn.Module):
    """The outputs of a module as one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part.flatten(1) for part in self.inner(x)], 1)


def test_noise_elsewhere_is_refused() -> None:
    target = target_of(Precode(k=16).on_model(residual(), SHAPE), SHAPE)
    with pytest.raises(SettingError, match="wide convolutions behind"):
        dm.presets.deep().check(target, 1)


def psnr(found: Tensor, true: Tensor) -> float:
    return float(-10 * (found - true).square().mean().log10())
