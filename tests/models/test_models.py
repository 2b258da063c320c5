import pytest
import torch
from torch import nn

from dosimeter import models
from dosimeter.errors import ModelError, SettingError

COUNTS = [
    ("cnn", (3, 32, 32), 10, 65_962),  # CVB, Table I
    ("cnn", (1, 32, 32), 10, 65_962 - 2 * 25 * 16),
    # 3 convolutions of 12 channels, then 768 features: DLG's LeNet on 32x32x3
    ("lenet", (3, 32, 32), 10, (3 * 25 * 12 + 12) + 2 * (12 * 25 * 12 + 12) + 768 * 10 + 10),
    ("lenet", (1, 28, 28), 10, (25 * 12 + 12) + 2 * (12 * 25 * 12 + 12) + 588 * 10 + 10),
    # four layers of 1,024 with batch norm's two vectors each
    ("mlp", (3, 32, 32), 10, (3072 * 1024 + 1024) + 3 * (1024 * 1024 + 1024) + 4 * 2048 + 10_250),
]


def make(name: str, shape: tuple[int, int, int], classes: int = 10, seed: int = 0) -> nn.Module:
    return models.build(name, shape=shape, classes=classes, mean=(0.3,), std=(0.2,), seed=seed)


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_parameter_counts(name: str, shape: tuple[int, int, int], classes: int, count: int) -> None:
    model = make(name, shape, classes)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model.eval()(torch.rand(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize("name", models.BY_NAME)
def test_the_seed_decides_the_weights(name: str) -> None:
    one, same, other = (make(name, (1, 32, 32), seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


def test_normalisation_is_part_of_the_model() -> None:
    model = make("cnn", (3, 32, 32)).eval()
    plain = nn.Sequential(model.features, model.classifier)
    images = torch.rand(2, 3, 32, 32)
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
    model = make("lenet", (3, 32, 32))
    mean, std = models.normalisation(model, 3)
    assert (mean == 0).all()
    assert (std == 1).all()
    weights = torch.cat([p.flatten() for p in model.parameters()])
    assert -0.5 <= weights.min() < -0.49
    assert 0.49 < weights.max() <= 0.5


def test_too_small_images_and_unknown_names_are_refused() -> None:
    with pytest.raises(ModelError, match="at least 29x29 pixels, got 28x28"):
        make("cnn", (1, 28, 28))
    make("cnn", (1, 29, 29))
    with pytest.raises(SettingError, match="Did you mean 'lenet'"):
        make("lennet", (1, 28, 28))
