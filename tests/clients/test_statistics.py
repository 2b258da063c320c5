"""What a client sends of its batch norms."""

import copy

import pytest
import torch
from torch import Tensor, nn

from dosimeter import clients, models
from dosimeter.errors import ModelError, SettingError
from small import target_of

SHAPE = (1, 8, 8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return models.ResNet(shape=SHAPE, classes=3, depth=20, width=0.25).double()


def test_they_are_what_torch_would_take_into_its_running_statistics() -> None:
    images = torch.rand(4, *SHAPE, dtype=torch.float64)
    model = network()
    trained = copy.deepcopy(model).train()
    before = {name: (m.running_mean.clone(), m.running_var.clone()) for name, m in norms(trained)}
    trained(images)
    models.use_batch_statistics(model)
    found = clients.statistics(target_of(model, SHAPE), images)
    assert list(found) == list(before)
    for name, layer in norms(trained):
        mean, variance = found[name]
        momentum = layer.momentum or 0
        assert torch.allclose(layer.running_mean, (1 - momentum) * before[name][0] + momentum * mean)
        n = 4 * 64 // (4 if "stages.1" in name else 16 if "stages.2" in name else 1)  # values a channel
        unbiased = variance * n / (n - 1)
        assert torch.allclose(layer.running_var, (1 - momentum) * before[name][1] + momentum * unbiased)


def norms(model: nn.Module) -> list[tuple[str, nn.BatchNorm2d]]:
    return [(name, m) for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]


def test_a_model_told_its_own_statistics_gives_the_output_of_training() -> None:
    images = torch.rand(4, *SHAPE, dtype=torch.float64)
    model = network()
    expected = copy.deepcopy(model).train()(images)
    models.use_batch_statistics(model)
    target = target_of(model, SHAPE)
    told = copy.deepcopy(model)
    models.use_given_statistics(told)
    for name, layer in norms(told):
        layer.running_mean, layer.running_var = clients.statistics(target, images)[name]
    assert torch.allclose(told(images), expected)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.norm(x)).flatten(1))
        return out


def test_a_layer_that_is_used_twice_has_no_one_mean() -> None:
    model = Twice()
    models.use_batch_statistics(model)
    with pytest.raises(ModelError, match="'norm' is used twice"):
        clients.statistics(target_of(model, SHAPE), torch.rand(2, *SHAPE).double())
    assert not model.norm._forward_pre_hooks


def test_clipping_single_images_refuses_a_norm_that_mixes_them() -> None:
    images, labels = torch.rand(2, *SHAPE).double(), torch.tensor([0, 1])
    model = network()
    clip = clients.ClippedGradient(bound=1.0)
    target = target_of(model, SHAPE)
    assert clip(target, target.parameters, images, labels)
    models.use_batch_statistics(target.model)
    with pytest.raises(SettingError, match="mixes the images"):
        clip(target, target.parameters, images, labels)
