"""Slopes of many features at once are those of each by itself."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter.networks import find_fields, slope_norms

SHAPE = (2, 9, 8)
LAYERS = st.sampled_from(["conv", "strided", "wide", "relu", "sigmoid", "max", "average", "norm"])


def network(kinds: list[str], last: bool) -> nn.Module:
    """Layers in a row, each of which keeps three channels, then perhaps one that mixes all pixels."""
    torch.manual_seed(len(kinds))
    made = {
        "conv": lambda: nn.Conv2d(3, 3, 3, padding=1),
        "strided": lambda: nn.Conv2d(3, 3, 3, stride=2, padding=1),
        "wide": lambda: nn.Conv2d(3, 3, 3, padding=2, dilation=2),
        "relu": nn.ReLU,
        "sigmoid": nn.Sigmoid,
        "max": lambda: nn.MaxPool2d(2, stride=1),
        "average": lambda: nn.AvgPool2d(2, stride=1),
        "norm": lambda: nn.BatchNorm2d(3),
    }
    layers = [nn.Conv2d(2, 3, 1), *(made[kind]() for kind in kinds), nn.Flatten()]
    mixed = [nn.LazyLinear(5)] if last else []
    model = nn.Sequential(*layers, *mixed).eval()
    model(torch.zeros(1, *SHAPE))
    return model.double()


@settings(max_examples=25, deadline=None)
@given(st.lists(LAYERS, max_size=4), st.booleans())
def test_slopes_are_those_of_the_whole_jacobian(kinds: list[str], last: bool) -> None:
    model = network(kinds, last)
    images = torch.rand(3, *SHAPE, dtype=torch.float64)
    fields = find_fields(model, SHAPE, images)
    norms, features = slope_norms(model, images, fields)
    for image, norm, feature in zip(images, norms, features, strict=True):
        jacobian = torch.func.jacrev(lambda x: model(x[None])[0])(image)
        assert torch.allclose(norm, jacobian.flatten(1).norm(dim=1), rtol=1e-9, atol=1e-12)
        assert torch.equal(feature, model(image[None])[0]) or torch.allclose(feature, model(image[None])[0])
        depends = (jacobian != 0).any(1).flatten(1)
        assert not (depends & ~fields.seen).any()


@settings(max_examples=25, deadline=None)
@given(st.lists(LAYERS, max_size=3))
def test_groups_have_every_feature_once_and_no_pixel_twice(kinds: list[str]) -> None:
    fields = find_fields(network(kinds, last=False), SHAPE, torch.zeros(1, dtype=torch.float64))
    assert torch.equal(torch.cat(fields.groups).sort().values, torch.arange(len(fields.seen)))
    for group in fields.groups:
        assert int(fields.seen[group].sum(0).max()) <= 1


def test_a_convolution_of_one_channel_takes_as_many_passes_as_its_kernel_has_places() -> None:
    model = nn.Sequential(nn.Conv2d(2, 1, 3, padding=1), nn.Flatten()).double()
    assert len(find_fields(model, SHAPE, torch.zeros(1, dtype=torch.float64)).groups) == 9
    mixing = network([], last=True)
    assert len(find_fields(mixing, SHAPE, torch.zeros(1, dtype=torch.float64)).groups) == 5


class Shy(nn.Module):
    """Gives a number where there is none, so that trying pixels does not show what it sees."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nan_to_num(x)


def test_a_model_that_hides_what_it_sees_is_differentiated_feature_by_feature() -> None:
    model = nn.Sequential(Shy(), nn.Conv2d(2, 1, 3, padding=1), nn.Flatten()).double()
    images = torch.rand(2, *SHAPE, dtype=torch.float64)
    fields = find_fields(model, SHAPE, images)
    assert len(fields.groups) == len(fields.seen) == 72
    jacobian = torch.func.jacrev(lambda x: model(x[None])[0])(images[1])
    assert torch.allclose(slope_norms(model, images, fields)[0][1], jacobian.flatten(1).norm(dim=1))
