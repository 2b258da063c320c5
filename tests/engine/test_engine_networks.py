"""Networks whose parts meet in more than one place: transformers, residual links, shared and frozen parameters."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import models
from engine.test_engine_oracle import CLASSES, LOSSES, SEEN, check, each_way, finite_difference, make, ways_of


class Network(nn.Module):
    """Modules and what is done with them."""

    def __init__(self, run: Callable[["Network", Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def vit(**changed: object) -> nn.Module:
    settings: dict[str, object] = {"patch": 3, "depth": 1, "width": 8, "heads": 2, "hidden": 10, "spread": 0.5}
    return models.ViT(shape=(2, 6, 6), classes=CLASSES, mean=(0.4,), std=(0.3,), **{**settings, **changed})  # type: ignore[arg-type]


def residual() -> nn.Module:
    def run(m: Network, x: Tensor) -> Tensor:
        x = m.first(x)
        x = torch.relu(x + m.norm(m.inner(x)))
        out: Tensor = m.last((x + m.skip(x)).mean((2, 3)))
        return out

    norm, skip = nn.GroupNorm(1, 4), nn.Conv2d(4, 4, 1, bias=False)
    inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1))
    return Network(run, first=nn.Conv2d(2, 4, 3), inner=inner, norm=norm, skip=skip, last=nn.Linear(4, CLASSES))


def called_twice() -> nn.Module:
    def run(m: Network, x: Tensor) -> Tensor:
        x = m.conv(torch.tanh(m.conv(x))).flatten(1)
        out: Tensor = m.last(torch.tanh(m.inner(torch.tanh(m.inner(x)))))
        return out

    return Network(run, conv=nn.Conv2d(2, 2, 3), inner=nn.Linear(8, 8), last=nn.Linear(8, CLASSES))


def norm_twice() -> nn.Module:
    def run(m: Network, x: Tensor) -> Tensor:
        x = torch.tanh(m.norm(m.conv(x)))
        out: Tensor = m.last(torch.tanh(m.norm(x * x)).flatten(1))
        return out

    return Network(run, conv=nn.Conv2d(2, 4, 3), norm=nn.GroupNorm(2, 4), last=nn.Linear(64, CLASSES))


def one_parameter_in_two_layers() -> nn.Module:
    one, two = nn.Linear(12, 12), nn.Linear(12, 12)
    two.weight = one.weight
    convs = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1, stride=2)
    convs[1].weight = convs[0].weight
    start = [convs[0], nn.Tanh(), convs[1], nn.Tanh(), nn.Flatten(), nn.Linear(18, 12), nn.Tanh()]
    return nn.Sequential(*start, one, nn.Tanh(), two, nn.Tanh(), nn.Linear(12, CLASSES))


def windows_and_native_kernels_of_one_parameter() -> nn.Module:
    one, two = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, groups=2)
    two.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), two, nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES))


def frozen() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 4, 3, groups=2), nn.Tanh(), nn.Flatten()
    )
    model.extend([nn.Linear(16, 6), nn.LayerNorm(6), nn.Linear(6, CLASSES)])
    for name in ("0.weight", "1.bias", "3.weight", "6.bias", "7.weight", "8.weight"):
        model.get_parameter(name).requires_grad_(False)
    return model


def frozen_below() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES))
    model[0].requires_grad_(False)
    return model


def only_a_bias() -> nn.Module:
    return frozen_below().requires_grad_(False).apply(lambda m: getattr(m, "bias", torch.zeros(1)).requires_grad_())


def offsets() -> nn.Module:
    """Parameters of no layer that broadcast over images, one of them used twice."""
    return Network(
        lambda m, x: m.last((torch.tanh(x + m.place) * m.place + m.scale * x).flatten(1)),
        place=nn.Parameter(torch.randn(1, 2, 6, 6)),
        scale=nn.Parameter(torch.randn(1, 2, 1, 1)),
        last=nn.Linear(72, CLASSES),
    )


def dead_end() -> nn.Module:
    """A layer that runs and whose output counts for nothing."""
    return Network(
        lambda m, x: m.last(x.flatten(1)) + 0 * m.off(x.flatten(1)).sum(),
        last=nn.Linear(72, CLASSES),
        off=nn.Linear(72, 3),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "vit": vit,
    "vit without biases": lambda: vit(bias=False, twice=True, activation="relu", depth=2),
    "residual": residual,
    "called twice": called_twice,
    "norm twice": norm_twice,
    "one parameter in two layers": one_parameter_in_two_layers,
    "windows and native kernels of one parameter": windows_and_native_kernels_of_one_parameter,
    "frozen": frozen,
    "frozen below": frozen_below,
    "only a bias": only_a_bias,
    "offsets": offsets,
    "dead end": dead_end,
}


@each_way
@pytest.mark.parametrize("name", list(NETWORKS))
@settings(max_examples=3, deadline=None)
@given(
    batch=st.sampled_from([1, 3]),
    loss=st.sampled_from(list(LOSSES)),
    seen=st.sampled_from(SEEN),
    seed=st.integers(0, 10_000),
)
def test_networks(way: str | None, name: str, batch: int, loss: str, seen: str, seed: int) -> None:
    torch.manual_seed(seed)
    check(make(NETWORKS[name](), (2, 6, 6), batch=batch, loss=loss, seen=seen, seed=seed), way)


@each_way
@pytest.mark.parametrize("name", ["vit", "called twice", "one parameter in two layers", "frozen", "offsets"])
def test_slopes_of_networks_agree_with_finite_differences(way: str | None, name: str) -> None:
    torch.manual_seed(4)
    case = make(NETWORKS[name](), (2, 6, 6), batch=2, seen="noisy")
    matcher = ways_of(case, way)
    if matcher is not None:
        finite_difference(case, matcher)
