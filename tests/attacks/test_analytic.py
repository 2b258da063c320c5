"""Images that are solved for rather than searched."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import clients, metrics, models
from dosimeter.attacks import Analytic, labels, presets
from dosimeter.attacks.solve.first_layer import FirstLayer, find_first_layer
from dosimeter.attacks.solve.ratio import direction
from dosimeter.attacks.stages import blank
from dosimeter.auditing import Audit, Resources, audit, estimate
from dosimeter.data import pick
from dosimeter.errors import SettingError
from dosimeter.task import load_task
from dosimeter.types import Observation, Reconstruction, Step, Target, Victims
from small import observe, target_of

SHAPE = (3, 4, 4)


def perceptron(
    *,
    seed: int = 0,
    bias: bool = True,
    normalise: bool = True,
    activation: type[nn.Module] = nn.ReLU,
    width: int = 24,
    dtype: torch.dtype = torch.float64,
) -> Target:
    torch.manual_seed(seed)
    first = models.Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)) if normalise else nn.Identity()
    inside = [nn.Linear(48, width, bias=bias), activation(), nn.Linear(width, width, bias=bias), activation()]
    return target_of(nn.Sequential(first, nn.Flatten(), *inside, nn.Linear(width, 5, bias=bias)), SHAPE, dtype)


def private(victims: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    images = torch.rand(victims, 1, *SHAPE, generator=draws, dtype=dtype)
    return images, torch.randint(5, (victims, 1), generator=draws)


def solve(target: Target, seen: Observation, attack: Analytic | None = None) -> Reconstruction:
    return (attack or Analytic(labels=labels.Known()))(target, [seen], seed=0)


def first_layer(target: Target) -> FirstLayer:
    found = find_first_layer(target)
    assert found is not None
    return found


def noisy(seen: Observation, sigma: float) -> Observation:
    draws = torch.Generator().manual_seed(5)
    return seen._replace(
        gradient={k: g + sigma * torch.randn(g.shape, generator=draws, dtype=g.dtype) for k, g in seen.gradient.items()}
    )


def psnr(found: Reconstruction, images: Tensor) -> Tensor:
    return metrics.psnr(found.images.flatten(0, 1), images.flatten(0, 1))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    bias=st.booleans(),
    normalise=st.booleans(),
    activation=st.sampled_from([nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.SiLU]),
    width=st.integers(8, 40),
)
def test_a_perceptron_gives_its_image_away(
    seed: int, bias: bool, normalise: bool, activation: type[nn.Module], width: int
) -> None:
    target = perceptron(seed=seed, bias=bias, normalise=normalise, activation=activation, width=width)
    images, classes = private(2, seed)
    seen = observe(target, images, classes)
    found = solve(target, seen)
    for v, verdict in enumerate(found.outcomes):
        alive = bool(seen.gradient[first_layer(target).weight][v].any())
        assert (verdict == "recovered") == alive
        assert not alive or float(psnr(found, images)[v]) > 150


@pytest.mark.parametrize("bias", [True, False])
def test_single_precision_loses_few_digits(bias: bool) -> None:
    target = perceptron(bias=bias, dtype=torch.float32)
    images, classes = private(8, 1, torch.float32)
    found = solve(target, observe(target, images, classes))
    assert set(found.outcomes) == {"recovered"}
    assert found.images.dtype == torch.float32
    assert float(psnr(found, images).min()) > 100
    assert float(found.match.max()) < 1e-5


@pytest.mark.parametrize("bias", [True, False])
def test_noise_stops_the_exact_solution_and_the_verdict_says_so(bias: bool) -> None:
    """Noise of 1e-2 takes the certificate away; it need not make the image unreadable."""
    target = perceptron(bias=bias)
    images, classes = private(6, 2)
    clear = observe(target, images, classes)
    found = solve(target, noisy(clear, 1e-2))
    assert set(found.outcomes) == {"not determined"}
    assert float(found.match.min()) > 1e-2
    assert float(psnr(found, images).max()) < 60
    assert float(psnr(solve(target, clear), images).min()) > 150
    assert found.images.isfinite().all()


@pytest.mark.parametrize(("strength", "least", "most"), [(0.3, 0.0, 0.3), (4.0, 0.9, 1.0)])
def test_noise_drowns_a_direction_below_the_threshold_of_random_matrices(
    strength: float, least: float, most: float
) -> None:
    """A singular value of s sigma (m n)^(1/4) is seen for s > 1 only (Benaych-Georges and Nadakuditi 2012)."""
    draws = torch.Generator().manual_seed(0)
    m, n, sigma = 300, 500, 1e-2
    left, right = (torch.randn(k, generator=draws, dtype=torch.float64) for k in (m, n))
    right = right / right.norm()
    signal = strength * sigma * (m * n) ** 0.25 * (left / left.norm()).outer(right)
    seen = signal + sigma * torch.randn(m, n, generator=draws, dtype=torch.float64)
    assert least <= abs(float(direction(seen) @ right)) <= most


def test_an_update_that_the_ratio_does_not_explain_is_solved_by_rank() -> None:
    """A bias whose gradient was withheld or scrambled does not hide the image."""
    target = perceptron()
    images, classes = private(3, 13)
    seen = observe(target, images, classes)
    for scrambled in (torch.zeros_like(seen.gradient["2.bias"]), seen.gradient["2.bias"].flip(1)):
        found = solve(target, seen._replace(gradient={**seen.gradient, "2.bias": scrambled}))
        assert set(found.outcomes) == {"not determined"}
        assert float(psnr(found, images).min()) > 20


@settings(max_examples=20, deadline=None)
@given(sigma=st.floats(-14, -1).map(lambda power: 10**power), bias=st.booleans())
def test_recovered_means_that_the_update_is_reproduced(sigma: float, bias: bool) -> None:
    target = perceptron(bias=bias)
    seen = noisy(observe(target, *private(2, 3)), sigma)
    found = solve(target, seen)
    for v, verdict in enumerate(found.outcomes):
        assert seen.labels is not None
        simulated = clients.gradient(target, found.images[v], seen.labels[v])
        apart = sum(float((simulated[k] - g[v]).square().sum()) for k, g in seen.gradient.items())
        size = sum(float(g[v].square().sum()) for g in seen.gradient.values())
        relative = (apart / size) ** 0.5
        assert float(found.match[v]) >= 0.99 * relative - 1e-15
        assert (verdict == "recovered") == (float(found.match[v]) <= 1000 * torch.finfo(torch.float64).eps)


def test_an_update_of_another_image_is_not_taken_for_recovered() -> None:
    """A first layer's gradient that solves smoothly, beside tensors that another image caused."""
    target = perceptron()
    images, classes = private(2, 4)
    seen = observe(target, images, classes)
    first = first_layer(target)
    mixed = {k: g if k in (first.weight, first.bias) else g.flip(0) for k, g in seen.gradient.items()}
    assert set(solve(target, seen._replace(gradient=mixed)).outcomes) == {"not determined"}


@pytest.mark.parametrize("bias", [True, False])
def test_one_living_neuron_is_enough_and_a_dead_layer_is_not_determined(bias: bool) -> None:
    target = perceptron(bias=bias)
    layer = target.model.get_submodule("2")
    assert isinstance(layer, nn.Linear)
    images, classes = private(1, 6)
    inputs = target.model.get_submodule("0")(images[0]).flatten()
    with torch.no_grad():
        layer.weight[1:] = -inputs  # z < 0 whatever the bias of at most 1
        layer.weight[0] = inputs
    seen = observe(target, images, classes)
    assert int(seen.gradient["2.weight"][0].any(1).sum()) == 1
    found = solve(target, seen)
    assert found.outcomes == ("recovered",)
    assert float(psnr(found, images)) > 150
    with torch.no_grad():
        layer.weight[:] = -inputs
    dead = solve(target, observe(target, images, classes))
    assert dead.outcomes == ("not determined",)
    assert torch.equal(dead.images[0, 0], blank(target))


def test_labels_are_read_off_the_update_where_they_are_not_granted() -> None:
    target = perceptron()
    images, classes = private(4, 8)
    attack = presets.analytic()
    assert attack.needs().labels is False
    found = solve(target, observe(target, images, classes, granted=False), attack)
    assert set(found.outcomes) == {"recovered"}
    assert found.labels is not None
    assert torch.equal(found.labels, classes)
    assert presets.analytic(labels="known").needs().labels is True


def test_a_loss_of_ones_own_needs_its_targets() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Sigmoid(), nn.Linear(8, 1)).double()
    target = Target(model, F.mse_loss, SHAPE, torch.zeros(3, 1, 1).double(), torch.ones(3, 1, 1).double(), False)
    images, _ = private(2, 9)
    numbers = torch.rand(2, 1, 1, dtype=torch.float64)
    assert set(solve(target, observe(target, images, numbers)).outcomes) == {"recovered"}
    with pytest.raises(SettingError, match="grant the targets"):
        solve(target, observe(target, images, numbers), Analytic())


def test_the_direction_is_the_right_singular_vector() -> None:
    draws = torch.Generator().manual_seed(0)
    left, right = torch.randn(9, generator=draws).double(), torch.randn(14, generator=draws).double()
    matrix = left.outer(right) + 0.01 * torch.randn(9, 14, generator=draws).double()
    expected = torch.linalg.svd(matrix).Vh[0]
    assert abs(float(direction(matrix) @ expected)) == pytest.approx(1, abs=1e-12)


def one(layers: nn.Module) -> Target:
    return target_of(layers, SHAPE)


class Tokens(nn.Module):
    """A fully connected layer on every row of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 6), nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(images).flatten(1, 2).mean(1))
        return logits


class Squared(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).square()


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.Linear(6, 5))
    model[1].requires_grad_(False)
    return model


def again() -> nn.Module:
    layer = nn.Linear(48, 48)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(48, 5))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(48), nn.Linear(48, 5)), "layer_norm"),
        (Tokens, "4 of 48 numbers"),
        (lambda: nn.Sequential(Squared(), nn.Linear(48, 5)), "more to the image"),
        (frozen, "not trained"),
        (again, "more than once"),
    ],
)
def test_a_first_layer_that_cannot_be_solved_is_refused(model: Callable[[], nn.Module], why: str) -> None:
    target = one(model())
    with pytest.raises(SettingError, match=why) as refusal:
        Analytic().check(target, 1)
    assert "--attack ig" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_not_one_image_an_update_is_refused() -> None:
    target = perceptron()
    with pytest.raises(SettingError, match=r"holds 4.*--batch 1"):
        Analytic().check(target, 4)
    with pytest.raises(SettingError, match="one update of each victim"):
        Analytic()(target, [], seed=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "step",
    [
        clients.LocalTraining(steps=1, lr=0.5),
        clients.LocalTraining(steps=4, lr=0.1),
        clients.ClippedGradient(bound=1e-3),
    ],
)
def test_local_steps_and_clipping_keep_the_ratio_of_one_image(bias: bool, step: Step) -> None:
    """The first layer's update is a sum of slopes times the image, whatever the weights do in between."""
    target = replace(perceptron(bias=bias, activation=nn.Sigmoid), step=step)
    images, classes = private(3, 14)
    found = solve(target, observe(target, images, classes))
    assert set(found.outcomes) == {"recovered"}
    assert float(psnr(found, images).min()) > 150


def people(batch: int = 1) -> Victims:
    images, classes = private(4 * batch, 10, torch.float32)
    shape = (4, batch, *SHAPE)
    return Victims(
        images.reshape(shape), classes.reshape(4, batch), torch.arange(4 * batch).reshape(4, batch), tuple("abcd")
    )


def test_an_audit_refuses_before_any_update_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "gradient", lambda *_: pytest.fail("a client was asked to work"))
    with pytest.raises(SettingError, match="--batch 1"):
        audit(perceptron().model, people(batch=2), attack=Analytic())


@pytest.mark.parametrize("normalise", [True, False])
def test_an_audit_from_end_to_end(normalise: bool) -> None:
    model = perceptron(normalise=normalise, dtype=torch.float32).model
    result = audit(model, people(), attack=Analytic(), resources=Resources(workers=2))
    assert result.scores.success.hits == 4
    assert {record.stopped for record in result.records} == {"recovered"}
    level = result.baseline[0, 0, :, 0, 0]
    assert torch.allclose(level, torch.tensor([0.5, 0.4, 0.3] if normalise else [0.5, 0.5, 0.5]))
    guess = estimate(Audit(model=model, victims=people(), attack=Analytic()))
    assert guess["seconds"] > 0


def test_an_interrupted_solver_keeps_what_it_has() -> None:
    def watch(*, done: int, total: int, match: float, active: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    target = perceptron()
    found = Analytic()(target, [observe(target, *private(4, 11))], seed=0, watch=watch)
    assert found.outcomes == ("recovered", "recovered", "interrupted", "interrupted")


def test_what_it_promises() -> None:
    nothing = Analytic().blind()
    assert nothing.name == "analytic without the update"
    assert nothing.blind() == nothing


@pytest.mark.parametrize("bias", [True, False])
def test_victims_do_not_meet(bias: bool) -> None:
    target = perceptron(bias=bias)
    seen = observe(target, *private(3, 12))
    together = solve(target, seen)
    for v in range(3):
        assert seen.labels is not None
        alone = Observation(
            {k: g[v : v + 1] for k, g in seen.gradient.items()}, 1, seen.ids[v : v + 1], seen.labels[v, None]
        )
        assert torch.allclose(solve(target, alone).images[0], together.images[v], atol=1e-12)


def test_mlp_without_biases_is_read_on_real_images(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PPP, Sec. 3.1, leaves biases out against analytic attacks; rank one reads the images all the same."""
    monkeypatch.setenv("DOSIMETER_DATA", str(data_folder))
    task = load_task("mlp-no-bias:width=128", "cifar10", seed=0)
    result = audit(task.model, pick(task.dataset, 16, seed=0), attack=presets.analytic())
    assert result.scores.success.hits == 16
    assert {record.stopped for record in result.records} == {"recovered"}
