import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import engine, models
from dosimeter.errors import ModelError, SettingError
from dosimeter.types import Target
from small import observe, target_of, tiny_target


def case(name: str, dtype: torch.dtype = torch.float64) -> tuple[Target, Tensor, Tensor]:
    """A model of the catalogue with 3 victims of 2 images."""
    shape = (1, 32, 32)
    model = models.build(name, shape=shape, classes=10, mean=(0.3,), std=(0.3,), seed=0)
    torch.manual_seed(1)
    return target_of(model, shape, dtype), torch.rand(3, 2, *shape, dtype=dtype), torch.randint(0, 10, (3, 2))


@pytest.mark.parametrize("name", ["cnn", "lenet"])
def test_products_are_those_of_the_gradients_written_out(name: str) -> None:
    target, images, labels = case(name)
    seen = observe(target, images, labels)
    guesses = torch.rand(4, 2, *target.shape, dtype=torch.float64)
    owner = torch.tensor([2, 0, 0, 1])
    products = engine.Matcher(target, seen.gradient)(guesses, labels[owner], owner)
    for n, v in enumerate(owner.tolist()):
        target.model.zero_grad()
        F.cross_entropy(target.model(guesses[n]), labels[v]).backward()
        for p, (key, parameter) in enumerate(target.model.named_parameters()):
            s, o = parameter.grad, seen.gradient[key][v]
            assert s is not None
            wanted = [(s * o).sum(), s.square().sum(), o.square().sum(), (s - o).square().sum()]
            found = [value[n, p] for value in products]
            assert torch.allclose(torch.stack(found), torch.stack(wanted), rtol=1e-9, atol=1e-15)


def test_the_slope_agrees_with_finite_differences() -> None:
    target = tiny_target()
    torch.manual_seed(2)
    images, labels = torch.rand(2, 1, 1, 6, 6, dtype=torch.float64), torch.tensor([[1], [3]])
    matcher = engine.Matcher(target, observe(target, images, labels).gradient)
    owner = torch.tensor([0, 1])

    def match(x: Tensor) -> Tensor:
        products = matcher(x, labels, owner)
        return (products.cross + 0.3 * products.simulated + 0.7 * products.difference).sum()

    assert torch.autograd.gradcheck(match, torch.rand_like(images).requires_grad_(), atol=1e-7)


class Branching(nn.Module):
    """Looks at its data to decide what to do, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 5)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        out: Tensor = self.linear(flat if flat.sum() > 0 else -flat)
        return out


class Noisy(Branching):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(5, dtype=x.dtype)


def test_a_model_that_vmap_cannot_take_is_simulated_one_by_one() -> None:
    target = target_of(Branching(), (1, 6, 6))
    images, labels = torch.rand(3, 1, 1, 6, 6, dtype=torch.float64), torch.tensor([[0], [1], [2]])
    seen = observe(target, images, labels)
    matcher = engine.Matcher(target, seen.gradient, way="one by one")
    products = matcher(images, labels, torch.arange(3))
    assert torch.allclose(products.cross, products.observed)
    assert float(products.difference.max()) < 1e-20


def test_a_model_with_noise_of_its_own_is_refused() -> None:
    target = target_of(Noisy(), (1, 6, 6))
    images, labels = torch.rand(1, 1, 1, 6, 6, dtype=torch.float64), torch.tensor([[0]])
    with pytest.raises(ModelError, match="random"):
        engine.Matcher(target, observe(target, images, labels).gradient)(images, labels, torch.tensor([0]))


def test_chunks_depend_on_model_settings_and_budget_alone() -> None:
    target, *_ = case("cnn")
    whole = engine.plan(target, victims=8, batch=1, restarts=1, workers=1)
    assert (whole.victims, whole.workers) == (8, 1)
    assert 8 * 65_000 * 8 < whole.bytes < 2**30
    small = engine.plan(target, victims=100, batch=1, restarts=1, budget=whole.bytes, workers=1)
    assert small.victims == 8
    assert engine.plan(target, victims=100, batch=1, restarts=2, budget=whole.bytes, workers=1).victims < 8
    both = engine.plan(target, victims=100, batch=1, restarts=1, workers=2)
    assert both.workers == 2
    assert both.victims * 2 <= 100 + both.victims
    assert engine.plan(target, victims=100, batch=1, restarts=1, budget=whole.bytes, workers=2).bytes <= whole.bytes
    with pytest.raises(SettingError, match="raise the budget"):
        engine.plan(target, victims=1, batch=1, restarts=1, budget=1000)
