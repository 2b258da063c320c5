"""J^T J of every tensor against the Jacobian written out, by autograd and by finite differences."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import clients, defenses, rng
from dosimeter.auditing.setting import part
from dosimeter.channel import Channel, Clip, Fact, Mask, Noise
from dosimeter.doses import Images, White, algebra, channels
from dosimeter.doses.cut import cut_of
from dosimeter.doses.free import Products, estimated
from dosimeter.doses.information import information
from dosimeter.doses.priors import Prior
from dosimeter.doses.slopes import Network
from dosimeter.types import Target
from small import Scale, network, target_of

SHAPE = (1, 16, 16)
WHITE = White().known(256).precision


class Twice(nn.Module):
    """A layer that is called twice, and one whose weight another use shares."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(256, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.twice(torch.tanh(self.first(x.flatten(1)))))
        out: Tensor = self.last(torch.tanh(self.twice(hidden)))
        return out * (1 + self.last.weight.square().mean())


def grouped() -> nn.Module:
    return nn.Sequential(
        Scale(),
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2, bias=False),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Conv2d(4, 6, 3, stride=2, dilation=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 5),
    )


def folded() -> nn.Module:
    """With units that are off, so that there are fewer directions behind the first layer."""
    return nn.Sequential(
        nn.Conv2d(1, 5, 5, stride=2), nn.ReLU(), nn.Conv2d(5, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5)
    )


class Shortcut(nn.Module):
    """An image that also passes its first layer by."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(256, 8), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cat([torch.tanh(self.first(x.flatten(1))), x.flatten(1)[:, :4]], 1))
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": network, "shared": Twice, "grouped": grouped, "folded": folded, "shortcut": Shortcut,
}  # fmt: skip


def made(make: Callable[[], nn.Module], defense: defenses.Defense, batch: int = 1) -> Network:
    torch.manual_seed(0)
    model = defense.on_model(make(), SHAPE)
    target = target_of(model, SHAPE)
    images = torch.rand(batch, *SHAPE, dtype=torch.float64)
    drawn = clients.draw_secrets(target, batch, rng.stream(0, "draws"))
    return Network(target, images, torch.arange(batch) % 5, drawn, tuple(drawn))


def written(at: Network, name: str) -> Tensor:
    """(entries, N) the Jacobian of one tensor by reverse mode."""
    flat = at.layout.flat({key: value[None] for key, value in at.point.items()})[0]

    def one(values: Tensor) -> Tensor:
        point = {key: value[0] for key, value in at.layout.tangents(values[None]).items()}
        return at.update(point)[name].flatten()

    found = torch.func.jacrev(one)(flat)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("defense", ["none", "precode:k=3", "cvb:kernel=3"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("batch", [1, 2])
def test_every_tensors_information_is_that_of_its_jacobian(model: str, defense: str, batch: int) -> None:
    if model in ("shared", "shortcut") and defense != "none":
        pytest.skip("has no place for a bottleneck")
    at = made(MODELS[model], part("defense", defense), batch)
    found = information(at)
    assert found.keys() == at.gradient.keys()
    for name, each in found.items():
        jacobian = written(at, name)
        torch.testing.assert_close(each.matrix, jacobian.T @ jacobian, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(each.pull, jacobian.T @ at.gradient[name].flatten(), rtol=1e-8, atol=1e-12)


def test_it_is_that_of_finite_differences() -> None:
    at = made(network, defenses.Precode(k=3))
    flat, far = at.layout.flat({key: value[None] for key, value in at.point.items()})[0], 1e-5
    columns: dict[str, list[Tensor]] = {name: [] for name in at.gradient}
    for i in range(at.layout.size):
        step = torch.zeros_like(flat)
        step[i] = far
        ends = [at.update({k: v[0] for k, v in at.layout.tangents((flat + s * step)[None]).items()}) for s in (1, -1)]
        for name, column in columns.items():
            column.append((ends[0][name] - ends[1][name]).flatten() / (2 * far))
    for name, each in information(at).items():
        jacobian = torch.stack(columns[name], 1)
        assert (each.matrix - jacobian.T @ jacobian).norm() < 1e-6 * each.matrix.norm(), name


def test_the_first_layer_is_a_cut_where_all_passes_through_it() -> None:
    at = made(folded, defenses.NoDefense())
    cut = cut_of(at)
    assert cut is not None
    assert 0 < len(cut.live) <= int((at.now.inputs["2"] > 0).sum()) < at.now.backs["0"].numel()
    assert cut_of(made(Shortcut, defenses.NoDefense())) is None


def test_two_threads_do_not_disturb_each_other() -> None:
    """Torch's forward derivatives have one count of levels for all threads."""
    at = [made(network, defenses.NoDefense()) for _ in range(2)]
    alone = at[0].moved(torch.eye(256, dtype=torch.float64))
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            for both in pool.map(lambda one: one.moved(torch.eye(256, dtype=torch.float64)), at):
                for name, slope in both.backs.items():
                    torch.testing.assert_close(slope, alone.backs[name])


def test_layers_are_taken_apart_where_they_can_be() -> None:
    """A tensor that is written out by mistake costs memory without a word."""
    assert set(made(network, defenses.NoDefense()).now.written) == set()
    shared = set(made(Twice, defenses.NoDefense()).now.written)
    assert shared == {"twice.weight", "twice.bias", "last.weight", "last.bias"}


def test_masks_by_size_leave_the_survivors_rows() -> None:
    at = made(network, defenses.NoDefense())
    how = channels.seen(Channel((Mask(0.7, "size"), Noise("gaussian", 0.1))), at.gradient, batch=1)
    found = information(at, how.kept)
    whole = torch.zeros_like(next(iter(found.values())).matrix)
    for name in at.gradient:
        rows = written(at, name)[how.kept[name].flatten() > 0]
        assert len(rows) == at.gradient[name].numel() - round(0.7 * at.gradient[name].numel())
        whole += rows.T @ rows / 0.01
    torch.testing.assert_close(channels.joined(found, how), whole, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("of", ["example", "tensor"])
def test_clipping_is_the_derivative_of_the_clipped_gradient(of: str) -> None:
    at = made(network, defenses.NoDefense())
    norm = torch.cat([g.flatten() for g in at.gradient.values()]).norm()
    clip = Clip(float(norm) / 3, of)  # type: ignore[arg-type]
    how = channels.seen(Channel((clip, Noise("gaussian", 0.1))), at.gradient, batch=1)
    flat = at.point["images"].flatten()

    def clipped(values: Tensor) -> Tensor:
        update = at.update({"images": values.reshape(1, *SHAPE)})
        if of == "tensor":
            return torch.cat([g.flatten() * (clip.bound / g.norm()).clamp_max(1) for g in update.values()])
        whole = torch.cat([g.flatten() for g in update.values()])
        return whole * (clip.bound / whole.norm()).clamp_max(1)

    jacobian = torch.func.jacrev(clipped)(flat)
    assert isinstance(jacobian, Tensor)
    found = information(at)
    expected = jacobian.T @ jacobian / 0.01
    torch.testing.assert_close(channels.joined(found, how), expected, rtol=1e-7, atol=1e-9)
    parts = sum(channels.joined(found, how, [name]) for name in found)
    torch.testing.assert_close(parts, expected, rtol=1e-7, atol=1e-9)


def test_a_step_of_its_own_is_differentiated_as_it_is() -> None:
    model = target_of(nn.Sequential(nn.Flatten(), nn.Linear(256, 4), nn.Tanh(), nn.Linear(4, 5)), SHAPE)
    step = clients.LocalTraining(steps=2, lr=0.5)
    target = Target(model.model, F.cross_entropy, SHAPE, model.mean, model.std, step=step)
    at = Network(target, torch.rand(2, *SHAPE, dtype=torch.float64), torch.tensor([0, 3]), {}, ())
    for name, each in information(at).items():
        jacobian = written(at, name)
        torch.testing.assert_close(each.matrix, jacobian.T @ jacobian, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("facts", [(Noise("gaussian", 0.01),), (Clip(0.01), Noise("gaussian", 1e-3))])
def test_products_are_those_of_the_matrix(facts: tuple[Fact, ...]) -> None:
    at = made(network, defenses.NoDefense())
    how = channels.seen(Channel(facts), at.gradient, batch=1)
    rows = torch.randn(3, at.layout.size, dtype=torch.float64)
    expected = rows @ channels.joined(information(at, how.kept), how)
    torch.testing.assert_close(Products(at, how)(rows), expected, rtol=1e-7, atol=1e-7)


PRIORS: list[Prior] = [White(), Images(images=torch.rand(500, *SHAPE, generator=rng.stream(0, "public")))]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("defense", "batch"), [("none", 1), ("precode:k=3", 1), ("cvb:kernel=3", 1), ("none", 2)])
def test_estimates_are_the_exact_figures_within_their_errors(prior: Prior, defense: str, batch: int) -> None:
    """Also where draws, and the other image of a batch, are unknown too."""
    at = made(network, part("defense", defense), batch)
    known, own = prior.known(256), torch.arange(256)
    others = [known.precision] * (batch - 1) + [torch.eye(at.layout.size - 256 * batch, dtype=torch.float64)]
    for sigma in (1e-3, 1e-2) if at.layout.size == 256 else (1e-2,):
        how = channels.seen(Channel((Noise("gaussian", sigma),)), at.gradient, batch=batch)
        matrix = algebra.eliminated(channels.joined(information(at), how), own, algebra.blocks(*others))
        behind = algebra.posterior(matrix, known.precision, known.log_precision)
        exact = (algebra.above(matrix - known.precision), behind.bits, behind.error, algebra.above(matrix - WHITE))
        for one, (value, error) in zip(exact, estimated(at, how, known, 0), strict=True):
            assert abs(one - value) <= 3 * error + 1e-6 * abs(one)
            assert error < 0.5 * abs(one) + 12
