"""Images behind the input of an inner layer."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import clients, models, servers
from dosimeter.attacks import Features, labels, presets
from dosimeter.attacks.solve.features import SMOOTH, find_layers, gauss_newton, smooth
from dosimeter.errors import SettingError
from dosimeter.servers import Tamper
from dosimeter.types import Reconstruction
from small import observe, target_of

SHAPE = (3, 4, 4)


def network() -> nn.Module:
    """A convolution that throws most of the image away before its only linear layer."""
    torch.manual_seed(0)
    inside = [nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 5)]
    return nn.Sequential(models.Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)), *inside)


def private(victims: int, batch: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(7)
    images = torch.rand(victims, batch, *SHAPE, generator=draws, dtype=torch.float64)
    return images, torch.randint(5, (victims, batch), generator=draws)


def attack(tamper: Tamper, batch: int = 1, dtype: torch.dtype = torch.float64) -> tuple[Reconstruction, Tensor]:
    images, classes = private(2, batch)
    target = target_of(tamper(network(), shape=SHAPE, batch=batch), SHAPE, dtype)
    seen = observe(target, images, classes)
    return Features(labels=labels.Known())(target, [seen], seed=0), images


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "tamper",
    [servers.FirstLayer(), servers.ConcatenatedInput(), servers.ReversibleBlocks(width=4)],
    ids=lambda t: t.name,
)
def test_what_the_server_put_in_gives_the_image_away(tamper: Tamper, dtype: torch.dtype) -> None:
    found, images = attack(tamper, dtype=dtype)
    assert found.outcomes == ("recovered", "recovered")
    assert torch.allclose(found.images.double(), images, rtol=0, atol=1e-7 if dtype == torch.float64 else 1e-3)


def test_an_honest_network_may_keep_it() -> None:
    found, images = attack(servers.Honest())
    assert found.outcomes == ("not determined", "not determined")
    assert (found.images - images).abs().max() > 0.05
    assert found.match.min() > 1e-3


@pytest.mark.parametrize("front", [servers.FirstLayer(), servers.ConcatenatedInput()], ids=lambda t: t.name)
def test_separate_weights_give_a_batch_away_image_by_image(front: Tamper) -> None:
    found, images = attack(front | servers.SeparateWeights(), batch=2)
    assert found.outcomes == ("recovered", "recovered")
    assert torch.allclose(found.images, images, rtol=0, atol=1e-7)


def test_a_batch_in_one_layer_is_refused() -> None:
    target = target_of(network(), SHAPE)
    with pytest.raises(SettingError, match=r"of one image alone.*--batch 1"):
        Features().check(target, 2)
    Features().check(target, 1)


def test_what_has_no_biased_layer_or_no_single_gradient_is_refused() -> None:
    bare = nn.Sequential(nn.Flatten(), nn.Linear(48, 5, bias=False))
    with pytest.raises(SettingError, match="No fully connected layer with a bias"):
        Features().check(target_of(bare, SHAPE), 1)
    local = replace(target_of(network(), SHAPE), step=clients.LocalTraining(steps=2, lr=0.1))
    with pytest.raises(SettingError, match="LocalTraining"):
        Features().check(local, 1)


def test_the_widest_layer_is_taken() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 5))
    assert [layer.name for layer in find_layers(target_of(model, SHAPE), 1)] == ["4"]


def test_without_the_update_the_image_is_blank() -> None:
    images, classes = private(2, 1)
    target = target_of(network(), SHAPE)
    found = presets.features().blind()(target, [observe(target, images, classes)], seed=0)
    assert torch.equal(found.images, target.mean.expand(2, 1, *SHAPE))
    assert found.outcomes == ("not determined", "not determined")


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 20), seed=st.integers(0, 1000))
def test_a_step_is_the_least_squares_solution(rows: int, seed: int) -> None:
    """Against torch.linalg, with the smoothing written out as a matrix."""
    draws = torch.Generator().manual_seed(seed)
    shape, n = (1, 3, 4), 12
    matrix = torch.randn(rows, n, generator=draws, dtype=torch.float64)
    wanted = torch.randn(rows, generator=draws, dtype=torch.float64)
    x = torch.randn(shape, generator=draws, dtype=torch.float64)
    found = gauss_newton(lambda x: wanted - matrix @ x.flatten(), x, 200)
    s = torch.stack([smooth(e.reshape(shape)).flatten() for e in torch.eye(n, dtype=torch.float64)])
    assert torch.allclose(s, s.T)
    expected = s @ torch.linalg.pinv(matrix @ s) @ (wanted - matrix @ x.flatten())
    assert torch.allclose(found.flatten(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_an_update_of_zeros_determines_nothing() -> None:
    images, classes = private(1, 1)
    target = target_of(network(), SHAPE)
    seen = observe(target, images, classes)
    dead = seen._replace(gradient={name: torch.zeros_like(g) for name, g in seen.gradient.items()})
    found = Features(labels=labels.Known())(target, [dead], seed=0)
    assert found.outcomes == ("not determined",)
    assert torch.equal(found.images[0, 0], target.mean.expand(SHAPE))


def test_smooth_differences_go_further_than_rough_ones() -> None:
    flat = torch.ones(2, 9, 9, dtype=torch.float64)
    board = flat - 2 * (torch.arange(9)[:, None] + torch.arange(9)).remainder(2)
    for images, factor in ((flat, 1 + SMOOTH), (board, 1.0)):
        assert torch.allclose(smooth(images)[:, 2:-2, 2:-2], factor * images[:, 2:-2, 2:-2])
