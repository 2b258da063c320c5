"""Every defense: what it leaves as it is, what it does by its statistics, and what it refuses."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor, nn

from dosimeter import clients, models, rng
from dosimeter import defenses as d
from dosimeter.attacks.search import treatments
from dosimeter.defenses import Defense, Moment
from dosimeter.defenses.ats import Scored, transform
from dosimeter.defenses.entries import prune, quantise
from dosimeter.defenses.operations import AUTOAUGMENT, VARIANTS
from dosimeter.defenses.ppp import before_bottleneck
from dosimeter.defenses.soteria import feature_scores
from dosimeter.errors import SettingError
from dosimeter.types import Target
from small import Halved, network, target_of

SHAPE = (1, 16, 16)
LAW = settings(max_examples=30, deadline=None, derandomize=True)


def batch(n: int = 3) -> tuple[Tensor, Tensor]:
    stream = rng.stream(0, "batch")
    return torch.rand(n, *SHAPE, generator=stream, dtype=torch.float64), torch.arange(n) % 5


def send(defense: Defense, seed: int = 0, n: int = 3) -> tuple[dict[str, Tensor], dict[str, Tensor], Target]:
    """The update before and after the defense acted on it, and what the client ran."""
    with rng.scoped(0, "weights"):
        target = target_of(defense.on_model(network(), SHAPE), SHAPE)
    images, labels = defense.on_batch(*batch(n), rng.stream(seed, "images"))
    drawn = clients.draw_secrets(target, n, rng.stream(seed, "secrets"))
    target = replace(target, drawn=drawn | dict(defense.draw(target, n, rng.stream(seed, "client"))))
    plain = clients.gradient(target, images, labels)
    moment = Moment(batch=n, target=target, images=images, labels=labels)
    return plain, dict(defense.on_gradient(plain, moment, rng.stream(seed, "defense"))), target


IDENTITIES = [
    d.NoDefense(),
    d.GaussianNoise(sigma=0.0),
    d.LaplaceNoise(scale=0.0),
    d.Pruning(ratio=0.0),
    d.RandomPruning(rate=0.0),
    d.Dropout(rate=0.0),
    d.Soteria(rate=0.0),
    d.NoDefense() | d.GaussianNoise(sigma=0.0),
]


@pytest.mark.parametrize("defense", IDENTITIES, ids=repr)
def test_a_defense_of_no_strength_is_the_identity(defense: Defense) -> None:
    plain, sent, _ = send(defense)
    bare, *_ = send(d.NoDefense())
    assert all(torch.equal(sent[name], g) and torch.equal(plain[name], g) for name, g in bare.items())


@pytest.mark.parametrize("make", d.BY_NAME.values(), ids=d.BY_NAME)
def test_names_shapes_and_precision_survive_and_the_stream_decides(make: type[Defense]) -> None:
    plain, sent, _ = send(make())
    assert {n: (g.shape, g.dtype) for n, g in sent.items()} == {n: (g.shape, g.dtype) for n, g in plain.items()}
    again, other = send(make())[1], send(make(), seed=1)[1]
    assert all(torch.equal(sent[name], again[name]) for name in sent)
    drawing = {"noise", "laplace", "random-prune", "dp-sgd", "precode", "ppp", "cvb", "dropout", "fedkl", "ats"}
    name = next(key for key, value in d.BY_NAME.items() if value is make)
    assert any(not torch.equal(sent[key], other[key]) for key in sent) == (name in drawing)


@pytest.mark.parametrize(
    ("defense", "deviation"), [(d.GaussianNoise(sigma=0.3), 0.3), (d.LaplaceNoise(scale=0.3), 0.3 * 2**0.5)], ids=repr
)
def test_noise_has_its_deviation_and_no_mean(defense: Defense, deviation: float) -> None:
    clean = {"w": torch.zeros(200_000)}
    noisy = defense.on_gradient(clean, Moment(), rng.stream(0, "noise"))["w"]
    assert float(noisy.std()) == pytest.approx(deviation, rel=0.01)
    assert abs(float(noisy.mean())) < 0.004
    spread = {"GaussianNoise": 0.3 * (2 / math.pi) ** 0.5, "LaplaceNoise": 0.3}[type(defense).__name__]
    assert float(noisy.abs().mean()) == pytest.approx(spread, rel=0.01)


@LAW
@given(ratio=st.floats(0, 1), size=st.integers(1, 60), seed=st.integers(0, 99))
def test_pruning_keeps_the_largest(ratio: float, size: int, seed: int) -> None:
    g = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    kept = prune(g, ratio)
    gone = kept == 0
    assert int(gone.sum()) == round(ratio * size)
    assert torch.equal(kept[~gone], g[~gone])
    if gone.any() and not gone.all():
        assert g[gone].abs().max() <= g[~gone].abs().min()


def test_random_pruning_drops_its_share_whatever_the_size() -> None:
    g = {"w": torch.linspace(0.1, 1, 100_000)}
    gone = d.RandomPruning(rate=0.3).on_gradient(g, Moment(), rng.stream(0, "mask"))["w"] == 0
    assert float(gone[:50_000].float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(gone[50_000:].float().mean()) == pytest.approx(0.3, abs=0.01)


@LAW
@given(bits=st.integers(2, 12), seed=st.integers(0, 99))
def test_quantisation_is_within_half_a_step(bits: int, seed: int) -> None:
    g = torch.randn(500, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    step = float(g.abs().max()) / (2 ** (bits - 1) - 1)
    sent = quantise(g, bits)
    assert len(sent.unique()) <= 2**bits - 1
    assert float((sent - g).abs().max()) <= step / 2 * (1 + 1e-9)
    assert torch.equal(quantise(torch.zeros(3), bits), torch.zeros(3))


def test_ppp_perturbs_what_lies_before_the_bottleneck_and_nothing_else() -> None:
    for defense in (d.Ppp(k=4, sigma=0.1), d.Ppp(k=4, prune=0.9), d.Ppp(k=4, sigma=0.1, position=2)):
        plain, sent, target = send(defense)
        changed = {name for name in plain if not torch.equal(plain[name], sent[name])}
        assert changed == before_bottleneck(target.model, SHAPE, defense)
        layers = {name.split(".")[0] for name in changed}
        assert layers == ({"1", "3"} if defense.position else {"1", "3", "6"})


def test_soteria_hides_columns_of_one_weight_by_the_jacobian() -> None:
    defense = d.Soteria(rate=0.5)
    plain, sent, target = send(defense)
    assert [name for name in plain if not torch.equal(plain[name], sent[name])] == ["6.weight"]
    scores = torch.zeros(24, dtype=torch.float64)
    for image in batch()[0]:
        x = image[None].clone().requires_grad_()
        r = target.model[:6](x).flatten()  # type: ignore[index]
        for i in range(24):
            (slope,) = torch.autograd.grad(r[i], x, retain_graph=True)
            scores[i] += slope.norm() / r[i].abs().detach()
    assert torch.allclose(feature_scores(target, "6", batch()[0]), scores, rtol=1e-6)
    hidden = (sent["6.weight"] == 0).all(0)
    assert int(hidden.sum()) == 12
    assert scores[hidden].max() <= scores[~hidden].min()
    assert torch.equal(sent["6.weight"][:, ~hidden], plain["6.weight"][:, ~hidden])


def test_soteria_looks_at_features_without_changing_the_model() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(3))
    images = torch.rand(2, 1, 6, 6, dtype=torch.float64)
    model.double()(images)
    model[2].eval()  # as a user may have frozen it
    target = Target(model, F.cross_entropy, (1, 6, 6), torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = feature_scores(target, "4", images)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [layer.training for layer in model] == [True, True, False, True, True]
    assert torch.equal(found, feature_scores(target, "4", images))  # no dropout
    assert torch.allclose(found, sum(feature_scores(target, "4", image[None]) for image in images))


@pytest.mark.parametrize("clip", [0.05, 0.5, 100.0])
def test_opacus_clips_as_single_images_in_turn(clip: float) -> None:
    defense = d.DpSgd(clip=clip, sigma=0.0)
    _, sent, target = send(defense)
    total = {name: torch.zeros_like(g) for name, g in sent.items()}
    for image, label in zip(*batch(), strict=True):
        one = clients.gradient(target, image[None], label[None])
        norm = torch.stack([g.square().sum() for g in one.values()]).sum().sqrt()
        for name, g in one.items():
            total[name] += g * min(1.0, clip / float(norm)) / 3
    assert all(torch.allclose(sent[name], total[name], rtol=1e-4, atol=1e-9) for name in sent)
    simulated = clients.gradient(replace(target, step=clients.ClippedGradient(bound=clip)), *batch())
    assert all(torch.allclose(sent[name], simulated[name], rtol=1e-4, atol=1e-9) for name in sent)


def test_dp_noise_is_that_of_the_sum_and_epsilon_falls_with_it() -> None:
    quiet, loud = send(d.DpSgd(clip=2.0, sigma=0.0))[1], send(d.DpSgd(clip=2.0, sigma=3.0))[1]
    apart = torch.cat([(loud[name] - quiet[name]).flatten() for name in quiet])
    assert float(apart.std()) == pytest.approx(2.0 * 3.0 / 3, rel=0.1)
    spent = [d.DpSgd(sigma=sigma).epsilon() for sigma in (0.5, 1.0, 2.0)]
    assert spent == sorted(spent, reverse=True)
    assert d.DpSgd(sigma=0.0).epsilon() == math.inf
    # One step on all examples is the Gaussian mechanism: its bound lies above the exact one (Balle and Wang 2018).
    exact = 4.377  # of deviation 1 at delta 1e-5
    assert exact <= d.DpSgd(sigma=1.0, rate=1.0, steps=1).epsilon() < 1.3 * exact
    assert "epsilon" in d.DpSgd().facts()["differential privacy"]


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    target = target_of(d.Dropout(rate=0.3, position=2).on_model(network(), SHAPE), SHAPE)
    (name,) = target.secrets
    layer = target.model.get_submodule(name.rpartition(".")[0])
    layer.noise = torch.randn(1000, 24)
    kept = layer(torch.ones(1000, 24))
    assert float((kept == 0).float().mean()) == pytest.approx(0.3, abs=0.02)
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.8])
def test_dropout_at_the_mean_of_its_mask_is_the_model_without_it(rate: float) -> None:
    target = target_of(d.Dropout(rate=rate).on_model(network(), SHAPE), SHAPE)
    drawn = clients.draw_secrets(target, 3, rng.stream(0, "secrets"))
    images, labels = batch()
    plain = clients.gradient(target_of(network(), SHAPE), images, labels)
    for supposed in (treatments.Mean().values({}, drawn, {}), {}):  # or nothing was given yet
        found = clients.gradient(replace(target, drawn=supposed), images, labels)
        assert all(torch.allclose(found[name.replace("8.", "8.layer.")], g) for name, g in plain.items())


def test_ats_trains_on_what_pillow_makes_of_the_image() -> None:
    place = next(i for i, (name, _) in enumerate(AUTOAUGMENT) if name == "equalize")
    image = torch.rand(3, 8, 8)
    bytes_ = (image * 255).round().byte()
    expected = ImageOps.equalize(Image.fromarray(bytes_.permute(1, 2, 0).numpy()))
    changed = transform(image, (place,), rng.stream(0, "ats"), "autoaugment")
    found = (changed * 255).round().byte().permute(1, 2, 0).flatten()
    assert found.tolist() == list(expected.tobytes())
    assert {len(variant.operations) for variant in VARIANTS.values()} == {50}
    images, labels = batch()
    for place in range(50):
        variant = ("released", "autoaugment")[place % 2]
        ats = d.Ats(policy=f"{place}-{49 - place}", variant=variant)  # type: ignore[arg-type]
        many, same = ats.on_batch(images, labels, rng.stream(0, "ats"))
        assert many.shape == images.shape
        assert torch.equal(same, labels)
        assert 0 <= float(many.min()) <= float(many.max()) <= 1


def policies(half_trained: nn.Module, untrained: nn.Module, **settings: float) -> list[Scored]:
    images, labels = batch(3)
    models_ = half_trained.double(), untrained.double()
    return d.search_policies(*models_, images, labels, candidates=6, rng=rng.stream(0, "search"), **settings)  # type: ignore[arg-type]


def test_the_search_for_policies_puts_the_least_leaking_first() -> None:
    found = policies(network(), network(), keep=1.0)
    assert len(found) == 6
    assert [s.leakage for s in found] == sorted(s.leakage for s in found)
    assert all(len(s.policy) == 3 and -1 <= s.leakage <= 1 and math.isfinite(s.accuracy) for s in found)
    assert d.Ats(policy=found[0].words).policies() == (found[0].policy,)


def test_policies_of_models_that_work_in_place() -> None:
    one, other = (policies(*(Halved(network(), in_place=way) for _ in range(2))) for way in (True, False))
    assert one == other


def test_the_search_for_policies_leaves_out_those_that_cost_accuracy() -> None:
    every, kept = (policies(network(), network(), keep=keep) for keep in (1.0, 0.4))
    most = sorted(every, key=lambda s: -s.accuracy)[:3]
    assert {s.policy for s in kept} == {s.policy for s in most}
    assert {s.accuracy for s in kept} == {s.accuracy for s in most}
    assert [s.leakage for s in kept] == sorted(s.leakage for s in kept)


def test_leakage_is_scored_on_the_trained_and_accuracy_on_the_untrained_model() -> None:
    dead = network()
    for p in dead.parameters():
        p.data.zero_()
    both = {s.policy: s for s in policies(network(), network(), keep=1.0)}
    for s in policies(network(), dead, keep=1.0):
        assert s.accuracy == pytest.approx(-3 * (math.log(1e-5) + 1e5))  # no slope, so all correlations are 0
        assert both[s.policy].accuracy > s.accuracy
    for s in policies(dead, network(), keep=1.0):
        assert s.accuracy == both[s.policy].accuracy
        assert s.leakage == pytest.approx(1.0)  # only the last bias has a slope, the same for every image


def test_bias_removal_takes_the_biases_of_fully_connected_layers_only() -> None:
    model = d.NoBias().on_model(network(), SHAPE)
    assert {name for name, _ in model.named_parameters() if name.endswith("bias")} == {"1.bias", "3.bias"}


def test_defenses_act_from_left_to_right() -> None:
    class Double(Defense):
        def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
            return {name: 2 * g for name, g in gradient.items()}

    class AddOne(Defense):
        def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
            return {name: g + 1 for name, g in gradient.items()}

    plain, sent, _ = send(Double() | AddOne())
    assert torch.equal(sent["8.bias"], 2 * plain["8.bias"] + 1)
    plain, sent, _ = send(AddOne() | Double())
    assert torch.equal(sent["8.bias"], 2 * (plain["8.bias"] + 1))
    assert len((Double() | AddOne() | Double()).parts) == 3  # type: ignore[attr-defined]
    assert (d.Precode() | d.DpSgd(clip=2.0) | Double()).clips() == 2.0
    assert (Double() | AddOne()).clips() is None


class Shy(d.Dropout):
    """A defense of a user's own, made from another."""

    def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
        return {name: g / 2 for name, g in gradient.items()}


@pytest.mark.parametrize(
    "before",
    [
        d.Pruning(ratio=0.99),
        d.GaussianNoise(sigma=10.0),
        d.Ppp(),
        d.Soteria(),
        d.DpSgd(),
        Shy(),
        d.Chain(parts=(d.NoDefense(), d.Quantisation())),
        d.Around(inner=d.LaplaceNoise()),
    ],
    ids=repr,
)
def test_what_dp_sgd_would_discard_is_refused_before_it(before: Defense) -> None:
    with pytest.raises(SettingError, match="from the batch") as refusal:
        before | d.DpSgd()
    assert "\n" not in str(refusal.value)
    with pytest.raises(SettingError, match="from the batch"):
        d.Precode() | d.Chain(parts=(before, d.Dropout(), d.DpSgd()))


@pytest.mark.parametrize(
    "before", [d.Precode(), d.Cvb(), d.KeyLock(), d.Dropout(), d.NoBias(), d.Ats(), d.NoDefense()], ids=repr
)
def test_what_changes_no_gradient_may_stand_before_dp_sgd(before: Defense) -> None:
    assert (before | d.DpSgd(clip=3.0) | d.Pruning()).clips() == 3.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: d.GaussianNoise(sigma=-1.0), "at least 0, got -1"),
        (lambda: d.GaussianNoise(sigma=float("nan")), "at least 0, got nan"),
        (lambda: d.LaplaceNoise(scale=float("inf")), "at least 0, got inf"),
        (lambda: d.Pruning(ratio=1.5), r"in \[0, 1\], got 1.5"),
        (lambda: d.RandomPruning(rate=-0.1), r"in \[0, 1\], got -0.1"),
        (lambda: d.Quantisation(bits=1), "bits of 2 to 16, got 1"),
        (lambda: d.DpSgd(clip=0.0), "above 0, got 0"),
        (lambda: d.DpSgd(sigma=-1.0), "at least 0, got -1"),
        (lambda: d.DpSgd(rate=0.0), "sampling rate"),
        (lambda: d.Ppp(sigma=-1.0), "at least 0, got -1"),
        (lambda: d.Ppp(prune=2.0), r"in \[0, 1\], got 2"),
        (lambda: d.Dropout(rate=1.0), "got 1.0"),
        (lambda: d.Soteria(rate=1.5), "got 1.5"),
        (lambda: d.Soteria(layer="1").on_model(network(), SHAPE), "fully connected layer"),
        (lambda: d.Ats(policy="7-x"), "joined by -"),
        (lambda: d.Ats(policy="7-50"), "joined by -"),
        (lambda: d.Ats(variant="paper"), "released"),  # type: ignore[arg-type]
        (lambda: policies(network(), network(), keep=0.0), "got 3, 6, 3 and 0.0"),
        (lambda: d.NoBias().on_model(nn.Sequential(nn.Conv2d(1, 2, 3)), SHAPE), "has none"),
        (lambda: d.DpSgd().on_model(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), SHAPE), "group norm"),
        (lambda: d.Precode(k=99).on_model(network(), SHAPE), "wider than the 12 numbers"),
        (lambda: d.Precode(k=0), "at least 1, got 0"),
        (lambda: d.Precode(position=0), "position of at least 1, got 0"),
        (lambda: d.Cvb(position=(1, 0)), "position of at least 1, got 0"),
        (lambda: d.Cvb(beta=-1.0), "at least 0, got -1"),
    ],
)
def test_unusable_settings_are_refused_with_the_reason(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SettingError, match=words):
        make()


def test_the_loss_of_a_batch_under_dp_counts_penalties() -> None:
    defense = d.Precode(k=4, beta=0.5) | d.DpSgd(clip=1e6, sigma=0.0)
    plain, sent, target = send(defense)
    assert target.loss is F.cross_entropy
    assert all(torch.allclose(sent[name], plain[name], rtol=1e-5, atol=1e-9) for name in plain)


def test_soteria_leaves_layers_of_tokens_alone() -> None:
    shape, small = (3, 16, 16), {"depth": 1, "width": 16, "heads": 2}
    model = models.build("vit", shape=shape, classes=4, mean=(0.5,), std=(0.25,), seed=0, settings=small)
    path = d.Soteria().defended(model, shape)
    last = model.get_submodule(path)
    assert isinstance(last, nn.Linear)
    assert last.out_features == 4  # the first that sees whole images is the last
    assert feature_scores(target_of(model, shape), path, torch.rand(1, *shape, dtype=torch.float64)).shape == (
        last.in_features,
    )
    tokens = next(name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not last)
    with pytest.raises(SettingError, match="fully connected layer"):
        d.Soteria(layer=tokens).on_model(model, shape)
