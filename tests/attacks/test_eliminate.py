"""Noise drawn inside the model, solved for with the image."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import clients, models
from dosimeter.attacks import Eliminate, labels
from dosimeter.attacks.solve.eliminate import find_latent
from dosimeter.attacks.solve.encoder import Equations, linearised, solve_encoder
from dosimeter.attacks.solve.latent import Latent, read_noisy
from dosimeter.auditing import Resources, audit
from dosimeter.defenses import Cvb, Defense, GaussianNoise, NoDefense, Precode
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Secrets, Target, Victims
from small import target_of

SHAPE = (1, 8, 8)
CVB = Cvb(kernel=3)
LABEL = torch.tensor([2])


def guarded(seed: int, defense: Defense, *, activation: Callable[[], nn.Module] = nn.ReLU, bias: bool = True) -> Target:
    """Two 3x3 convolutions and a classifier, wide enough that all above the second one's input is determined."""
    torch.manual_seed(seed)
    layers = [models.Normalise((0.4,), (0.3,)), nn.Conv2d(1, 6, 3), activation()]
    layers += [nn.Conv2d(6, 32, 3), activation(), nn.Flatten(), nn.Linear(512, 5, bias=bias)]
    return target_of(defense.on_model(nn.Sequential(*layers), SHAPE), SHAPE)


def perceptron(seed: int, defense: Defense, *, bias: bool) -> Target:
    torch.manual_seed(seed)
    layers = [nn.Flatten(), nn.Linear(64, 32, bias=bias), nn.ReLU(), nn.Linear(32, 24, bias=bias), nn.ReLU()]
    return target_of(defense.on_model(nn.Sequential(*layers, nn.Linear(24, 5, bias=bias)), SHAPE), SHAPE)


class Sent:
    """One client's step with what only it knows."""

    def __init__(self, target: Target, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        self.image = torch.rand(1, *SHAPE, generator=draws, dtype=torch.float64)
        self.drawn: Secrets = clients.draw_secrets(target, 1, draws)
        self.update = clients.gradient(replace(target, drawn=self.drawn), self.image, LABEL)
        self._target = target

    def seen(self, sigma: float = 0.0) -> Observation:
        draws = torch.Generator().manual_seed(7)
        noise = {k: sigma * torch.randn(g.shape, generator=draws, dtype=g.dtype) for k, g in self.update.items()}
        return Observation({k: (g + noise[k])[None] for k, g in self.update.items()}, 1, ("train:0",), LABEL[None])

    def latent(self) -> Latent:
        """What goes into the decoder and what comes back to it, by PyTorch's own means."""
        layer = next(m for m in self._target.model.modules() if hasattr(m, "decoder"))
        kept: list[Tensor] = []
        with layer.decoder.register_forward_pre_hook(lambda _layer, inputs: kept.append(inputs[0])):
            output = torch.func.functional_call(self._target.model, dict(self.drawn), (self.image,))
        (slopes,) = torch.autograd.grad(self._target.loss(output, LABEL), kept)
        return Latent(kept[0].detach(), slopes)


def solve(target: Target, seen: Observation) -> Reconstruction:
    return Eliminate(labels=labels.Known())(target, [seen], seed=0)


DEFENSES = [CVB, Cvb(kernel=3, variant="released"), Cvb(kernel=3, beta=0.0), Precode(k=12), Precode(k=8, position=1)]


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1000), defense=st.sampled_from(DEFENSES), activation=st.sampled_from([nn.ReLU, nn.Sigmoid]))
def test_the_latent_is_the_one_that_was_drawn(seed: int, defense: Defense, activation: type[nn.Module]) -> None:
    target = guarded(seed, defense, activation=activation)
    sent = Sent(target, seed)
    way, latent = find_latent(read_noisy(target), sent.update, LABEL, torch.float64)
    true = sent.latent()
    assert latent is not None
    if way.exact:
        assert float((latent.value - true.value).norm() / true.value.norm()) < 1e-5
        assert float((latent.slopes - true.slopes).norm() / true.slopes.norm()) < 1e-5
    assert way.exact or activation is nn.ReLU  # whose inactive neurons may leave too little


@pytest.mark.parametrize("defense", DEFENSES, ids=repr)
def test_nothing_is_left_at_the_truth(defense: Defense) -> None:
    """The noise that follows from the true image and latent is the one drawn, and the loss below gives the update."""
    target = guarded(1, defense)
    sent, noisy = Sent(target, 3), read_noisy(target)
    true = sent.latent()
    assert torch.allclose(noisy.noise_of(sent.image[0], true), sent.drawn[noisy.noise], atol=1e-9)
    inputs = sent.image
    for block in noisy.below[:-1]:
        inputs = block(inputs).detach()
    slopes = noisy.encoder.slopes(noisy.below[-1](inputs).detach(), true)
    encoder = noisy.below[-1].learned
    weight = noisy.observed(sent.update)[encoder.weight].reshape(encoder.kernel.shape)
    if len(noisy.shape) == 3:
        again = torch.nn.grad.conv2d_weight(inputs, list(weight.shape), slopes, padding=1)
    else:
        again = (slopes.flatten(1).T @ inputs.flatten(1)).reshape(weight.shape)
    assert torch.allclose(again, weight, atol=1e-10)


def test_the_equations_slopes_are_finite_differences() -> None:
    target = guarded(2, CVB)
    sent, noisy = Sent(target, 2), read_noisy(target)
    true, learned = sent.latent(), noisy.below[-1].learned
    gradient = noisy.observed(sent.update)[learned.weight]
    equations = Equations(learned, (6, 6, 6), lambda z: noisy.encoder.slopes(z, true), gradient)
    draws = torch.Generator().manual_seed(0)
    u, move = torch.randn(2, 6, 36, generator=draws, dtype=torch.float64)
    point = equations.at(u)
    apart = (equations.at(u + 1e-5 * move).rest - equations.at(u - 1e-5 * move).rest) / 2e-5
    assert torch.allclose(equations.push(point, move), apart, rtol=1e-6, atol=1e-8)
    other = torch.randn(point.rest.shape, generator=draws, dtype=torch.float64)
    assert float((equations.push(point, move) * other).sum()) == pytest.approx(
        float((move * equations.pull(point, other)).sum())
    )
    start = noisy.below[0](torch.full((1, *SHAPE), 0.5).double()).detach()[0]
    solved = solve_encoder(equations, start, floor=0.0, least=1e-13)
    assert solved.error < 1e-10
    assert torch.allclose(solved.inputs, noisy.below[0](sent.image).detach()[0], atol=1e-6)
    slopes, bends = linearised(lambda z: z.square() * z.flip(1), torch.ones(1, 2, 3, 1))
    assert torch.equal(slopes, torch.ones(2, 3))
    assert torch.equal(bends, torch.tensor([[2.0, 1.0], [1.0, 2.0]]).expand(3, 2, 2))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("defense", [CVB, Cvb(kernel=3, variant="released"), Precode(k=12), Precode(k=8, position=1)])
def test_convolutions_give_their_image_away(defense: Defense, seed: int) -> None:
    target = guarded(seed, defense, activation=nn.LeakyReLU)
    sent = Sent(target, seed)
    found = solve(target, sent.seen())
    assert found.determined[0]["image"] == 1.0
    assert float((found.images[0] - sent.image).abs().max()) < 1e-5
    assert float(found.match[0]) < 1e-9


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), bias=st.booleans(), position=st.sampled_from([1, 2]))
def test_perceptrons_give_their_image_away(seed: int, bias: bool, position: int) -> None:
    target = perceptron(seed, Precode(k=6, bias=bias, position=position), bias=bias)
    sent = Sent(target, seed)
    found = solve(target, sent.seen())
    assert found.determined[0]["latent"] == 1.0
    assert float((found.images[0] - sent.image).abs().max()) < 1e-5


@pytest.mark.parametrize("sigma", [1e-6, 1e-2])
def test_noise_on_the_update_takes_the_certificate_away(sigma: float) -> None:
    target = guarded(0, CVB)
    sent = Sent(target, 0)
    found = solve(target, sent.seen(sigma))
    assert found.outcomes == ("not determined",)
    assert found.images.isfinite().all()
    broken = sent.seen()._replace(gradient={k: g * torch.nan for k, g in sent.seen().gradient.items()})
    assert solve(target, broken).outcomes == ("not determined",)


def test_an_audit_runs_it_and_adds_noise() -> None:
    model = guarded(0, NoDefense()).model
    images = torch.rand(2, 1, *SHAPE, generator=torch.Generator().manual_seed(0))
    victims = Victims(images, torch.tensor([[1], [2]]), torch.arange(2)[:, None], ("a", "b"))
    plain = audit(model, victims, attack=Eliminate(), defense=CVB, resources=Resources(progress=False))
    assert plain.scores["ssim"].mean > plain.scores.baseline["ssim"].mean + 0.3
    spoiled = audit(
        model, victims, attack=Eliminate(), defense=CVB | GaussianNoise(sigma=1e-2), resources=Resources(progress=False)
    )
    assert {record.stopped for record in spoiled.records} == {"not determined"}


class Around(nn.Module):
    """A way around what is inside."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        inside: Tensor = self.inside(x)
        return inside + x


def test_what_cannot_be_solved_is_refused_before_any_work() -> None:
    attack = Eliminate()
    plain = target_of(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 5)), SHAPE)
    with pytest.raises(SettingError, match="draws none"):
        attack.check(plain, 1)
    with pytest.raises(SettingError, match="holds 2"):
        attack.check(guarded(0, CVB), 2)
    with pytest.raises(SettingError, match="draws 2 times"):
        attack.check(guarded(0, CVB | Precode(k=4)), 1)
    with pytest.raises(SettingError, match="solves one gradient"):
        attack.check(replace(guarded(0, CVB), step=clients.LocalTraining(steps=2, lr=0.1)), 1)
    pooled = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 2), nn.Flatten())
    with pytest.raises(SettingError, match="max_pool2d"):
        attack.check(target_of(CVB.on_model(nn.Sequential(*pooled, nn.Linear(8, 5)), SHAPE), SHAPE), 1)
    inner = Precode(k=4).on_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), (1, 1, 64))
    around = nn.Sequential(nn.Flatten(), Around(inner), nn.Linear(64, 5))
    with pytest.raises(SettingError, match="ways around the noise"):
        attack.check(target_of(around, SHAPE), 1)
