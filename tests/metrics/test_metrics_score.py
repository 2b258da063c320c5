"""Laws over every score, what happens to values that are not finite, and summaries."""

import json
import statistics
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dosimeter.metrics as metrics
from dosimeter.errors import DataError, SettingError
from dosimeter.metrics import (
    PSNR_CAP,
    STANDARD,
    Lpips,
    Metric,
    in_units_of,
    min_max,
    mse,
    of_lpips,
    psnr,
    score_images,
    ssim,
    summarise,
)
from dosimeter.metrics.lpips import ALEXNET


@pytest.fixture(scope="module")
def lpips() -> Lpips:
    """AlexNet with random weights and positive heads; the laws hold for any."""
    generator = torch.Generator().manual_seed(0)
    weights = tuple(0.05 * torch.randn(conv.shape, generator=generator) for conv in ALEXNET.convs)
    biases = tuple(torch.zeros(conv.shape[0]) for conv in ALEXNET.convs)
    heads = tuple(torch.rand(1, conv.shape[0], 1, 1, generator=generator) for conv in ALEXNET.convs)
    return Lpips(ALEXNET, weights, biases, heads)


def scored(lpips: Lpips) -> tuple[Metric, ...]:
    return (*STANDARD, *in_units_of(torch.tensor(0.3)), of_lpips(lpips))


def test_every_score_is_there_with_a_direction(lpips: Lpips) -> None:
    a, b = torch.rand(2, 3, 3, 32, 32)
    scores = score_images(a, b, scored(lpips))
    assert list(scores) == [metric.name for metric in scored(lpips)]
    assert all(values.shape == (3,) for values in scores.values())
    assert set(scores) - set(score_images(a, b)) == {"lpips", "mse_standardised", "psnr_normalised"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_score_is_best_on_equality_and_worsens_with_noise(
    dtype: torch.dtype, channels: int, lpips: Lpips
) -> None:
    generator = torch.Generator().manual_seed(1)
    original = torch.rand(4, channels, 28, 28, generator=generator, dtype=dtype)
    noise = torch.randn(original.shape, generator=generator, dtype=dtype)
    levels = [score_images(original + s * noise, original, scored(lpips)) for s in (0.0, 0.05, 0.2, 0.8)]
    for name, higher in ((metric.name, metric.higher) for metric in scored(lpips)):
        values = torch.stack([level[name] for level in levels])  # (levels, n)
        assert values.dtype == dtype
        steps = values.diff(dim=0)
        assert (steps < 0 if higher else steps > 0).all(), name
        best = {"psnr": PSNR_CAP, "ssim": 1.0}.get(name.split("_")[0], 0.0)
        torch.testing.assert_close(values[0], torch.full_like(values[0], best), msg=name)


def test_images_are_clipped_except_under_min_max() -> None:
    original = torch.rand(2, 1, 16, 16, dtype=torch.float64)
    bright = 2 * original + 0.5
    scores = score_images(bright, original)
    torch.testing.assert_close(scores["mse"], mse(bright.clamp(0, 1), original))
    torch.testing.assert_close(scores["ssim_minmax"], torch.ones(2, dtype=torch.float64))
    assert (scores["psnr_minmax"] > 100).all()
    dark = original / 2  # the original is scaled too
    torch.testing.assert_close(score_images(bright, dark)["ssim_minmax"], scores["ssim_minmax"])
    torch.testing.assert_close(
        score_images(dark.square(), dark)["ssim_minmax"], ssim(min_max(dark.square()), min_max(dark))
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_pixels_that_are_not_finite_count_as_0(bad: float, lpips: Lpips) -> None:
    original = torch.rand(2, 3, 32, 32)
    broken, black = original.clone(), original.clone()
    broken[0, :, :5], black[0, :, :5] = bad, 0
    scores, expected = score_images(broken, original, scored(lpips)), score_images(black, original, scored(lpips))
    for name, values in scores.items():
        torch.testing.assert_close(values, expected[name], msg=name)
    assert scores["mse"][0] > 0
    assert broken.isfinite().logical_not().any()  # the caller's tensor is left as it was


def test_a_diverged_reconstruction_has_finite_scores(lpips: Lpips) -> None:
    original = torch.rand(3, 3, 32, 32)
    diverged = torch.randn(3, 3, 32, 32) * torch.tensor([3e37, 1e-42, 0.0]).view(3, 1, 1, 1)
    scores = score_images(diverged, original, scored(lpips))
    assert all(values.isfinite().all() for values in scores.values())
    assert "Infinity" not in json.dumps({name: vars(summarise(values)) for name, values in scores.items()})


def test_chunks_and_company_change_nothing(lpips: Lpips, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.rand(2, 5, 3, 32, 32, dtype=torch.float64)
    whole = score_images(a, b, scored(lpips))
    monkeypatch.setattr("dosimeter.metrics.score.CHUNK", 2 * 3 * 32 * 32)
    parts, order = score_images(a, b, scored(lpips)), torch.tensor([3, 0, 4, 1, 2])
    turned = score_images(a[order], b[order], scored(lpips))
    for name, values in whole.items():
        torch.testing.assert_close(parts[name], values, msg=name)
        torch.testing.assert_close(turned[name], values[order], msg=name)


def test_scores_carry_no_graph_and_originals_take_the_dtype() -> None:
    a = torch.rand(2, 1, 16, 16, dtype=torch.float64, requires_grad=True)
    scores = score_images(a, torch.rand(2, 1, 16, 16))
    assert all(values.dtype == torch.float64 and not values.requires_grad for values in scores.values())


def test_nothing_and_ill_shaped_images_are_refused() -> None:
    with pytest.raises(DataError, match="no image to score"):
        score_images(torch.rand(0, 1, 8, 8), torch.rand(0, 1, 8, 8))
    with pytest.raises(DataError, match="same shape"):
        score_images(torch.rand(2, 1, 8, 8), torch.rand(3, 1, 8, 8))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_a_summary_equals_the_standard_library(values: list[float]) -> None:
    summary = summarise(torch.tensor(values, dtype=torch.float64))
    near = {"rel": 1e-9, "abs": 1e-6}
    assert summary.mean == pytest.approx(statistics.fmean(values), **near)
    assert summary.std == pytest.approx(statistics.stdev(values) if len(values) > 1 else 0.0, **near)
    assert summary.median == pytest.approx(statistics.median(values), **near)
    assert (summary.min, summary.max) == (min(values), max(values))


def test_a_summary_caps_infinite_psnr_and_refuses_what_else_is_not_finite() -> None:
    assert summarise(torch.tensor([torch.inf, 50.0])).mean == (PSNR_CAP + 50) / 2
    for values in ([torch.nan, 1.0], [-torch.inf], []):
        with pytest.raises(DataError, match="at least one score"):
            summarise(torch.tensor(values))
    with pytest.raises(DataError, match=r"shape \(2, 2\)"):
        summarise(torch.rand(2, 2))


def test_the_exports_are_sorted_and_exist() -> None:
    assert all(hasattr(metrics, name) for name in metrics.__all__)
    assert sorted(metrics.__all__, key=lambda name: (not name.isupper(), name)) == metrics.__all__


def test_metrics_import_nothing_of_the_attacks() -> None:
    allowed = ("dosimeter.errors", "dosimeter.rng", "dosimeter.types", "dosimeter.unpacking", "dosimeter.metrics")
    for file in Path(metrics.__file__).parent.glob("*.py"):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("from dosimeter")]
        assert all(line.split()[1].startswith(allowed) for line in lines), file.name


def test_scores_in_the_papers_units() -> None:
    """PPP and Inverting Gradients score normalised images; FedKL prints a root for its MSE and scales bytes."""
    a, b = torch.rand(2, 3, 3, 16, 16, dtype=torch.float64)
    mean, std = torch.rand(3, 1, 1).double(), torch.rand(3, 1, 1).double() + 0.1
    found = score_images(a, b, (*STANDARD, *in_units_of(std)))
    normal = [(x - mean) / std for x in (a, b)]
    torch.testing.assert_close(found["mse_standardised"], mse(*normal))
    torch.testing.assert_close(found["psnr_normalised"], psnr(*normal))
    torch.testing.assert_close(found["rmse_bytes"], 255 * found["mse"].sqrt())
    torch.testing.assert_close(found["psnr"], 2 * found["psnr_bytes"] - 20 * torch.log10(torch.tensor(255.0).double()))
    torch.testing.assert_close(score_images(3 * a - 1, b)["psnr_unclipped"], psnr(3 * a - 1, b))


def test_a_metric_that_is_none_is_refused() -> None:
    a, b = torch.rand(2, 3, 1, 8, 8)
    with pytest.raises(SettingError, match=r"'all' must give one number an image, \(3,\), got \(\)"):
        score_images(a, b, [Metric(name="all", function=lambda a, b: (a - b).sum(), higher=False)])
    with pytest.raises(SettingError, match="a word of letters"):
        Metric(name="my metric", function=mse, higher=False)


@pytest.mark.parametrize("clipped", [True, False])
def test_a_metric_that_works_in_place_changes_no_image(clipped: bool) -> None:
    a, b = torch.rand(2, 3, 1, 8, 8)
    before = a.clone(), b.clone()
    function = lambda a, b: a.sub_(b.mul_(2)).flatten(1).amax(1)  # noqa: E731
    worst = Metric(name="worst", function=function, higher=False, clipped=clipped)
    score_images(a, b, [worst])
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])
