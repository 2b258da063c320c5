"""PRECODE and CVB: parameters as the papers count them, divergences by value, noise that only the client knows."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

from dosimeter import models
from dosimeter.defenses import Cvb, Defense, Precode
from dosimeter.defenses.bottleneck import gaussian_divergence
from dosimeter.defenses.places import Guarded, shortcuts
from dosimeter.errors import SettingError
from dosimeter.types import Target

SHAPE = (3, 32, 32)


def cnn() -> nn.Module:
    return models.build("cnn", shape=SHAPE, classes=10, mean=(0.5,), std=(0.25,), seed=0)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("defense", "share"),
    [
        (Cvb(kernel=5), 9.90),  # CVB, Sec. VI-A
        (Cvb(kernel=7), 19.21),
        (Cvb(kernel=3), 3.69),  # CVB, Sec. IV; cut off to 3.68 there
        (Cvb(kernel=1, position=3), 9.31),  # its formula, 2 (k_E^2 c K_E) + K_E c
        (Cvb(kernel=1, position=(1, 3)), 9.31 + 0.58),
        (Precode(k=32, position=3, bias=False), 9.31),  # CVB, Table II
        (Precode(k=16, position=2, bias=False), 58.22),
        (Precode(k=8, position=1, bias=False), 114.10),
    ],
    ids=repr,
)
def test_added_parameters_are_the_papers(defense: Defense, share: float) -> None:
    plain = cnn()
    added = count(defense.on_model(plain, SHAPE)) - count(plain)
    assert 100 * added / count(plain) == pytest.approx(share, abs=0.01)


def test_divergence_is_torchs() -> None:
    mean, deviation = torch.randn(50), torch.rand(50) + 0.1
    expected = kl_divergence(Normal(mean, deviation), Normal(torch.zeros(50), torch.ones(50)))
    assert torch.allclose(gaussian_divergence(mean, deviation), expected, atol=1e-5)


def decoder(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of the one there is."""
    weight, bias = (p for name, p in model.named_parameters() if ".decoder." in name)
    return weight, bias


@pytest.mark.parametrize(
    "defense",
    [
        Precode(k=4),
        Precode(k=4, position=2),
        Precode(k=4, variant="bayes"),
        Precode(k=4, variant="bayes", beta=0.5),
        Cvb(),
        Cvb(variant="released"),
    ],
    ids=repr,
)
def test_the_penalty_is_a_mean_over_images_in_bits_for_precode_and_nats_for_cvb(defense: Defense) -> None:
    model = defense.on_model(cnn(), SHAPE).double().eval()
    images, labels = torch.rand(3, *SHAPE, dtype=torch.float64), torch.tensor([1, 2, 3])
    zero = torch.zeros(3, 1, 1, dtype=torch.float64)
    target = Target(model, F.cross_entropy, SHAPE, zero, zero + 1)
    drawn = {name: torch.randn(s.full_shape(3), dtype=torch.float64) for name, s in target.secrets.items()}
    seen: dict[str, torch.Tensor] = {}
    for name, layer in model.named_modules():
        layer.register_forward_hook(lambda _m, _i, out, name=name: seen.__setitem__(name.rpartition(".")[2], out))
    output = torch.func.functional_call(model, drawn, (images,))
    if isinstance(defense, Precode):
        mean, raw = seen["encoder"].chunk(2, 1)
        deviation = (raw / 2).exp() if defense.variant == "bayes" else F.softplus(raw)
        assert torch.allclose(seen["decoder"], F.linear(mean + deviation * next(iter(drawn.values())), *decoder(model)))
        beta = {"paper": 1e-3, "bayes": 0.0}[defense.variant] if defense.beta is None else defense.beta
        beta /= math.log(2)  # PRECODE's program counts bits
    else:
        assert isinstance(defense, Cvb)
        beta = defense.beta
        mean, deviation = seen["mean"], F.softplus(seen["deviation"].clamp(-5, 5))
    each = kl_divergence(Normal(mean, deviation), Normal(torch.zeros_like(mean), torch.ones_like(mean)))
    if getattr(defense, "variant", "paper") == "released":
        each = (mean.square() + deviation.exp() - deviation - 1) / 2
    # A sum over numbers or channels, a mean over images and positions.
    extra = beta * each.sum(1).mean()
    whole = replace(target, drawn=drawn).objective(target.parameters, images, labels)
    assert torch.allclose(whole, F.cross_entropy(output, labels) + extra)
    assert torch.allclose(
        replace(target, drawn=drawn, penalised=False).objective(target.parameters, images, labels),
        F.cross_entropy(output, labels),
    )


@pytest.mark.parametrize("defense", [Precode(k=4), Cvb()], ids=repr)
def test_the_draw_is_the_clients_and_the_rest_of_the_model_is_kept(defense: Defense) -> None:
    plain = cnn()
    model = defense.on_model(plain, SHAPE).eval()
    assert count(plain) == count(cnn())  # the user's model is not touched
    images = torch.rand(2, *SHAPE)
    assert torch.equal(model(images), model(images))  # nothing is drawn unless a client does
    target = Target(model, F.cross_entropy, SHAPE, torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
    one, other = (
        torch.func.functional_call(model, {n: torch.randn(s.full_shape(2)) for n, s in target.secrets.items()}, images)
        for _ in range(2)
    )
    assert not torch.allclose(one, other)
    for p in plain.parameters():  # names change, values do not
        assert any(q.shape == p.shape and torch.equal(p, q) for q in model.parameters())


@pytest.mark.parametrize(
    ("defense", "says"),
    [
        (Precode(position=4), "position 1 to 3, got 4"),
        (Precode(before="nowhere"), "nowhere"),
        (Cvb(position=4), "position 1 to 3, got 4"),
    ],
    ids=repr,
)
def test_bad_places_are_refused(defense: Defense, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        defense.on_model(cnn(), SHAPE)


def test_no_flatten_is_looked_for_behind_an_earlier_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Dropout(), nn.Linear(144, 5), nn.Linear(5, 3))
    for defense in (Cvb(kernel=3), Cvb(kernel=3, position=1)):
        assert places(model, (1, 8, 8), defense) == ["1"]
    with pytest.raises(SettingError, match="feature maps"):
        Cvb(kernel=3, position=2).on_model(model, (1, 8, 8))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="odd kernel"):
        Cvb(kernel=4)
    with pytest.raises(SettingError, match="variant"):
        Cvb(variant="other")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="variant"):
        Precode(variant="released")  # type: ignore[arg-type]


def build(name: str) -> nn.Module:
    return models.build(name, shape=SHAPE, classes=10, mean=(0.5,), std=(0.25,), seed=0)


@pytest.mark.parametrize("positions", [(1, 2), (1, 3), (2, 3), (1, 2, 3)])  # CVB, Table VIII
def test_several_positions_get_a_bottleneck_each(positions: tuple[int, ...]) -> None:
    model = Cvb(position=positions).on_model(cnn(), SHAPE)
    channels = {1: 16, 2: 32, 3: 64}
    assert [m.mean.in_channels for m in model.modules() if hasattr(m, "deviation")] == [channels[p] for p in positions]
    each = (count(Cvb(position=at).on_model(cnn(), SHAPE)) - count(cnn()) for at in positions)
    assert count(model) - count(cnn()) == sum(each)


def test_the_last_position_of_the_cnn_is_behind_its_activation_and_before_the_flatten() -> None:
    assert places(cnn(), defense=Cvb(position=3)) == ["features.6"]
    model = Cvb(position=3).on_model(cnn(), SHAPE)
    assert isinstance(model.get_submodule("features.5"), nn.ReLU)
    assert isinstance(model.get_submodule("features.6.layer"), nn.Flatten)


@pytest.mark.parametrize(
    ("model", "before", "channels"), [("resnet18", "stages.0.1", 32), ("vit", "blocks.1", 32)]
)  # CVB, Sec. VI-D: after the first block, K_E = 32
def test_it_stands_behind_the_first_block_of_residual_networks_and_transformers(
    model: str, before: str, channels: int
) -> None:
    defended = Cvb(before=(before,), kernel=3).on_model(build(model), SHAPE).eval()
    (layer,) = [m for m in defended.modules() if hasattr(m, "deviation")]
    assert layer.mean.out_channels == channels
    images = torch.rand(2, *SHAPE)
    plain = build(model).eval()(images)
    drawn = {n: torch.randn(2, *b.shape[1:]) for n, b in defended.named_buffers() if n.endswith("noise")}
    noisy = torch.func.functional_call(defended, drawn, (images,))
    assert noisy.shape == plain.shape
    assert not torch.allclose(noisy, defended(images))


def places(model: nn.Module, shape: tuple[int, int, int] = SHAPE, defense: Defense | None = None) -> list[str]:
    defended = (defense or Cvb(kernel=3)).on_model(model, shape)
    return [path for path, layer in defended.named_modules() if isinstance(layer, Guarded)]


@pytest.mark.parametrize(
    ("model", "place"),
    [
        ("cnn", "features.2"),
        ("lenet", "features.2"),
        ("convnet", "features.3"),
        ("resnet18-imagenet", "stages.0.1"),  # CVB, Sec. VI-D: after the first block
        ("vit", "blocks.1"),
    ],
)
def test_by_default_no_shortcut_leads_around_it(model: str, place: str) -> None:
    assert places(build(model)) == [place]
    assert shortcuts(Cvb(kernel=3).on_model(build(model), SHAPE), SHAPE) == {}


class Residual(nn.Module):
    """activation(x + two convolutions), with one activation for both its places, as torchvision has it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.activation = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x + self.conv2(self.activation(self.conv1(x))))  # type: ignore[no-any-return]


class Flat(nn.Module):
    """Shortcuts without a module for the block."""

    def __init__(self, *, around_all: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.activation, self.conv3, self.last = nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)
        self.around_all = around_all

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.conv1(images))
        x = self.conv3(x + self.activation(self.conv2(x)))
        logits: torch.Tensor = self.last(x.mean((2, 3)))
        return logits + images.mean((1, 2, 3))[:, None] if self.around_all else logits


def headed(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (headed(Residual(), Residual()), "2"),
        (headed(nn.Conv2d(4, 4, 3), Residual()), "1"),
        (Flat(), "conv3"),
        (nn.Sequential(Flat()), "0.conv3"),
        (Flat(around_all=True), "conv2"),  # there is no better one
    ],
    ids=("blocks", "plain first", "flat", "flat in another module", "around all"),
)
def test_the_default_place_is_found_in_networks_of_ones_own(model: nn.Module, place: str) -> None:
    shape = (1, 8, 8)
    model.train()
    assert places(model, shape) == [place]
    assert all(layer.training for layer in model.modules())
    assert not any(layer._forward_pre_hooks for layer in model.modules())


@pytest.mark.parametrize(
    ("defense", "around"),
    [
        (Cvb(kernel=3, position=1), "stages.0.0.body.0"),
        (Cvb(kernel=3, before=("stages.0.0.body",)), "stages.0.0.body"),
        (Cvb(kernel=3, before=("stages.0.0.body", "stages.0.0.shortcut")), None),  # together they leave no way
        (Precode(k=4, position=1), "stages.0.0.body.0"),
        (Precode(k=4), None),
    ],
    ids=repr,
)
def test_a_chosen_place_that_a_shortcut_leads_around_is_kept_and_said(defense: Defense, around: str | None) -> None:
    model = models.build("resnet18", shape=(1, 8, 8), classes=3, mean=(0.5,), std=(0.25,), seed=0)
    said = shortcuts(defense.on_model(model, (1, 8, 8)), (1, 8, 8))
    assert said == ({} if around is None else {"shortcut": f"carries the image around the noise before {around}"})
