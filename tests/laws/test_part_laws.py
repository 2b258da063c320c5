"""What every prior, likelihood, mask, treatment and sample obeys, over random images and gradients."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, stats
from torch import Tensor, nn

from dosimeter import models
from dosimeter.attacks.search import likelihoods, masks, priors, schedules, treatments
from dosimeter.attacks.search.moves import median_filter
from dosimeter.attacks.search.priors import View
from dosimeter.attacks.search.sampling import Ball
from dosimeter.errors import SettingError
from dosimeter.types import Target
from small import target_of

MEAN, STD = 0.4, 0.3


def normed() -> Target:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)]
    target = target_of(nn.Sequential(models.Normalise((MEAN,), (STD,)), *layers), (2, 6, 6))
    norm = target.model[2]  # type: ignore[index]
    norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
    norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return target


def view(seed: int, target: Target | None = None, n: int = 4) -> View:
    images = torch.rand(n, 2, 2, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.4 - 0.2
    images.requires_grad_()
    owner = torch.tensor([0, 0, 1, 1])[:n]
    given = {"2": (torch.full((2, 3), 0.1, dtype=torch.float64), torch.full((2, 3), 0.7, dtype=torch.float64))}
    return View(
        images=images,
        normalised=(images - MEAN) / STD,
        labels=torch.zeros(n, 2, dtype=torch.long),
        target=target,
        owner=owner,
        statistics=given,
    )


PRIORS = [
    priors.TotalVariation(),
    priors.TotalVariation(power=2),
    priors.TotalVariation(periodic=True),
    priors.TotalVariation(power=2, periodic=True, total=True),
    priors.PixelRange(),
    priors.Gaussian(mean=0.3, std=0.2),
    priors.Laplace(mean=0.3, scale=0.2),
    priors.L2Norm(),
    priors.Prediction(),
    priors.BatchNormStatistics(),
    priors.BatchNormStatistics(of="sent"),
    priors.Group(),
    0.3 * priors.PixelRange() + 2.0 * priors.TotalVariation(),
]


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@settings(max_examples=8)
@given(seed=st.integers(0, 1000))
def test_a_prior_is_a_finite_loss_of_every_candidate_that_others_do_not_change(prior: priors.Prior, seed: int) -> None:
    seen = view(seed, normed())
    loss = prior.loss(seen)
    assert loss.shape == (4,)
    assert (loss >= 0).all()
    (slope,) = torch.autograd.grad(loss.sum(), seen.images)
    assert slope.isfinite().all()
    assert prior.needs_statistics == (prior == priors.BatchNormStatistics(of="sent"))
    alone = prior.loss(
        seen._replace(
            images=seen.images[:2],
            normalised=seen.normalised[:2],
            labels=seen.labels[:2],
            owner=seen.owner[:2],  # type: ignore[index]
        )
    )
    assert torch.allclose(alone, loss[:2])  # rows of one owner stay together, which `Group` needs


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_a_prior_slope_is_that_of_finite_differences(prior: priors.Prior) -> None:
    seen = view(3, normed())
    (slope,) = torch.autograd.grad(prior.loss(seen).sum(), seen.images)
    way = torch.randn(seen.images.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if prior == priors.Group():
        pytest.skip("the mean of the seeds is held fixed on purpose")

    def at(step: float) -> Tensor:
        images = seen.images.detach() + step * way
        return prior.loss(seen._replace(images=images, normalised=(images - MEAN) / STD)).sum()

    numeric = (at(1e-6) - at(-1e-6)).detach() / 2e-6
    assert float((slope * way).sum()) == pytest.approx(float(numeric), rel=1e-4, abs=1e-6)


def test_gaussian_and_laplace_priors_are_scipys_up_to_a_constant() -> None:
    seen = view(0)
    for prior, law in (
        (priors.Gaussian(mean=0.3, std=0.2), stats.norm(0.3, 0.2)),
        (priors.Laplace(mean=0.3, scale=0.2), stats.laplace(0.3, 0.2)),
    ):
        log = -law.logpdf(seen.images.detach().numpy()).reshape(4, -1).sum(1)
        apart = prior.loss(seen).detach().numpy() - log
        assert np.ptp(apart) < 1e-8


def test_batch_norm_statistics_vanish_where_they_are_met() -> None:
    target = normed()
    seen = view(5, target, n=2)
    inside = F.conv2d(seen.normalised[0], target.model[1].weight, target.model[1].bias)  # type: ignore[index, arg-type, union-attr]
    mean, variance = inside.mean((0, 2, 3)), inside.var((0, 2, 3), correction=0)
    target.model[2].running_mean, target.model[2].running_var = mean.detach(), variance.detach()  # type: ignore[index, union-attr, assignment]
    found = priors.BatchNormStatistics().loss(seen)
    assert float(found[0].detach()) < 1e-6
    assert float(found[1].detach()) > 1e-3


def test_the_batch_norm_prior_refuses_models_without_it_or_without_statistics() -> None:
    with pytest.raises(SettingError, match="batch norm"):
        priors.BatchNormStatistics().check(target_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2)))
    target = normed()
    models.use_batch_statistics(target.model)
    with pytest.raises(SettingError, match="no running statistics"):
        priors.BatchNormStatistics().check(target)
    priors.BatchNormStatistics(of="sent").check(target)


def test_total_variation_is_for_images() -> None:
    vectors = target_of(nn.Sequential(nn.Flatten(), nn.Linear(20, 2)), (1, 1, 20))
    with pytest.raises(SettingError, match="vectors of shape"):
        (0.1 * priors.TotalVariation()).check(vectors)
    (0.0 * priors.TotalVariation() + priors.Gaussian()).check(vectors)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_pruned_densities_are_mixtures(noise: str) -> None:
    s, o = (torch.randn(3, 50, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (0, 1))
    law = stats.norm(0, 0.3) if noise == "gaussian" else stats.laplace(0, 0.3)
    mixed = 0.7 * law.pdf((o - s).numpy()) + 0.3 * law.pdf(o.numpy())
    found = likelihoods.Pruned(rate=0.3, scale=0.3, noise=noise).entry_loss(s, o)  # type: ignore[arg-type]
    assert np.ptp(found.numpy() + np.log(mixed).sum(1)) < 1e-8


def test_densities_and_laplace_are_scipys_up_to_a_constant() -> None:
    s, o = (torch.randn(3, 50, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (0, 1))
    found = likelihoods.Laplace(scale=0.3).entry_loss(s, o)
    assert np.ptp(found.numpy() + stats.laplace(0, 0.3).logpdf((o - s).numpy()).sum(1)) < 1e-8
    for wrong in (
        lambda: likelihoods.Gaussian(sigma=0),
        lambda: likelihoods.Laplace(scale=-1),
        lambda: likelihoods.Pruned(rate=1.0, scale=1),
        lambda: likelihoods.Pruned(rate=0.5, scale=1, noise="other"),  # type: ignore[arg-type]
    ):
        with pytest.raises(SettingError):
            wrong()


@given(delta=st.floats(0.01, 20), seed=st.integers(0, 1000))
def test_points_of_a_ball_are_inside_and_reach_its_edge(delta: float, seed: int) -> None:
    away = Ball(delta=delta, samples=50).draw(50, (1, 2, 3, 3), torch.Generator().manual_seed(seed)).flatten(1)
    radius = away.norm(dim=1) / delta
    assert (radius <= 1 + 1e-9).all()
    assert radius.max() > 0.9  # of 18 dimensions
    assert float(away.mean(0).norm()) < 0.6 * delta  # in all directions


def test_radii_of_a_ball_follow_the_law_of_its_volume() -> None:
    away = Ball(delta=1.0, samples=1).draw(4000, (1, 1, 2, 2), torch.Generator().manual_seed(0)).flatten(1)
    assert stats.kstest((away.norm(dim=1) ** 4).numpy(), "uniform").pvalue > 0.01


def test_the_median_filter_is_scipys() -> None:
    images = torch.rand(2, 1, 3, 7, 5, dtype=torch.float64)
    for one, other in zip(images.reshape(-1, 7, 5), median_filter(images).reshape(-1, 7, 5), strict=True):
        assert np.allclose(ndimage.median_filter(one.numpy(), size=3, mode="nearest"), other.numpy())


def test_exponential_weights_and_schedules_fall_by_one_factor() -> None:
    weights = masks.Exponential(rate=0.5).weights(normed(), torch.rand(2, 6, dtype=torch.float64))
    assert torch.allclose(weights[:, 1:] / weights[:, :-1], torch.full((2, 5), math.exp(-0.5), dtype=torch.float64))
    state = schedules.init(3, torch.zeros(()))
    decay = schedules.Exponential(factor=0.9)
    assert decay.update(0, 10, torch.zeros(3), state).scale.tolist() == [1.0] * 3
    assert decay.update(4, 10, torch.zeros(3), state).scale.tolist() == pytest.approx([0.9**4] * 3)


ALL = [treatments.Known(), treatments.Resampled(), treatments.Resampled(draws=3), treatments.Mean(), treatments.Joint()]


@pytest.mark.parametrize("treatment", ALL, ids=repr)
def test_treatments_take_what_they_say(treatment: treatments.Treatment) -> None:
    revealed, drawn, searched = ({"u": torch.full((2, 3), float(i))} for i in (1, 2, 3))
    found = float(treatment.values(revealed, drawn, searched)["u"].mean())
    expected = 1 if treatment.granted else 3 if treatment.searched else 0 if treatment == treatments.Mean() else 2
    assert found == expected
    prior = treatment.loss(searched)
    if treatment.searched:
        assert torch.allclose(torch.as_tensor(prior), torch.full((2,), 1e-3 * 9 / 2))
    else:
        assert prior == 0
