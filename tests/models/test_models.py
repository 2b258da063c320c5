import pytest
import torch
from torch import nn

from dosimeter import models
from dosimeter.errors import ModelError, SettingError

SMALL, LARGE, MNIST = (3, 32, 32), (3, 224, 224), (1, 28, 28)

COUNTS = [
    ("cnn", SMALL, 10, {}, 65_962),  # CVB, Table II
    ("cnn", (1, 32, 32), 10, {}, 65_962 - 2 * 25 * 16),
    # 3 convolutions of 12 channels, then 768 features: DLG's LeNet on 32x32x3
    ("lenet", SMALL, 10, {}, (3 * 25 * 12 + 12) + 2 * (12 * 25 * 12 + 12) + 768 * 10 + 10),
    ("lenet", MNIST, 10, {}, (25 * 12 + 12) + 2 * (12 * 25 * 12 + 12) + 588 * 10 + 10),
    ("lenet-bn", SMALL, 10, {}, 15_826 + 2 * 12),
    ("lenet", SMALL, 10, {"batch_norm": "all"}, 15_826 + 3 * 2 * 12),
    ("lenet", SMALL, 10, {"batch_norm": "all", "affine": False}, 15_826),
    # four layers of 1,024 with batch norm's two vectors each
    ("mlp", SMALL, 10, {}, (3072 * 1024 + 1024) + 3 * (1024 * 1024 + 1024) + 4 * 2048 + 10_250),
    ("mlp-no-bias", SMALL, 10, {}, 3072 * 1024 + 3 * 1024 * 1024 + 4 * 2048 + 10_240),
    ("mlp-bayes", SMALL, 10, {}, (3072 * 500 + 500) + 4 * (500 * 500 + 500) + 5_010),
    ("mlp-2", (1, 1, 20), 10, {}, (20 * 100 + 100) + 1_010),
    # 7x7 and 8x8 pixels of 64 channels before the layer of 100
    ("cnn-bayes", MNIST, 10, {}, (9 * 32 + 32) + (9 * 32 * 64 + 64) + (49 * 64 * 100 + 100) + 1_010),
    ("cnn-bayes", SMALL, 10, {}, (27 * 32 + 32) + (9 * 32 * 64 + 64) + (64 * 64 * 100 + 100) + 1_010),
    # Bayes, Table 3, layer by layer
    ("convbig", SMALL, 10, {}, (27 * 32 + 32) + (32 * 64 + 64) + (5184 * 2000 + 2000) + (2000 * 1000 + 1000) + 10_010),
    # IG, Fig. 11 with D = 64: 36 D features; Bayes, Table 4 has a ninth convolution of 4 D
    ("convnet", SMALL, 10, {}, 2_904_970),
    ("convnet", SMALL, 10, {"depth": 9}, 2_904_970 + 9 * 256 * 256 + 256 + 2 * 256),
    ("convnet", SMALL, 10, {"depth": 7}, 2_904_970 - 9 * 256 * 256 - 256 - 2 * 256),
    ("biglinear", MNIST, 10, {}, 387_840 + (12_544 * 12_544 + 12_544) + 125_450),
    ("resnet18", SMALL, 10, {}, 11_173_962),
    ("resnet18-imagenet", SMALL, 10, {}, 11_181_642),
    ("resnet18-gn", SMALL, 10, {}, 11_181_642),  # group norm has as many as batch norm
    ("resnet18-imagenet", LARGE, 1000, {}, 11_689_512),  # torchvision's, as are the following
    ("resnet34", LARGE, 1000, {"stem": "imagenet"}, 21_797_672),
    ("resnet50", LARGE, 1000, {"stem": "imagenet"}, 25_557_032),
    ("resnet152", LARGE, 1000, {}, 60_192_808),
    ("vgg16", LARGE, 1000, {"head": "imagenet"}, 138_357_544),
    ("vgg16-bn", LARGE, 1000, {"head": "imagenet"}, 138_365_992),
    ("vgg16", SMALL, 10, {}, 14_714_688 + 5_130),
    ("vgg16-bn", SMALL, 10, {}, 14_714_688 + 5_130 + 2 * 4_224),
    # He et al., Table 6: 0.27M and 0.46M, with shortcuts that have no parameters
    ("resnet20", SMALL, 10, {"shortcut": "padding"}, 269_722),
    ("resnet32", SMALL, 10, {"shortcut": "padding"}, 464_154),
    # two projections more: 16 x 32 and 32 x 64 weights with batch norm
    ("resnet20", SMALL, 10, {}, 269_722 + (16 * 32 + 64) + (32 * 64 + 128)),
    ("resnet32", SMALL, 10, {}, 464_154 + (16 * 32 + 64) + (32 * 64 + 128)),
    ("resnet20-4", SMALL, 10, {}, 4_327_754),
    ("resnet32-10", SMALL, 100, {}, 46_371_370 + 90 * 641),
    ("vit", SMALL, 10, {}, 4 * 789_760 + 65 * 256 + 256 + (48 * 256 + 256) + 512 + 2_570),
    ("vit-released", SMALL, 10, {}, 4 * 394_240 + 65 * 256 + 256 + 48 * 256 + 512 + 2_560),
    ("vit-ti", LARGE, 1000, {"patch": 16}, 5_717_416),  # DeiT, Table 1: 5M and 22M
    ("vit-s", LARGE, 1000, {"patch": 16}, 22_050_664),
]


def make(name: str, shape: tuple[int, int, int], classes: int = 10, seed: int = 0, **settings: object) -> nn.Module:
    return models.build(name, shape=shape, classes=classes, mean=(0.3,), std=(0.2,), seed=seed, settings=settings)


@pytest.mark.parametrize(("name", "shape", "classes", "settings", "count"), COUNTS)
def test_parameter_counts(
    name: str, shape: tuple[int, int, int], classes: int, settings: dict[str, object], count: int
) -> None:
    assert models.count_parameters(name, shape=shape, classes=classes, settings=settings) == count


def test_every_name_is_counted_above_and_says_where_it_comes_from() -> None:
    assert {row[0] for row in COUNTS} == set(models.BY_NAME)
    for entry in models.BY_NAME.values():
        assert entry.paper
        assert entry.about


def test_counting_makes_the_same_model_as_building() -> None:
    built = make("resnet20", SMALL)
    assert models.count_parameters("resnet20", shape=SMALL, classes=10) == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize(
    ("name", "settings", "side", "locked", "share"),
    [
        ("lenet", {"batch_norm": "first", "affine": False}, 32, 12, 22.43),
        ("resnet20", {}, 32, 16, 10.49),
        ("resnet32", {}, 32, 16, 6.46),
        ("resnet18-imagenet", {}, 224, 64, 1.15),
        ("resnet34", {"stem": "imagenet"}, 224, 64, 0.61),
        ("vgg16-bn", {"head": "imagenet"}, 224, 64, 0.097),
    ],
)
def test_sizes_give_the_shares_of_fedkl_table_3(
    name: str, settings: dict[str, object], side: int, locked: int, share: float
) -> None:
    with torch.device("meta"):
        model = models.BY_NAME[name].make(shape=(3, side, side), classes=100, **settings)
    total = sum(tensor.numel() for key, tensor in model.state_dict().items() if not key.startswith("normalise."))
    if name != "lenet":
        total -= 2 * locked  # the lock takes the place of the first scale and shift
    lock = 2 * (1024 * locked + locked)
    digits = len(str(share).partition(".")[2])
    assert round(100 * lock / (lock + total), digits) == share


def test_convbig_has_the_features_of_its_table() -> None:
    with torch.device("meta"):
        model = models.BY_NAME["convbig"].make(shape=SMALL, classes=10)
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(5184, 2000), (2000, 1000), (1000, 10)]


def test_normalisation_is_part_of_the_model() -> None:
    model = make("cnn", SMALL).eval()
    plain = nn.Sequential(model.features, model.classifier)
    images = torch.rand(2, *SMALL)
    assert torch.allclose(model(images), plain((images - 0.3) / 0.2), atol=1e-5)
    mean, std = models.normalisation(model, 3)
    assert mean.shape == (3, 1, 1)
    assert torch.allclose(mean, torch.tensor(0.3))
    assert torch.allclose(std, torch.tensor(0.2))


def test_a_model_without_normalisation_has_mean_0_and_deviation_1() -> None:
    mean, std = models.normalisation(nn.Linear(3, 3), 2)
    assert (mean == 0).all()
    assert (std == 1).all()


def test_dlg_feeds_images_as_they_are_with_weights_in_a_half() -> None:
    model = make("lenet", SMALL)
    mean, std = models.normalisation(model, 3)
    assert (mean == 0).all()
    assert (std == 1).all()
    weights = torch.cat([p.flatten() for p in model.parameters()])
    assert -0.5 <= weights.min() < -0.49
    assert 0.49 < weights.max() <= 0.5


def test_fedkl_starts_lenet_as_torch_does() -> None:
    model = make("lenet-bn", SMALL)
    assert isinstance(model.features[1], nn.BatchNorm2d)
    assert (model.features[1].weight == 1).all()
    assert model.classifier.weight.abs().max() <= 768**-0.5


def test_the_bayes_paper_starts_its_cnn_as_flax_does() -> None:
    model = make("cnn-bayes", MNIST)
    for layer, fan_in in zip((model.features[0], model.features[3], *model.dense[:1]), (9, 288, 3136), strict=True):
        scaled = layer.weight.detach() * fan_in**0.5
        assert (layer.bias == 0).all()
        assert scaled.abs().max() <= 2 / 0.8796
        assert abs(float(scaled.std()) - 1) < 5 / scaled.numel() ** 0.5  # 5 standard errors of a normal's deviation
    plain = make("cnn-bayes", MNIST, start="torch")
    assert plain.dense[0].weight.abs().max() <= 3136**-0.5
    bare = make("cnn-bayes", MNIST, bias=False)
    assert bare.classifier.bias is None


@pytest.mark.parametrize(("name", "side"), [(n, e.least) for n, e in models.BY_NAME.items() if e.least > 4])
def test_the_least_size_is_the_least(name: str, side: int) -> None:
    with torch.device("meta"):
        models.BY_NAME[name].make(shape=(1, side, side), classes=10)
        with pytest.raises(ModelError, match=f"{side}x{side}.* got {side - 1}x{side - 1}.*resize"):
            models.BY_NAME[name].make(shape=(1, side - 1, side - 1), classes=10)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ModelError, match="at least 29x29 pixels, got 28x28"):
        make("cnn", MNIST)
    with pytest.raises(ModelError, match="at least 4x4 pixels, got 3x3"):
        make("cnn-bayes", (1, 3, 3))
    with pytest.raises(ModelError, match=r"multiples of 4, got 30x30; resize them, e.g. --size 28"):
        make("vit", (1, 30, 30))
    with pytest.raises(SettingError, match="Did you mean 'lenet'"):
        make("lennet", MNIST)
    with pytest.raises(SettingError, match=r"Unknown setting of the model 'mlp' 'widht'.*Did you mean 'width'"):
        make("mlp", MNIST, widht=3)
    with pytest.raises(SettingError, match="Unknown setting of the model 'mlp' 'shape'"):
        models.count_parameters("mlp", shape=MNIST, classes=3, settings={"shape": SMALL})
    with pytest.raises(SettingError, match=r"depth of 18, 20, .*; got 19"):
        make("resnet18", SMALL, depth=19)
    with pytest.raises(SettingError, match="7 or more convolutions"):
        make("convnet", SMALL, depth=6)
    with pytest.raises(SettingError, match="multiple of its heads, got width 10 and 3 heads"):
        make("vit", SMALL, width=10, heads=3)


@pytest.mark.parametrize(
    ("name", "setting", "near"),
    [
        ("resnet20", {"activation": "rellu"}, "relu"),
        ("resnet20", {"pooling": "maximum"}, "max"),
        ("resnet20", {"padding": "circle"}, "circular"),
        ("resnet20", {"norm": "batchnorm"}, "batch"),
        ("resnet20", {"stem": "cifar10"}, "cifar"),
        ("resnet20", {"shortcut": "pading"}, "padding"),
        ("vgg16", {"head": "imagnet"}, "imagenet"),
        ("lenet", {"batch_norm": "frist"}, "first"),
        ("cnn-bayes", {"start": "lecunn"}, "lecun"),
    ],
)
def test_unknown_parts_are_refused_with_the_nearest_name(name: str, setting: dict[str, object], near: str) -> None:
    with torch.device("meta"), pytest.raises(SettingError, match=f"Did you mean '{near}'"):
        models.BY_NAME[name].make(shape=SMALL, classes=10, **setting)
