"""What a dose says, where the truth is known."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import dosimeter as dm
from dosimeter.auditing import Resources, Updates
from dosimeter.channel import Channel, Clip, Noise, Rounding
from dosimeter.cli import app
from dosimeter.doses import Doses, Images, Show, White, algebra, bounds, channels, dose, over_noise, plan_of
from dosimeter.errors import SettingError
from dosimeter.task import load_task
from dosimeter.types import Victims
from small import network

SHAPE = (1, 4, 4)


MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Sigmoid(), nn.Linear(8, 10))
"""


def own(folder: Path) -> str:
    """A small model of the user's, in words."""
    (folder / "mine.py").write_text(MODEL)
    return f"{folder / 'mine.py'}:make"


def victims_of(images: Tensor, classes: int = 5) -> Victims:
    """One image an update, or (V, B, ...) given as such."""
    images = images if images.ndim == 5 else images[:, None]
    many, batch = images.shape[:2]
    places = torch.arange(many * batch).reshape(many, batch)
    return Victims(
        images, places % classes, places, tuple(f"test:{'+'.join(map(str, row.tolist()))}" for row in places)
    )


def linear() -> nn.Module:
    """A network whose gradient is linear in the image under a loss that is linear in its output."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))


def slope(output: Tensor, _labels: Tensor) -> Tensor:
    return (output * torch.tensor([1.0, 2.0, -2.0]).to(output)).sum(1).mean()


def small(defense: str, *, images: int = 1, **more: object) -> Doses:
    torch.manual_seed(1)
    victims = victims_of(torch.rand(images, 1, 16, 16))
    return dose(network(), victims, defense=defense, show=Show("none", 0), **more)  # type: ignore[arg-type]


def test_a_linear_channel_has_its_closed_form() -> None:
    """g = c x^T + e: every pixel is measured with a precision of |c|^2 / sigma^2, whatever the image."""
    image = torch.rand(1, *SHAPE)
    found = dose(linear(), victims_of(image), defense="noise:sigma=0.5", loss=slope, show=Show("none"))
    precision, prior = 9 / 0.5**2, 1 / 0.25**2
    each = found.images[0]
    assert each.determined == each.white == 16
    assert each.bits == pytest.approx(8 * math.log2(1 + precision / prior))
    assert each.psnr == pytest.approx(10 * math.log10(prior + precision))
    assert each.unbiased == pytest.approx(10 * math.log10(precision))
    off = float((image.double() - 0.5).square().mean()) * prior**2 + precision
    assert each.here == pytest.approx(-10 * math.log10(off / (prior + precision) ** 2))
    hidden = dose(linear(), victims_of(torch.rand(1, *SHAPE)), defense="noise:sigma=0.8", loss=slope, show=Show("none"))
    assert hidden.images[0].determined == 0
    assert hidden.images[0].unbiased is None


def test_the_best_reader_reaches_what_the_dose_says_and_no_other_more() -> None:
    """Of images from the prior itself; the posterior mean is the best that there is."""
    c, sigma, rng = torch.tensor([1.0, 2.0, -2.0]).double(), 0.5, torch.Generator().manual_seed(0)
    x = 0.5 + 0.25 * torch.randn(20_000, 16, generator=rng, dtype=torch.float64)
    g = torch.einsum("m,nk->nmk", c, x) + sigma * torch.randn(20_000, 3, 16, generator=rng, dtype=torch.float64)
    plain = torch.einsum("m,nmk->nk", c, g) / 9
    predicted = small_linear(sigma)
    reached = [
        algebra.psnr(float((0.5 + share * (plain - 0.5) - x).square().mean())) for share in torch.linspace(0.3, 1, 15)
    ]
    assert max(reached) == pytest.approx(predicted, abs=0.05)
    assert max(reached) < predicted + 0.05


def small_linear(sigma: float) -> float:
    found = dose(linear(), victims_of(torch.rand(1, *SHAPE)), defense=f"noise:sigma={sigma}", loss=slope)
    assert found.images[0].psnr is not None
    return found.images[0].psnr


def test_laplace_noise_counts_by_its_fisher_information() -> None:
    assert small("laplace:scale=0.01").images[0].bits == pytest.approx(small("noise:sigma=0.01").images[0].bits)


def test_random_masks_count_in_expectation() -> None:
    half = small("random-prune:rate=0.5|noise:sigma=0.01").images[0]
    assert half.bits == pytest.approx(small(f"noise:sigma={0.01 * math.sqrt(2)}").images[0].bits)


def test_more_noise_tells_less_and_secrets_hide_no_more_than_they_add() -> None:
    bits = [small(f"noise:sigma={sigma}").images[0].bits for sigma in (1e-4, 1e-2, 1.0)]
    assert bits == sorted(bits, reverse=True)
    secret = small("precode:k=3|noise:sigma=1e-2").images[0]
    assert [each.numbers for each in secret.secrets.values()] == [3]


def test_rounds_add_up() -> None:
    """Two updates with noise of sigma are one with sigma / sqrt(2)."""
    twice = small("noise:sigma=0.01", updates=Updates(rounds=2)).images[0]
    assert twice.bits == pytest.approx(small(f"noise:sigma={0.01 / math.sqrt(2)}").images[0].bits)


def test_eliminating_is_leaving_out_of_the_posterior() -> None:
    torch.manual_seed(0)
    factor = torch.randn(12, 9, dtype=torch.float64)
    matrix, kept = factor.T @ factor, torch.tensor([0, 2, 3, 7])
    left = algebra.eliminated(matrix, kept, torch.full((5,), 2.0, dtype=torch.float64))
    prior = torch.full((9,), 2.0, dtype=torch.float64)
    prior[kept] = 0
    whole = torch.linalg.inv(matrix + torch.diag(prior))[kept][:, kept]
    torch.testing.assert_close(torch.linalg.inv(left), whole)


@pytest.mark.parametrize("seed", range(5))
def test_inertia_counts_eigenvalues(seed: int) -> None:
    torch.manual_seed(seed)
    factor = torch.randn(40, 40, dtype=torch.float64)
    matrix = factor + factor.T
    assert algebra.above(matrix) == int((torch.linalg.eigvalsh(matrix) > 0).sum())


def test_images_of_a_batch_are_told_apart_with_cross_terms() -> None:
    """The images of a batch tell on each other: each is worse known than if the other were known."""
    torch.manual_seed(1)
    both = torch.rand(1, 2, 1, 16, 16)
    found = dose(network(), victims_of(both), defense="noise:sigma=1e-3", show=Show("none", 0))
    assert [each.place for each in found.images] == [0, 1]
    # Of the mean over two images each counts half, so alone it is seen through twice the noise.
    alone = dose(network(), victims_of(both[:, :1]), defense="noise:sigma=2e-3", show=Show("none", 0))
    assert found.images[0].determined < alone.images[0].determined
    assert (found.images[0].bits or 0) < (alone.images[0].bits or 0)


def test_a_tensor_alone_tells_no_more_than_all_and_all_but_one_no_more_either() -> None:
    torch.manual_seed(1)
    found = dose(network(), victims_of(torch.rand(1, 1, 16, 16)), defense="noise:sigma=1e-3", show=Show("worst"))
    told = found.worst.tensors
    assert set(told) == {name for name, _ in network().named_parameters()}
    assert all(0 <= each.alone <= found.worst.determined for each in told.values())
    assert all(0 <= each.without <= found.worst.determined for each in told.values())
    assert max(each.alone for each in told.values()) > 0
    pictures = next(iter(found.pictures.values()))
    assert {"original", "read", "map", "determined 1", "hidden 1"} <= set(pictures)
    assert all(image.shape == (1, 16, 16) and float(image.min()) >= 0 for image in pictures.values())


def test_dp_sgd_is_seen_through_its_clipping() -> None:
    pytest.importorskip("opacus")
    plain, clipped = small("noise:sigma=1e-2").images[0], small("dp-sgd:clip=0.01,sigma=1").images[0]
    loose = small("dp-sgd:clip=1e6,sigma=1e-8").images[0]
    assert (clipped.bits or 0) < (plain.bits or 0)
    assert loose.bits == pytest.approx(plain.bits)


def test_a_prior_of_images_knows_their_covariance() -> None:
    torch.manual_seed(0)
    mixing = torch.randn(16, 16) / 16
    public = (0.5 + torch.randn(2_000, 16) @ mixing).clamp(0, 1).reshape(-1, *SHAPE)
    found = dose(
        linear(), victims_of(public[:2]), prior=Images(images=public[2:]), defense="noise:sigma=0.5", loss=slope
    )
    white = dose(linear(), victims_of(public[:2]), prior=White(), defense="noise:sigma=0.5", loss=slope)
    assert (found.mean("psnr") or 0) > (white.mean("psnr") or 0)
    with pytest.raises(SettingError, match="at least 20 public images"):
        Images(images=public[:3]).known(16)


def test_what_is_not_linear_is_refused_with_the_reason() -> None:
    for defense, reason in (("ats", "changed images"), ("noise:sigma=0.1|prune", "depends on the noise")):
        with pytest.raises(SettingError, match=reason):
            small(defense)


def test_a_plan_is_the_smallest_noise_that_is_enough() -> None:
    torch.manual_seed(1)
    victims = victims_of(torch.rand(2, 1, 16, 16))
    found = plan_of(network(), victims, share=0.1, defense="noise:sigma=1e-3", prior=White())
    assert found.plan is not None
    sigma = found.plan["sigma"]
    enough = dose(network(), victims, defense=f"noise:sigma={sigma}", show=Show("none"))
    less = dose(network(), victims, defense=f"noise:sigma={sigma / 1.05}", show=Show("none"))
    assert enough.worst.share < 0.1 <= less.worst.share


def test_no_attack_beats_the_dose_with_a_prior_as_strong() -> None:
    """A search that knows the noise and the white prior itself, on images drawn from that prior."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, 5))
    images = (0.5 + 0.15 * torch.randn(6, *SHAPE)).clamp(0, 1)
    victims = victims_of(images)
    for sigma in (1e-4, 1e-2):
        predicted = dose(model, victims, defense=f"noise:sigma={sigma}", prior=White(std=0.15), show=Show("none"))
        reached = dm.audit(
            model, victims, attack="bayes:density=gaussian,steps=300", defense=f"noise:sigma={sigma}", seed=0
        )
        psnr = [record["psnr"] for record in reached.document()["records"]]
        spread = torch.tensor(psnr).std().item()
        assert sum(psnr) / len(psnr) <= (predicted.mean("psnr") or 0) + 2 * spread / math.sqrt(len(psnr))


def test_bottlenecks_hide_nothing_alone_and_more_with_noise_than_noise_does() -> None:
    """On the papers' own network: their draws are determined too, unless there is noise."""
    victims = dm.pick(dm.load("mnist-5k", size=32), 1, seed=0)
    model = load_task("cnn", "mnist-5k", seed=0).model

    def determined(defense: str) -> int:
        return dose(model, victims, defense=defense, show=Show("none", 0)).images[0].determined

    assert determined("precode:k=32|noise:sigma=1e-5") >= 0.95 * determined("noise:sigma=1e-5")
    assert determined("precode:k=32|noise:sigma=0.01") < 0.75 * determined("noise:sigma=0.01")


def test_the_command_says_it_in_a_table_and_keeps_it(tmp_path: Path) -> None:
    words = ["dose", "--model", own(tmp_path), "--defense", "noise:sigma=0.01", "--victims", "2", "--prior", "white"]
    ran = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run"), "--tensors", "none"])
    assert ran.exit_code == 0, ran.output
    assert "determines" in ran.output
    assert max(map(len, ran.output.split("report")[0].splitlines())) <= 80
    kept = json.loads((tmp_path / "run" / "dose.json").read_text())
    assert len(kept["images"]) == 2
    assert kept["images"][0]["dimensions"] == 784
    assert (tmp_path / "run" / "dose.html").is_file()
    assert list((tmp_path / "run" / "pictures").glob("*.png"))


def test_the_dose_over_noise_is_that_at_every_noise(tmp_path: Path) -> None:
    torch.manual_seed(1)
    victims = victims_of(torch.rand(1, 1, 16, 16))
    for each in over_noise(network(), victims, levels=(1e-3, 1e-1), defense="precode:k=3", prior=White()):
        one = small(f"precode:k=3|noise:sigma={each.sigma}").images[0]
        assert (each.determined, each.dimensions) == (one.determined, one.dimensions)
        assert each.bits == pytest.approx(one.bits)
    words = ["dose", "--model", own(tmp_path), "--victims", "1", "--prior", "white", "--noise", "0.001+0.1"]
    ran = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert ran.exit_code == 0, ran.output
    assert len(json.loads((tmp_path / "run" / "dose.json").read_text())["levels"]) == 2


def test_what_does_not_fit_is_estimated_with_its_error() -> None:
    torch.manual_seed(1)
    victims = victims_of(torch.rand(1, 1, 16, 16))
    how: dict[str, Any] = {"defense": "noise:sigma=1e-2", "show": Show("none", 0)}
    found = dose(network(), victims, **how, resources=Resources(budget=1000)).images[0]
    exact = dose(network(), victims, **how).images[0]
    assert not exact.error
    for figure, error in found.error.items():
        assert abs(getattr(found, figure) - getattr(exact, figure)) <= 3 * error + 0.5, figure
    with pytest.raises(SettingError, match="one update"):
        small("none", resources=Resources(budget=1000), updates=Updates(rounds=2))


def test_the_study_sets_attacks_beside_the_dose_and_goes_on(tmp_path: Path) -> None:
    words = ["study", "dose", "--only", own(tmp_path), "--data", "mnist-5k", "--victims", "2", "--steps", "2"]
    ran = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert ran.exit_code == 0, ran.output
    assert "left out" in ran.output  # bottlenecks, which have no place here
    kept = (tmp_path / "run" / "dose.csv").read_text()
    assert len(kept.splitlines()) == 1 + 2 * 6
    assert (tmp_path / "run" / "dose-noise.svg").is_file()
    (tmp_path / "run" / "dose.csv").write_text("".join(kept.splitlines(keepends=True)[:-3]))  # as if it had stopped
    again = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    said = " ".join(again.output.split())
    assert "none: 2 of 2 images" in said
    assert "1 of 2 images" not in said
    assert (tmp_path / "run" / "dose.csv").read_text() == kept


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    for words in (["--prior", "grey"], ["--plan", "share=2"], ["--tensors", "some"], ["--defense", "ats"]):
        ran = CliRunner().invoke(app, ["dose", "--model", own(tmp_path), "--out", str(tmp_path / "run"), *words])
        assert ran.exit_code == 2, words


def test_bounds_of_dp_sgd_are_theirs() -> None:
    """Without noise nothing is hidden, with much of it only the prior is left; Hayes et al. bound at least as well."""
    for kappa in (0.01, 0.1):
        for sigma in (0.3, 1.0, 3.0, 30.0):
            by_order, by_blow_up = bounds.renyi(kappa, sigma), bounds.blow_up(kappa, sigma)
            assert kappa < by_blow_up <= by_order <= 1
        assert bounds.blow_up(kappa, 1e4) == pytest.approx(kappa, rel=1e-2)
        assert bounds.renyi(kappa, 0.01) == 1
    assert bounds.blow_up(0.1, 2.0, updates=4) == bounds.blow_up(0.1, 1.0)
    assert bounds.multiplier((Clip(2.0), Noise("gaussian", 0.25)), batch=4) == 0.5
    assert bounds.bounds_of((Noise("gaussian", 0.25),), batch=4) == ()


def test_epsilon_is_that_of_gaussian_noise_and_bounds_as_the_blow_up_does_at_its_best_delta() -> None:
    """Over all delta, kappa e^eps + delta comes down to the blow-up function, and never below it."""
    for kappa, sigma, updates in ((0.01, 1.0, 1), (0.01, 3.0, 4), (0.1, 0.7, 1)):
        grid = torch.linspace(0, 12, 4000, dtype=torch.float64).tolist()
        found = [bounds.by_epsilon(kappa, e, bounds.delta_of(e, sigma, updates)) for e in grid]
        assert min(found) == pytest.approx(bounds.blow_up(kappa, sigma, updates), rel=1e-4)
        assert min(found) >= bounds.blow_up(kappa, sigma, updates) - 1e-9
        epsilon = bounds.epsilon_of(sigma, updates)
        assert bounds.delta_of(epsilon, sigma, updates) == pytest.approx(bounds.DELTA, rel=1e-6)
    # By quadrature of the hockey-stick divergence itself.
    x = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    one, other = (torch.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (1.0, 0.0))
    excess = float((one - math.e**0.5 * other).clamp_min(0).sum() * (x[1] - x[0]))
    assert bounds.delta_of(0.5, 1.0) == pytest.approx(excess, rel=1e-5)


def test_epsilon_is_no_more_than_an_accountant_says() -> None:
    accountants = pytest.importorskip("opacus.accountants")
    for sigma, updates in ((1.0, 1), (2.0, 10)):
        theirs = accountants.RDPAccountant()
        for _ in range(updates):
            theirs.step(noise_multiplier=sigma, sample_rate=1.0)
        said = theirs.get_epsilon(delta=bounds.DELTA)
        assert 0.8 * said < bounds.epsilon_of(sigma, updates) <= said


def test_dp_sgd_has_all_its_bounds_with_what_they_suppose() -> None:
    pytest.importorskip("opacus")
    found = small("dp-sgd:clip=0.01,sigma=1")
    names = [each.name for each in found.bounds]
    assert [name.split(",")[0] for name in names] == ["Balle et al. 2022"] * 2 + [
        "Hayes et al. 2023",
        "Guo et al. 2022",
    ]
    assert all(each.supposes for each in found.bounds)
    shares = [each.value for each in found.bounds[:3]]
    assert shares == sorted(shares, reverse=True)  # the more is known of the noise, the narrower
    assert found.bounds[3].value == found.images[0].fisher
    assert "dB" in found.bounds[3].words()


def test_rounding_counts_as_even_noise_and_no_noise_as_the_rounding_of_float32() -> None:
    g = {"w": torch.tensor([3.0, -4.0], dtype=torch.float64)}
    how = channels.seen(Channel((Rounding(0.2),)), g, batch=1)
    assert how.variance["w"] == pytest.approx(0.2**2 / 12)
    relative = channels.seen(Channel((Rounding(0.05, relative=True),)), g, batch=1)
    assert relative.variance["w"] == pytest.approx(how.variance["w"])  # of the largest, 4
    plain = channels.seen(Channel(()), g, batch=1)
    assert plain.variance["w"] == pytest.approx(12.5 * 2.0**-48)
    assert plain.plain == {"w"}
    coarse = small("quantise:bits=4").images[0]
    assert (coarse.bits or 0) < (small("quantise:bits=8").images[0].bits or 0)


def test_masks_of_dropout_are_unknowns() -> None:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(12, 5))
    found = dose(
        plain, victims_of(torch.rand(1, *SHAPE)), defense="dropout:rate=0.5|noise:sigma=0.01", show=Show(pictures=0)
    )
    assert sum(each.numbers for each in found.images[0].secrets.values()) > 0
    without = dose(plain, victims_of(torch.rand(1, *SHAPE)), defense="noise:sigma=0.01", show=Show(pictures=0))
    assert without.images[0].secrets == {}


def test_the_blow_up_is_the_power_of_the_best_test() -> None:
    """By simulation: of all sets of chance kappa without the image, the one that is likeliest with it."""
    drawn = torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sigma, kappa = 0.8, 0.05
    edge = (sigma * drawn).quantile(1 - kappa)
    reached = float((1 + sigma * drawn > edge).double().mean())
    assert bounds.blow_up(kappa, sigma) == pytest.approx(reached, abs=0.005)


def test_an_audit_says_how_attacks_stand_to_the_dose(tmp_path: Path) -> None:
    words = ["audit", "--model", own(tmp_path), "--attack", "ig", "--steps", "5", "--victims", "3", "--dose"]
    ran = CliRunner().invoke(app, [*words, "--defense", "noise:sigma=0.001", "--out", str(tmp_path / "run")])
    assert ran.exit_code == 0, ran.output
    assert "the dose is" in " ".join(ran.output.replace("│", " ").split())
    kept = json.loads((tmp_path / "run" / "dose.json").read_text())["attacks"]
    assert len(kept["pairs"]) == 3
    assert all(pair["predicted"] > pair["reached"] for pair in kept["pairs"])
    again = CliRunner().invoke(app, [*words[:-1], "--out", str(tmp_path / "run"), "--overwrite"])
    assert again.exit_code == 0, again.output


def test_a_key_that_a_client_keeps_hides_less_in_every_round() -> None:
    """FedKL's key is the same in all rounds, so that two of them tell more than two clients with a key each."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5))
    victims = victims_of(torch.rand(1, 1, 8, 8))
    how: dict[str, Any] = {"defense": "fedkl|noise:sigma=0.05", "show": Show("none", 0)}
    one = dose(model, victims, **how).images[0]
    two = dose(model, victims, **how, updates=Updates(rounds=2)).images[0]
    quieter = {**how, "defense": f"fedkl|noise:sigma={0.05 / math.sqrt(2)}"}
    assert sum(each.numbers for each in one.secrets.values()) > 0
    assert two.bits == pytest.approx(dose(model, victims, **quieter).images[0].bits)


def test_a_white_prior_of_another_width_counts_by_its_own() -> None:
    victims = victims_of(torch.rand(1, *SHAPE))
    how: dict[str, Any] = {"defense": "noise:sigma=0.5", "loss": slope, "show": Show("none")}  # each pixel to 1 / 6
    assert [dose(linear(), victims, prior=White(std=std), **how).images[0].determined for std in (0.1, 0.2)] == [0, 16]


def test_statistics_that_are_sent_are_refused() -> None:
    with pytest.raises(SettingError, match="statistics"):
        small("none", updates=Updates(batch_norm="sent"))


@pytest.mark.parametrize("sigma", [1e-3, 1e-2, 5e-2])
def test_the_likeliest_image_under_the_prior_itself_is_as_far_off_as_the_dose_says(sigma: float) -> None:
    """A reader who knows noise and prior exactly and begins at the truth, beyond which no attack goes."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, 5)).double()
    std, many = 0.12, 12
    images = (0.5 + std * torch.randn(many, *SHAPE)).clamp(0, 1)
    victims = victims_of(images)
    predicted = dose(model, victims, defense=f"noise:sigma={sigma}", prior=White(std=std), show=Show("none", 0))
    errors = []
    for v in range(many):
        truth, label = victims.images[v].double(), victims.labels[v]

        def update(x: Tensor, label: Tensor = label) -> Tensor:
            loss = nn.functional.cross_entropy(model(x), label)
            return torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), create_graph=True)]
            )

        clean = update(truth).detach()
        seen = clean + sigma * torch.randn(len(clean), dtype=torch.float64)
        found = truth.clone().requires_grad_()
        search = torch.optim.LBFGS([found], max_iter=60, line_search_fn="strong_wolfe")

        def closure(found: Tensor = found, seen: Tensor = seen, search: torch.optim.LBFGS = search) -> Tensor:
            search.zero_grad()
            off = (update(found) - seen).square().sum() / sigma**2 + ((found - 0.5) / std).square().sum()
            off.backward()
            return off

        search.step(closure)
        errors.append(float((found.detach() - truth).square().mean()))
    expected = sum(10 ** (-(each.psnr or 0) / 10) for each in predicted.images) / many
    spread = torch.tensor(errors).std().item() / math.sqrt(many)
    reached = sum(errors) / many
    assert expected < reached + 3 * spread  # no better
    assert reached < 1.6 * expected + 3 * spread  # and not much worse: the linear picture holds
