"""What holds for every model that goes by name, tried on narrow ones."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dosimeter import models
from small import NARROW

SHAPE = (3, 32, 32)

every_model = pytest.mark.parametrize("name", models.BY_NAME)


def make(name: str, seed: int = 0) -> nn.Module:
    settings = NARROW.get(name)
    return models.build(name, shape=SHAPE, classes=5, mean=(0.4,), std=(0.25,), seed=seed, settings=settings)


def step(model: nn.Module, parameters: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(functional_call(model, parameters, (images,)), labels)


@every_model
def test_the_seed_decides_the_weights_and_nothing_else_does(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (make(name, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


@every_model
def test_forward_in_both_modes(name: str) -> None:
    model = make(name)
    images = torch.rand(2, *SHAPE)
    kept = images.clone()
    for mode in (True, False):
        logits = model.train(mode)(images).detach()
        assert logits.shape == (2, 5)
        assert logits.isfinite().all()
    assert torch.equal(images, kept)
    assert torch.equal(model(images), logits)  # nothing is drawn
    assert torch.allclose(model(images[:1]), logits[:1], rtol=1e-3, atol=1e-4 * float(logits.abs().max()))


@every_model
def test_normalisation_reads_back(name: str) -> None:
    mean, std = models.normalisation(make(name), 3)
    normalised = models.BY_NAME[name].normalised
    assert torch.allclose(mean, torch.full((3, 1, 1), 0.4 if normalised else 0.0))
    assert torch.allclose(std, torch.full((3, 1, 1), 0.25 if normalised else 1.0))


@every_model
def test_no_layer_works_in_place(name: str) -> None:
    assert not any(getattr(layer, "inplace", False) for layer in make(name).modules())


@every_model
def test_cosine_matching_has_a_slope_and_runs_for_many_at_once(name: str) -> None:
    model = make(name).double().eval()
    parameters = {key: p.detach() for key, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 1, *SHAPE, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.tensor([[0], [3], [3]])
    together = vmap(grad(step, argnums=1), in_dims=(None, None, 0, 0))(model, parameters, images, labels)
    alone = [grad(step, argnums=1)(model, parameters, x, y) for x, y in zip(images, labels, strict=True)]
    for key, value in together.items():
        expected = torch.stack([a[key] for a in alone]).detach()
        assert torch.allclose(value, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))
    rows = torch.cat([value.flatten(1) for value in together.values()], 1)
    match = 1 - F.cosine_similarity(rows[1], rows[2], dim=0)
    (slope,) = torch.autograd.grad(match, images)
    assert slope.isfinite().all()
    assert (slope[0] == 0).all()
    assert slope[1].abs().max() > 0
    assert slope[2].abs().max() > 0
