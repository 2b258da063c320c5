"""Settings do what they say, and smooth networks have exact second derivatives."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dosimeter.models import CNN, MLP, VGG16, BigLinear, ConvNet, LeNet, ResNet, TwoConv, ViT
from dosimeter.models.layers import ACTIVATIONS, GlobalPool
from dosimeter.models.resnet import Block, Kind, Widen

TINY = {"shape": (1, 12, 12), "classes": 3}
NARROW = [
    (CNN, {"width": 2, "shape": (1, 29, 29)}),
    (MLP, {"width": 4, "batch_norm": False}),
    (LeNet, {"width": 2}),
    (ConvNet, {"width": 2}),
    (TwoConv, {"width": 2}),
    (BigLinear, {"width": 1}),
    (ResNet, {"width": 1 / 16}),
    (VGG16, {"width": 1 / 32, "shape": (1, 32, 32)}),
    (VGG16, {"width": 1 / 64, "shape": (1, 32, 32), "head": "imagenet"}),
    (ViT, {"width": 4, "heads": 2}),
]
SMOOTH = [
    ("lenet", LeNet, {"width": 2, "batch_norm": "all"}, (1, 5, 6)),
    ("cnn", CNN, {"width": 1, "activation": "tanh"}, (1, 29, 29)),
    ("mlp", MLP, {"width": 3, "depth": 2, "activation": "gelu"}, (1, 1, 4)),
    ("convnet", ConvNet, {"width": 1, "activation": "softplus", "pooling": "average"}, (1, 9, 9)),
    ("twoconv", TwoConv, {"width": 1, "hidden": (2,), "activation": "silu", "padding": "circular"}, (1, 6, 6)),
    ("vit", ViT, {"width": 4, "heads": 2, "depth": 1, "hidden": 4, "patch": 2}, (1, 4, 4)),
    ("vit-released", ViT, {"width": 4, "heads": 2, "depth": 1, "patch": 2, "twice": True, "bias": False}, (1, 4, 4)),
]


def check_second_derivatives(model: nn.Module, images: Tensor) -> None:
    """Gradients of gradients in images and parameters against finite differences."""
    names = [name for name, _ in model.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        logits: Tensor = functional_call(model, dict(zip(names, values, strict=True)), (x,))
        return logits

    values = [p.detach().clone().requires_grad_() for p in model.parameters()]
    assert torch.autograd.gradgradcheck(run, (images.requires_grad_(), *values), fast_mode=True, atol=1e-4)


@pytest.mark.parametrize(("name", "kind", "settings", "shape"), SMOOTH, ids=[row[0] for row in SMOOTH])
def test_second_derivatives_are_exact(
    name: str, kind: type[nn.Module], settings: dict[str, object], shape: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    model = kind(shape=shape, classes=2, **settings).double().eval()
    check_second_derivatives(model, torch.rand(2, *shape, dtype=torch.float64))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("bottleneck", [False, True])
def test_second_derivatives_of_a_residual_block_are_exact(bottleneck: bool, norm: str) -> None:
    torch.manual_seed(0)
    block = Block(2, 4, 2, Kind(bottleneck=bottleneck, activation="softplus", norm=norm)).double()
    check_second_derivatives(block, torch.rand(2, 2, 4, 4, dtype=torch.float64))  # in training, too


@pytest.mark.parametrize(("kind", "settings"), NARROW)
def test_without_bias_no_fully_connected_layer_has_one(kind: type[nn.Module], settings: dict[str, object]) -> None:
    for bias in (True, False):
        model = kind(**{**TINY, **settings}, bias=bias)
        linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        assert linear
        assert all((layer.bias is not None) == bias for layer in linear)
    if kind is ViT:
        assert model.embed.bias is None


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_can_be_chosen_everywhere(name: str) -> None:
    expected = ACTIVATIONS[name]
    for kind, settings in NARROW:
        torch.manual_seed(0)
        model = kind(**{**TINY, **settings}, activation=name).eval()
        assert any(isinstance(layer, expected) for layer in model.modules())
        shape = {**TINY, **settings}["shape"]
        assert model(torch.rand(2, *shape)).isfinite().all()
        if name != "relu":
            assert not any(isinstance(layer, nn.ReLU) for layer in model.modules())


def test_circular_padding_moves_features_with_the_image_and_zeros_do_not() -> None:
    images = torch.rand(1, 1, 12, 12)
    moved = images.roll((2, -3), (2, 3))
    for padding, follows in (("circular", True), ("zeros", False)):
        torch.manual_seed(0)
        net = ConvNet(**TINY, width=2, padding=padding).eval()
        before_pooling = net.features[:18]
        residual = ResNet(**TINY, depth=20, width=0.25, padding=padding).eval()
        stride_1 = nn.Sequential(residual.stem, residual.stages[0])
        for part in (before_pooling, stride_1):
            same = torch.allclose(part(moved), part(images).roll((2, -3), (2, 3)), atol=1e-5)
            assert same == follows


def test_circular_networks_with_average_pooling_do_not_see_where_the_image_is() -> None:
    images = torch.rand(2, 1, 8, 8)
    model = ResNet(shape=(1, 8, 8), classes=3, depth=20, width=0.25, padding="circular").eval()
    assert torch.allclose(model(images), model(images.roll((4, -4), (2, 3))), atol=1e-5)  # 4 is both strides together


def test_pooling_is_what_was_asked_for() -> None:
    for pooling, layer, other in (("max", nn.MaxPool2d, nn.AvgPool2d), ("average", nn.AvgPool2d, nn.MaxPool2d)):
        for kind, settings in ((ConvNet, {}), (TwoConv, {}), (VGG16, {"shape": (1, 32, 32)})):
            model = kind(**{**TINY, "width": 1, **settings}, pooling=pooling)
            assert any(isinstance(m, layer) for m in model.modules())
            assert not any(isinstance(m, other) for m in model.modules())
        model = ResNet(**TINY, width=1 / 16, stem="imagenet", pooling=pooling)
        assert isinstance(model.stem[-1], layer)
        assert model.pool.kind == pooling
    usual = ResNet(**TINY, width=1 / 16, stem="imagenet")
    assert isinstance(usual.stem[-1], nn.MaxPool2d)
    assert usual.pool.kind == "average"
    features = torch.rand(2, 3, 4, 5)
    assert torch.equal(GlobalPool("max")(features), features.flatten(2).max(2).values)
    assert torch.allclose(GlobalPool("average")(features), features.flatten(2).mean(2))


def test_the_stems_of_resnet_keep_or_quarter_the_image() -> None:
    images = torch.rand(1, 1, 12, 12)
    assert ResNet(**TINY, width=1 / 16).stem(images).shape == (1, 4, 12, 12)
    assert ResNet(**TINY, width=1 / 16, stem="imagenet").stem(images).shape == (1, 4, 3, 3)


def test_the_shortcut_without_parameters_adds_empty_channels() -> None:
    features = torch.rand(1, 2, 5, 5)
    wide = Widen(2, 5, 2)(features)
    assert torch.equal(wide[:, :2], features[:, :, ::2, ::2])
    assert wide.shape == (1, 5, 3, 3)
    assert (wide[:, 2:] == 0).all()


def test_attention_is_torchs_own() -> None:
    torch.manual_seed(0)
    model = ViT(shape=(1, 8, 8), classes=3, width=12, heads=3, depth=1)
    attention = model.blocks[0].attention
    reference = nn.MultiheadAttention(12, 3, batch_first=True)
    reference.load_state_dict(
        {
            "in_proj_weight": attention.qkv.weight,
            "in_proj_bias": attention.qkv.bias,
            "out_proj.weight": attention.project.weight,
            "out_proj.bias": attention.project.bias,
        }
    )
    tokens = torch.rand(2, 5, 12)
    assert torch.allclose(attention(tokens), reference(tokens, tokens, tokens)[0], atol=1e-6)


def test_patches_are_tokens_after_the_class_token() -> None:
    model = ViT(shape=(3, 32, 32), classes=10).eval()
    assert model.token.shape == (1, 1, 256)
    assert model.positions.shape == (1, 65, 256)  # 8 x 8 patches and the class, as the CVB paper's K = 32 of 65 needs
    without = ViT(shape=(3, 32, 32), classes=10, depth=0).eval()
    assert torch.equal(without(torch.rand(1, 3, 32, 32)), without(torch.rand(1, 3, 32, 32)))  # only blocks mix tokens


def test_dropout_of_vgg_acts_in_training_alone() -> None:
    model = VGG16(shape=(1, 32, 32), classes=3, width=1 / 32, head="imagenet", dropout=0.5)
    images = torch.rand(2, 1, 32, 32)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
