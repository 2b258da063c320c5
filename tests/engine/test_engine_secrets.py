"""What clients draw inside the model reaches every way of the engine, and its slope is autograd's."""

import pytest
import torch
from torch import Tensor, nn

from dosimeter import models
from dosimeter.attacks import Search, Stop
from dosimeter.attacks.search import masks, treatments
from dosimeter.attacks.search.objective import Draws
from dosimeter.attacks.search.running import Run
from dosimeter.defenses import Cvb, Defense, KeyLock, Precode
from dosimeter.engine import Matcher
from dosimeter.types import Secret, Target, Way
from small import Scale, observe, target_of

SHAPE = (1, 12, 12)


class Locked(nn.Module):
    """One factor a channel that a client keeps for all its images."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.zeros(4), persistent=False)
        self.penalty = None

    def secrets(self) -> dict[str, Secret]:
        return {"factor": Secret((4,), "client")}

    def forward(self, x: Tensor) -> Tensor:
        factor: Tensor = self.factor  # type: ignore[assignment]
        return x * (1 + factor).reshape(-1, 4, 1, 1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        models.Normalise((0.4,), (0.3,)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Sigmoid(),
        nn.Conv2d(4, 4, 3),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(400, 5),
    )


def make(defense: Defense | None, *, scaled: bool = False) -> Target:
    model = network()
    if scaled:
        model.insert(4, Scale())  # type: ignore[attr-defined]
    if defense is None:
        model.insert(3, Locked())  # type: ignore[attr-defined]
        return target_of(model, SHAPE)
    return target_of(defense.on_model(model, SHAPE), SHAPE)


DEFENSES = [
    Precode(k=3, beta=0.5),
    Precode(k=3, position=1),
    Cvb(kernel=3, beta=0.5),
    KeyLock(key=6),
    KeyLock(key=6, round="later", lock="relu"),
    KeyLock(key=6, share="lock"),
    None,
]


@pytest.mark.parametrize(("way", "scaled"), [("tape", False), ("tape", True), ("vmap", False), ("one by one", False)])
@pytest.mark.parametrize("defense", DEFENSES, ids=repr)
def test_products_and_slopes_are_autograds(defense: Defense | None, way: Way, scaled: bool) -> None:
    target = make(defense, scaled=scaled)
    n, batch = 3, 2
    torch.manual_seed(1)
    images = torch.rand(n, batch, *SHAPE, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(5, (n, batch))
    u = {
        name: torch.randn(n, *s.full_shape(batch), dtype=torch.float64, requires_grad=True)
        for name, s in target.secrets.items()
    }
    observed = {name: torch.randn(2, *p.shape, dtype=torch.float64) for name, p in target.parameters.items()}
    owner = torch.tensor([0, 1, 1])
    found = Matcher(target, observed, way=way)(images, labels, owner, u)
    slopes = torch.autograd.grad((found.cross + 0.3 * found.simulated).sum(), [images, *u.values()])

    expected = []
    for i in range(n):
        parameters = {name: p.clone().requires_grad_() for name, p in target.parameters.items()}
        drawn = {name: value[i] for name, value in u.items()}
        output = torch.func.functional_call(target.model, {**parameters, **drawn}, (images[i],))
        loss = nn.functional.cross_entropy(output, labels[i])
        for layer in target.model.modules():
            if getattr(layer, "penalty", None) is not None:
                loss = loss + layer.penalty.mean()  # type: ignore[union-attr, operator]
        gradient = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        for p, g in zip(parameters, gradient, strict=True):
            expected.append((g * observed[p][owner[i]]).sum() + 0.3 * g.square().sum())
    wanted = torch.autograd.grad(torch.stack(expected).sum(), [images, *u.values()])
    assert torch.allclose((found.cross + 0.3 * found.simulated).sum(), torch.stack(expected).sum(), rtol=1e-9)
    for one, other in zip(slopes, wanted, strict=True):
        assert float((one - other).abs().max()) <= 1e-9 * float(other.abs().max())


@pytest.mark.parametrize("encoder", [True, False])
def test_ignore_keeps_what_the_draw_does_not_touch(encoder: bool) -> None:
    target = make(Precode(k=3, position=1))
    kept = masks.BeforeNoise(encoder=encoder).names(target)
    inside = {"3.bottleneck.encoder.weight", "3.bottleneck.encoder.bias"}
    assert kept == {"1.weight", "1.bias"} | (inside if encoder else set())
    weights = masks.BeforeNoise(encoder=encoder).weights(target, torch.rand(2, len(target.parameters)))
    assert weights.tolist() == [[float(name in kept) for name in target.parameters]] * 2


@pytest.mark.parametrize("draws", [1, 3])
def test_a_search_takes_the_mean_over_its_draws_for_every_image_of_a_batch(draws: int) -> None:
    target = make(Precode(k=3, beta=0.5))
    images, labels = torch.rand(2, 2, *SHAPE), torch.tensor([[0, 1], [2, 3]])
    seen = observe(target, images, labels)
    run = Run([Search(stop=Stop(steps=1), secrets=treatments.Resampled(draws=draws))], target, seen, 0, range(1))
    state = run._begin()
    drawn = run._draws(state.row)
    assert {name: tuple(value.shape) for name, value in drawn.secrets.items()} == dict.fromkeys(
        target.secrets, (2, draws, 2, 3)
    )
    whole = run.objective(state.x, state.labels, state.owner, drawn, run._terms(0, state.row), restart=state.row * 0)
    singles = [
        run.objective(
            state.x,
            state.labels,
            state.owner,
            Draws({name: value[:, k : k + 1] for name, value in drawn.secrets.items()}, None),
            run._terms(0, state.row),
            restart=state.row * 0,
        )
        for k in range(draws)
    ]
    assert torch.allclose(whole.loss, torch.stack([one.loss for one in singles]).mean(0))
    assert torch.allclose(whole.slope, torch.stack([one.slope for one in singles]).mean(0), atol=1e-9)
