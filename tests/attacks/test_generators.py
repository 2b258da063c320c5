"""Attacks through generators: their spaces, their optimisers, their files, and what they find."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dosimeter import engine, trees
from dosimeter.attacks import generators, labels, presets
from dosimeter.attacks.generators.weights import WeightField
from dosimeter.attacks.search import degraded, likelihoods, masks, moves, optimisers, priors, spaces, starts
from dosimeter.attacks.search.objective import Draws, Objective, Terms, Unknowns
from dosimeter.attacks.search.treatments import Resampled
from dosimeter.engine import Products
from dosimeter.errors import DataError, ModelError, OutputError, SettingError
from dosimeter.types import Observation, Target
from small import ALONG, observe, target_of, tiny_target

SHAPES = [(1, 6, 6), (1, 28, 28), (3, 32, 32), (2, 40, 64)]


def blank_target(shape: tuple[int, int, int]) -> Target:
    return target_of(nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 5)), shape)


def rows(field: WeightField, n: int) -> Tensor:
    start = starts.Uniform(low=-1, high=1)
    return torch.stack([field.draw(start, torch.Generator().manual_seed(i)) for i in range(n)])


def modules(space: generators.Weights, target: Target, unknowns: Tensor, classes: int) -> nn.ModuleDict:
    """One candidate's generator and label branch as ordinary modules, filled in the order of their parameters."""
    image = generators.Network(shape=target.shape, latent=space.noise, width=space.width, trained=False)
    both = nn.ModuleDict({"image": image, "label": nn.Linear(space.noise, classes)}).double()
    at = 0
    for parameter in both.parameters():
        parameter.data.copy_(unknowns[at : at + parameter.numel()].reshape(parameter.shape))
        at += parameter.numel()
    assert at == len(unknowns)
    return both.train()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_generators_run_together_are_the_modules_run_one_by_one(shape: tuple[int, int, int]) -> None:
    target, space = blank_target(shape), generators.Weights(width=2, noise=7)
    target = replace(target, mean=torch.full_like(target.mean, 0.3), std=torch.full_like(target.std, 0.6))
    field = space.field(target, 2, 5)
    unknowns = rows(field, 3).requires_grad_()
    images, logits = field.images(unknowns), field.logits(unknowns)
    assert images.shape == (3, 2, *shape)
    assert logits is not None
    (slope,) = torch.autograd.grad(images.square().sum() + logits.square().sum(), unknowns)
    for n in range(3):
        both = modules(space, target, unknowns[n].detach(), 5)
        pixels = both["image"](field._noise)
        assert 0 <= pixels.detach().min() <= pixels.detach().max() <= 1
        made, scores = (pixels - 0.3) / 0.6, both["label"](field._noise)
        assert torch.allclose(images[n], made, atol=1e-10)
        assert torch.allclose(logits[n], scores, atol=1e-10)
        found = torch.autograd.grad(made.square().sum() + scores.square().sum(), list(both.parameters()))
        assert torch.allclose(slope[n], torch.cat([g.flatten() for g in found]), atol=1e-9)


def test_weights_start_as_torch_starts_them() -> None:
    target, space = blank_target((1, 16, 16)), generators.Weights(width=4, noise=32)
    ours = modules(space, target, rows(space.field(target, 1, 5), 1)[0], 5)
    torch.manual_seed(0)
    theirs = nn.ModuleDict(
        {
            "image": generators.Network(shape=(1, 16, 16), latent=32, width=4, trained=False),
            "label": nn.Linear(32, 5),
        }
    )
    for name, expected in theirs.state_dict().items():
        found = ours.state_dict()[name]
        if expected.numel() < 100:
            assert float(found.abs().max()) == pytest.approx(float(expected.abs().max()), rel=0.6), name
        else:
            assert float(found.std()) == pytest.approx(float(expected.std()), rel=0.1), name
            assert float(found.abs().max()) == pytest.approx(float(expected.abs().max()), rel=0.1), name


def test_a_space_of_pixels_takes_no_more_room_and_one_of_weights_says_how_much() -> None:
    target = blank_target((1, 28, 28))
    assert spaces.Pixels().footprint(target, 1, 0) == 0
    narrow, wide = (generators.Weights(width=width).footprint(target, 1, 10) for width in (4, 16))
    assert wide > 3 * narrow > 3 * 8 * 128 * 4 * 16
    plans = [
        engine.plan(target, victims=64, batch=1, restarts=1, budget=2**28, extra=(e, 0)) for e in (0, narrow, wide)
    ]
    assert plans[0].victims > plans[2].victims >= 1
    assert all(plan.bytes <= 2**28 for plan in plans)
    with pytest.raises(SettingError, match="more than the budget"):
        engine.plan(target, victims=1, batch=1, restarts=1, budget=2**20, extra=(wide, 0))
    assert presets.grnn().cost(target, 1).beside == generators.Weights().footprint(target, 1, 5)


def test_images_that_no_generator_makes_are_refused() -> None:
    search = presets.grnn(steps=1, tv=0.0)
    with pytest.raises(SettingError, match="2 to 1024 pixels a side"):
        search.check(blank_target((1, 1, 20)), 1)
    with pytest.raises(SettingError, match="median filter works on pixels"):
        replace(search, moves=(moves.Median(every=3),))


@pytest.mark.parametrize("momentum", [0.0, 0.99])
def test_rmsprop_is_torchs(momentum: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    reference = x.clone().requires_grad_()
    theirs = torch.optim.RMSprop([reference], lr=0.03, momentum=momentum)
    ours, state = optimisers.RMSprop(lr=0.03, momentum=momentum), optimisers.RMSprop().init(x)
    for _ in range(20):
        slope = torch.randn_like(x)
        x, state = ours.step(x, slope, torch.ones(3, dtype=x.dtype), state, **ALONG)
        reference.grad = slope
        theirs.step()
    assert torch.allclose(x, reference, atol=1e-12)
    moved, _ = ours.step(
        torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([1.0, 0.1]), ours.init(torch.zeros(2, 3)), **ALONG
    )
    assert torch.allclose(moved[0], 10 * moved[1])


def bowl(x: Tensor, names: Tensor) -> Tensor:
    """A quadratic with a minimum of its own for every candidate and curvatures from 1 to 100."""
    bends = torch.logspace(0, 2, x.shape[1], dtype=x.dtype)
    return (bends * (x - names[:, None].to(x)).square()).sum(1)


def minimise(x: Tensor, names: Tensor, leaves: dict[int, int]) -> dict[int, Tensor]:
    """CMA-ES on `bowl` for 120 steps; candidate n leaves the batch after leaves[n] of them."""
    optimiser, found = optimisers.CMAES(population=12), {}
    state = optimiser.init(x)
    for step in range(120):
        gone = torch.tensor([leaves.get(name, 120) == step for name in names.tolist()])
        found |= {int(names[i]): x[i] for i in gone.nonzero().flatten()}
        x, names, state = trees.rows((x, names, state), (~gone).nonzero().flatten())
        loss, here = bowl(x, names), names

        def evaluate(points: Tensor, who: Tensor, *, slopes: bool = True, here: Tensor = here) -> tuple[Tensor, Tensor]:
            assert not slopes
            return bowl(points, here[who]), torch.zeros_like(points)

        x, state = optimiser.step(x, torch.zeros_like(x), torch.ones(len(x)), state, loss=loss, evaluate=evaluate)
        assert (bowl(x, names) <= loss).all()
    return found | dict(zip(names.tolist(), x, strict=True))


def test_cma_es_finds_minima_whoever_else_is_in_the_batch_and_whoever_leaves() -> None:
    begin = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    np.random.seed(3)
    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    found = minimise(begin, torch.arange(4), leaves={1: 5, 0: 60})
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]
    assert float((found[1] - 1).abs().max()) > 1e-2  # it left too early
    for name in (2, 3):
        assert float((found[name] - name).abs().max()) < 1e-3
        assert torch.equal(minimise(begin[[name]], torch.tensor([name]), {})[name], found[name])


def test_cma_es_outlives_losses_that_are_not_finite_and_refuses_what_it_cannot_do() -> None:
    optimiser, x = optimisers.CMAES(population=6), torch.zeros(1, 3)

    def broken(points: Tensor, who: Tensor, *, slopes: bool = True) -> tuple[Tensor, Tensor]:
        loss = points.square().sum(1)
        loss[0], loss[1] = torch.nan, torch.inf
        return loss, torch.zeros_like(points)

    state = optimiser.init(x)
    for _ in range(5):
        x, state = optimiser.step(x, x, torch.ones(1), state, loss=torch.full((1,), torch.inf), evaluate=broken)
        assert x.isfinite().all()
    with pytest.raises(SettingError, match="population of at least 4"):
        optimisers.CMAES(population=2)
    with pytest.raises(SettingError, match="sigma above 0"):
        optimisers.CMAES(sigma=0.0)
    with pytest.raises(SettingError, match="at least 2 unknowns"):
        optimiser.init(torch.zeros(2, 1))


def some(target: Target, truth: Tensor) -> Observation:
    return observe(target, truth, torch.arange(len(truth))[:, None] % 5, granted=False)


def test_grnn_fits_images_and_labels_of_a_tiny_target_whoever_else_is_in_the_batch() -> None:
    target = tiny_target()
    truth = torch.rand(3, 1, 1, 6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    seen = some(target, truth)
    search = presets.grnn(steps=250, tv=0.0, width=4, lr=3e-4)
    found, blind = search(target, [seen], seed=0), search.blind()(target, [seen], seed=0)
    error, floor = ((run.images - truth).square().mean((1, 2, 3, 4)) for run in (found, blind))
    assert (error < 0.15 * floor).all()
    assert found.labels is not None
    assert torch.equal(found.labels[:, 0], torch.arange(3))
    one = Observation({n: g[1:2] for n, g in seen.gradient.items()}, 1, seen.ids[1:2])
    alone = replace(search, stop=replace(search.stop, steps=20))
    together = alone(target, [seen], seed=0)
    assert torch.allclose(together.images[1], alone(target, [one], seed=0).images[0], atol=1e-8)
    assert float(found.images.min()) >= 0
    assert float(found.images.max()) <= 1


class Faces(nn.Module):
    """A generator of the user's own: 36 pixels of 4 numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layer = nn.Linear(4, 36)

    def forward(self, latent: Tensor) -> Tensor:
        made: Tensor = self.layer(latent).sigmoid().reshape(-1, 1, 6, 6)
        return made


def faces() -> generators.Generator:
    return generators.Generator(network=Faces(), latent=4, shape=(1, 6, 6), name="faces")


@pytest.mark.parametrize(
    "settings_", [{"by": "cma", "population": 10, "steps": 50}, {"by": "adam", "steps": 100}], ids=str
)
def test_ggl_finds_images_that_its_generator_can_make(settings_: dict[str, object]) -> None:
    target, own = tiny_target(), faces()
    latents = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    truth = own.network(latents).detach().double()[:, None]
    seen = some(target, truth)
    search = presets.ggl(generator=own, kl=0.0, restarts=2, **settings_)  # type: ignore[arg-type]
    found, again = (search(target, [seen], seed=0) for _ in range(2))
    assert torch.equal(found.images, again.images)
    assert float((found.images - truth).square().mean()) < 1e-4
    assert found.labels is not None
    assert torch.equal(found.labels[:, 0], torch.arange(3))
    one = Observation({n: g[1:2] for n, g in seen.gradient.items()}, 1, seen.ids[1:2])
    assert torch.allclose(search(target, [one], seed=0).images[0], found.images[1], atol=1e-4)
    assert repr(search).count("faces") == 1
    with pytest.raises(SettingError, match="faces makes images of 1x6x6, but the victims' are 1x28x28"):
        search.check(blank_target((1, 28, 28)), 1)


def test_a_population_counts_as_candidates_and_a_latent_has_its_prior() -> None:
    search = presets.ggl(generator=faces(), restarts=3)
    cost = search.cost(tiny_target(), 2)
    assert (cost.restarts * cost.candidates, cost.beside) == (150, 2 * 4 * 36)
    assert presets.ggl(generator=faces(), by="adam").cost(tiny_target(), 2).candidates == 1
    field = generators.Latent(generator=faces(), kl=0.1).field(tiny_target(), 2, 0)
    z = torch.randn(3, 8, dtype=torch.float64)
    for n, found in enumerate(torch.as_tensor(field.loss(z))):
        laws = [torch.distributions.Normal(row.mean(), row.std(correction=0)) for row in z[n].reshape(2, 4)]
        standard = torch.distributions.Normal(torch.zeros(()).double(), torch.ones(()).double())
        away = sum(torch.distributions.kl_divergence(law, standard) for law in laws)
        assert float(found) == pytest.approx(0.1 * float(away), rel=1e-6)
    assert torch.equal(field.boxed(z), z)


def test_a_loss_without_slopes_is_the_loss_with_them() -> None:
    target = tiny_target()
    seen = some(target, torch.rand(2, 1, 1, 6, 6, dtype=torch.float64))
    for likelihood in (likelihoods.SquaredL2(), likelihoods.Cosine(), degraded.Zeroed()):
        objective = Objective(
            Unknowns(target, 1, generators.Latent(generator=faces()), 0, searched=False),
            seen,
            likelihood=likelihood,
            only=[masks.Mean()],
            secrets=Resampled(),
        )
        x, owner, given_ = torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 1, 1, 0]), torch.zeros(4, 1).long()
        full, cheap = (
            objective(x, given_, owner, Draws({}, None), Terms(priors.TotalVariation()), restart=owner, slopes=slopes)
            for slopes in (True, False)
        )
        assert torch.allclose(full.loss, cheap.loss)
        assert torch.allclose(full.match, cheap.match)
        assert full.slope.abs().max() > 0 == cheap.slope.abs().max()


def products(simulated: Tensor, observed: Tensor) -> Products:
    """(N, P, entries) twice -> products."""
    return Products(
        (simulated * observed).sum(-1),
        simulated.square().sum(-1),
        observed.square().sum(-1),
        (simulated - observed).square().sum(-1),
    )


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), bound=st.floats(0.1, 20))
def test_clipping_is_fitted_by_the_observed_norm(seed: int, bound: float) -> None:
    g, other = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    norm = g.flatten(1).norm(dim=1)[:, None, None]
    observed = g * (bound / norm).clamp_max(1)
    likelihood = degraded.Clipped()
    assert torch.allclose(likelihood.loss(products(g, observed)), torch.zeros(4).double(), atol=1e-12)
    c = (observed.flatten(1).norm(dim=1) / other.flatten(1).norm(dim=1)).clamp_max(1)[:, None, None]
    plain = (c * other - observed).square().sum((1, 2))
    assert torch.allclose(likelihood.loss(products(other, observed)), plain, atol=1e-10)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), rate=st.floats(0, 0.95))
def test_pruning_and_soteria_are_fitted_by_the_observed_zeros(seed: int, rate: float) -> None:
    g, other = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    g[:, ::7] = 0  # as ReLU leaves them
    pruned = torch.where(g.abs() >= g.abs().quantile(rate, 1, keepdim=True), g, 0)
    assert torch.allclose(degraded.Zeroed(by="rate").entry_loss(g, pruned), torch.zeros(3).double())
    hidden = g * (torch.arange(40) % 8 < 5)  # columns
    assert torch.allclose(degraded.Zeroed(by="places").entry_loss(g, hidden), torch.zeros(3).double())
    for n in range(3):
        drop = int((pruned[n] == 0).sum())
        small = np.argsort(np.abs(other[n].numpy()))[:drop]
        kept = other[n].numpy().copy()
        kept[small] = 0
        found = float(degraded.Zeroed(by="rate").entry_loss(other, pruned)[n])
        assert found == pytest.approx(float(((kept - pruned[n].numpy()) ** 2).sum()))


def test_a_way_to_drop_entries_must_be_known_and_grnns_distance_is_the_sum_of_two() -> None:
    with pytest.raises(SettingError, match="way to drop entries"):
        degraded.Zeroed(by="size")  # type: ignore[arg-type]
    a, b = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    apart = (a - b).flatten(1).norm(dim=1)
    assert torch.allclose(likelihoods.L2AndSquare().loss(products(a, b)), apart.square() + apart)
    same = b.clone().requires_grad_()
    (slope,) = torch.autograd.grad(likelihoods.L2AndSquare().loss(products(same, b)).sum(), same)
    assert slope.isfinite().all()
    assert torch.allclose(masks.Mean().weights(tiny_target(), torch.rand(2, 4)), torch.full((2, 4), 0.25))


def stripes(n: int) -> Tensor:
    """Images (n, 1, 8, 8) with a bright row each."""
    at = torch.randint(0, 8, (n,), generator=torch.Generator().manual_seed(0))
    return torch.eye(8)[at][:, None, :, None].expand(n, 1, 8, 8).clone()


TRAINING = generators.Training(latent=4, width=4, epochs=8, batch=16, lr=1e-2)


def test_a_trained_generator_learns_and_comes_back_from_its_file(tmp_path: Path) -> None:
    steps: list[float] = []
    trained = generators.train_generator(
        stripes(320), TRAINING, lambda done, note="", *, total=None: steps.append(done / (total or 1))
    )
    assert steps == sorted(steps)
    assert steps[-1] == 1
    error = (trained.rebuilt - trained.originals).square().mean()
    floor = (stripes(320).mean(0) - trained.originals).square().mean()
    assert error < 0.3 * floor
    place = tmp_path / "g.safetensors"
    generators.save_generator(trained.network, place, shape=(1, 8, 8), latent=4, width=4, about="stripes")
    assert [p.name for p in tmp_path.iterdir()] == ["g.safetensors"]
    back = generators.load_generator(place)
    z = torch.randn(5, 4)
    assert torch.equal(back.network(z), trained.network(z))
    assert (back.latent, back.shape) == (4, (1, 8, 8))
    assert repr(back) == repr(generators.load_generator(str(place)))
    search = presets.ggl(generator=str(place), steps=2, population=4)
    target = blank_target((1, 8, 8))
    assert search(target, [some(target, stripes(2)[:, None])], seed=0).images.shape == (2, 1, 1, 8, 8)


def test_training_is_the_same_for_the_same_seed_and_refuses_too_few_images() -> None:
    quick = replace(TRAINING, epochs=1)
    first, again, other = (generators.train_generator(stripes(64), replace(quick, seed=s)) for s in (0, 0, 1))
    z = torch.randn(2, 4)
    assert torch.equal(first.network(z), again.network(z))
    assert not torch.equal(first.network(z), other.network(z))
    with pytest.raises(DataError, match="at least 16 images"):
        generators.train_generator(stripes(10), quick)
    with pytest.raises(SettingError, match="batch of at least 2"):
        replace(quick, batch=1)


def test_files_that_hold_no_generator_are_refused_in_one_line(tmp_path: Path) -> None:
    network = generators.Network(shape=(1, 8, 8), latent=4, width=2, trained=True)
    good = tmp_path / "good.safetensors"
    generators.save_generator(network, str(good), shape=(1, 8, 8), latent=4, width=2, about="nothing")
    tensors = load_file(good)
    about = {
        "format": "dosimeter generator 1",
        "latent": "4",
        "width": "2",
        "channels": "1",
        "height": "8",
        "across": "8",
    }
    poisoned = tensors | {"first.weight": torch.full_like(tensors["first.weight"], torch.nan)}
    few = {name: t for name, t in tensors.items() if name != "first.bias"}
    cases: dict[str, tuple[dict[str, Tensor], dict[str, str] | None]] = {
        "holds no generator": (tensors, None),
        "settings in its metadata": (tensors, about | {"width": "many"}),
        "make no generator": (tensors, about | {"latent": "99999999"}),
        "first at 'first.weight'": (tensors, about | {"latent": "5"}),
        "first at 'first.bias'": (few, about),
        "does not fit": (poisoned, about),
    }
    for words, (content, metadata) in cases.items():
        save_file(content, tmp_path / "bad.safetensors", metadata)
        with pytest.raises(ModelError, match=words) as refused:
            generators.load_generator(tmp_path / "bad.safetensors")
        assert "\n" not in str(refused.value)
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:-100])
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        generators.load_generator(tmp_path / "cut.safetensors")
    with pytest.raises(ModelError, match="There is no generator"):
        presets.ggl(generator=str(tmp_path / "none.safetensors"))
    for place, words in (
        (good, "there already"),
        (tmp_path / "a.pt", "ends in"),
        (tmp_path / "no/a.safetensors", "folder"),
    ):
        with pytest.raises(OutputError, match=words):
            generators.check_place(place, overwrite=False)
    generators.check_place(good, overwrite=True)


def test_grnn_and_ggl_equal_their_printed_settings() -> None:
    grnn, ggl = presets.grnn(), presets.ggl(generator=faces())
    assert grnn.optimiser == optimisers.RMSprop(lr=1e-4, momentum=0.99)
    assert (grnn.stop.steps, grnn.likelihood, grnn.labels) == (1000, likelihoods.L2AndSquare(), labels.Joint())
    assert grnn.prior == 2e-3 * priors.TotalVariation(power=2)
    assert grnn.space == generators.Weights(width=16, noise=128)
    assert (ggl.stop.steps, ggl.optimiser) == (500, optimisers.CMAES(population=50))
    assert (ggl.likelihood, ggl.only, ggl.labels) == (likelihoods.SquaredL2(), masks.Mean(), labels.FromLastLayer())
    assert presets.ggl(generator=faces(), fit="clip").likelihood == degraded.Clipped()
    assert presets.ggl(generator=faces(), fit="prune").likelihood == degraded.Zeroed(by="rate")
    assert presets.ggl(generator=faces(), fit="soteria").likelihood == degraded.Zeroed(by="places")
    with pytest.raises(SettingError, match="value of fit"):
        presets.ggl(generator=faces(), fit="noise")  # type: ignore[arg-type]
