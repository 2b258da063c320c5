"""The Gaussian task: its draws against its prior, its prior against scipy, and a whole attack on it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dosimeter import clients, models, trees
from dosimeter.attacks import Search, Stop
from dosimeter.attacks.search import likelihoods, optimisers
from dosimeter.attacks.search.priors import Prior, View
from dosimeter.data import GaussianTask
from dosimeter.engine import Matcher
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Target
from small import observe, target_of

TASK = GaussianTask()
MANY = 20_000
RARE = 1e-6
"""Probability that a right program fails one of the checks of draws below; the seeds are fixed besides."""


def points(count: int, *, seed: int = 0, split: str = "train") -> np.ndarray:
    """(count, 20) float64"""
    return TASK.draw(count, seed=seed, split=split).images.reshape(count, 20).double().numpy()


def test_victims_have_the_form_of_victims():
    victims = TASK.draw(3, batch=2)
    assert (victims.images.shape, victims.images.dtype) == ((3, 2, 1, 1, 20), torch.float32)
    assert (victims.shape, victims.batch) == (TASK.shape, 2) == ((1, 1, 20), 2)
    assert victims.ids == ("train:0+1", "train:2+3", "train:4+5")
    assert victims.indices.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert torch.equal(victims.take(slice(1, 2)).images, victims.images[1:2])


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 9), batch=st.integers(1, 9), more=st.integers(0, 9), seed=st.integers(0, 3))
def test_a_place_is_the_same_point_in_every_draw(n, batch, more, seed):
    some, many = TASK.draw(n, batch=batch, seed=seed), TASK.draw(n * batch + more, seed=seed)
    assert torch.equal(some.images.flatten(0, 1), many.images.flatten(0, 1)[: n * batch])
    assert torch.equal(some.labels.flatten(), many.labels.flatten()[: n * batch])
    assert len(set(some.ids)) == n


def test_seeds_splits_and_tasks_are_apart():
    draws = [points(50, seed=seed, split=split) for seed in (0, 1) for split in ("train", "test")]
    assert len({draw.tobytes() for draw in draws}) == 4
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert abs(stats.pearsonr(one.ravel(), other.ravel()).statistic) < 0.2  # 6 standard errors
    other = GaussianTask(seed=1)
    assert np.array_equal(other.draw(50).images, TASK.draw(50).images)  # the task has its labels, the points their seed
    assert not torch.equal(other.draw(50).labels, TASK.draw(50).labels)
    assert GaussianTask() == TASK
    assert hash(GaussianTask()) == hash(TASK)


def test_moments_of_the_draws_are_those_of_the_prior():
    """n |mean|^2 ~ chi2(20); every entry of the covariance is normal about I, with variance 1 / n, twice that on the
    diagonal."""
    x = points(MANY)
    assert stats.chi2.ppf(RARE, 20) < MANY * np.square(x.mean(0)).sum() < stats.chi2.isf(RARE, 20)
    error = (x.T @ x / MANY - np.eye(20)) * np.sqrt(MANY / (1 + np.eye(20)))
    assert np.abs(error[np.triu_indices(20)]).max() < stats.norm.isf(RARE / 2 / 210)  # 210 entries at once


def test_the_law_of_the_draws_is_the_prior():
    x = points(MANY)
    assert stats.kstest(np.square(x).sum(1), stats.chi2(20).cdf).pvalue > RARE
    assert stats.kstest(x.ravel(), stats.norm(TASK.mean, TASK.std).cdf).pvalue > RARE
    signs = x[:, 0::2] * x[:, 1::2] > 0  # independent coordinates agree in sign half of the time
    assert stats.binomtest(int(signs.sum()), signs.size).pvalue > RARE


@settings(max_examples=50, deadline=None)
@given(dimensions=st.integers(1, 30), scale=st.floats(0, 5), seed=st.integers(0, 99))
def test_the_density_is_scipy_s(dimensions, scale, seed):
    task = GaussianTask(dimensions=dimensions)
    x = scale * task.draw(3, batch=2, seed=seed).images.double()
    exact = stats.multivariate_normal(np.zeros(dimensions), np.eye(dimensions)).logpdf(x.reshape(6, dimensions).numpy())
    np.testing.assert_allclose(task.log_density(x).flatten(), np.atleast_1d(exact), rtol=1e-12)


def test_the_mean_of_the_log_density_is_minus_the_entropy():
    """E log p(x) = -d / 2 (1 + log 2 pi), with the variance d / 2 of half a chi2."""
    values = TASK.log_density(TASK.draw(MANY).images.double())
    exact = -stats.multivariate_normal(np.zeros(20), np.eye(20)).entropy()
    assert abs(float(values.mean()) - exact) < stats.norm.isf(RARE / 2) * np.sqrt(10 / MANY)


def test_the_slope_of_the_density_is_minus_the_point():
    x = TASK.draw(4).images.double().requires_grad_()
    (slope,) = torch.autograd.grad(TASK.log_density(x).sum(), x)
    assert torch.allclose(slope, -x)


@settings(max_examples=30, deadline=None)
@given(classes=st.integers(2, 12), dimensions=st.integers(1, 25), seed=st.integers(0, 99))
def test_labels_are_the_largest_of_w_x(classes, dimensions, seed):
    task = GaussianTask(classes=classes, dimensions=dimensions, seed=seed)
    victims = task.draw(6, batch=2, seed=seed)
    for image, label in zip(victims.images.flatten(0, 1), victims.labels.flatten().tolist(), strict=True):
        assert int(np.argmax(task.weights.numpy() @ image.flatten().double().numpy())) == label
    assert torch.equal(task.label(3.5 * victims.images), victims.labels)  # the size of x does not matter
    assert task.weights.shape == (classes, dimensions)


def test_what_cannot_be_is_refused():
    with pytest.raises(SettingError, match="at least 1 dimension and 2 classes, got 0 and 10"):
        GaussianTask(dimensions=0)
    with pytest.raises(SettingError, match="got 20 and 1"):
        GaussianTask(classes=1)
    with pytest.raises(SettingError, match="at least 1 batch of at least 1 point, got 0 of 1"):
        TASK.draw(0)
    for use in (TASK.label, TASK.log_density):
        with pytest.raises(SettingError, match=r"must be \(\.\.\., 1, 1, 20\), got \(4, 20\)"):
            use(torch.zeros(4, 20))


def perceptron() -> torch.nn.Module:
    return models.build("mlp-2", shape=TASK.shape, classes=TASK.classes, mean=(TASK.mean,), std=(TASK.std,), seed=0)


def test_the_papers_perceptron_learns_the_task():
    """Far above the share of the most frequent class, which is what guessing reaches."""
    model = perceptron()
    (train,), (labels,) = TASK.draw(1, batch=4000)[:2]
    held_out = TASK.draw(2000, split="test")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        F.cross_entropy(model(train), labels).backward()
        optimiser.step()
    right = model(held_out.images.flatten(0, 1)).argmax(1) == held_out.labels.flatten()
    guess = held_out.labels.flatten().bincount().max() / 2000
    assert right.float().mean() > 0.8 > 2 * guess


def seen(target: Target, count: int, noise: float) -> tuple[torch.Tensor, Observation]:
    """Points, and what a server sees of their gradients under Laplacian noise of this scale."""
    victims = TASK.draw(count)
    clean = observe(target, victims.images, victims.labels)
    rng = np.random.default_rng(0)
    noisy = {
        name: g + torch.from_numpy(rng.laplace(scale=noise, size=g.shape)).to(g) if noise else g
        for name, g in clean.gradient.items()
    }
    return victims.images.to(target.mean), clean._replace(gradient=noisy, ids=victims.ids)


def test_a_clients_gradient_matches_itself_in_the_engine():
    target = target_of(perceptron(), TASK.shape)
    victims = TASK.draw(3, batch=2)
    update = trees.stack(
        [clients.gradient(target, x.double(), y) for x, y in zip(victims.images, victims.labels, strict=True)]
    )
    matcher = Matcher(target, update)
    products = matcher(victims.images.double(), victims.labels, torch.arange(3))
    assert torch.allclose(products.cross, products.simulated)
    assert torch.allclose(products.difference, torch.zeros_like(products.difference), atol=1e-9)
    assert matcher.way == "chain"


class Exact(Prior):
    """-log p(x) of the task."""

    def loss(self, view: View) -> torch.Tensor:
        return -TASK.log_density(view.images).sum(1)


def distances(target: Target, count: int, noise: float, prior: Prior, likelihood: object) -> torch.Tensor:
    """|x' - x| of an attack on so many points."""
    x, update = seen(target, count, noise)
    attack = Search(
        likelihood=likelihood, prior=prior, optimiser=optimisers.Adam(lr=0.1), stop=Stop(steps=400), moves=()
    )
    return (attack(target, [update], seed=0).images - x).flatten(1).norm(dim=1)


def test_an_attack_reads_points():
    target = target_of(perceptron(), TASK.shape)
    assert distances(target, 8, 0.0, Prior(), likelihoods.SquaredL2()).max() < 1e-3


def test_under_the_papers_noise_its_own_density_comes_nearer():
    """-log p(g | x) - log p(x) of the Laplacian, times 0.1, and of a Gaussian of its variance, times 0.04.

    The prior is worth less than a standard error of 128 points here, so nothing is said of it.
    """
    target = target_of(perceptron(), TASK.shape)
    laplace = distances(target, 32, 0.1, 0.1 * Exact(), likelihoods.L1())
    gauss = distances(target, 32, 0.1, 0.04 * Exact(), likelihoods.SquaredL2())
    assert laplace.mean() < gauss.mean() < 0.5 * np.sqrt(20)  # without the update: the distance of a point from 0
