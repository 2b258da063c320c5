"""Intervals against scipy, the sentences people read, and identification at its chance rate."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from dosimeter.data import load, pick, pick_decoys
from dosimeter.errors import DataError, SettingError
from dosimeter.metrics import Rate, identification, wilson


@given(st.data(), st.integers(1, 2000), st.floats(0.5, 0.999))
def test_wilson_equals_scipy(data: st.DataObject, n: int, level: float) -> None:
    successes = data.draw(st.integers(0, n))
    expected = binomtest(successes, n).proportion_ci(confidence_level=level, method="wilson")
    low, high = wilson(successes, n, level)
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)
    assert 0 <= low <= successes / n <= high <= 1


@pytest.mark.parametrize(
    ("successes", "n", "text"),
    [
        (31, 32, "97 % (84-99 %), 31 of 32"),
        (0, 128, "below 2.9 % (0 of 128)"),
        (128, 128, "above 97.1 % (128 of 128)"),
        (1, 2, "50 % (9-91 %), 1 of 2"),
        (0, 1, "below 79.3 % (0 of 1)"),
        (127, 128, "99 % (96-99.9 %), 127 of 128"),
        (1, 1000, "0.1 % (0.02-1 %), 1 of 1000"),
        (0, 100_000, "below 0.004 % (0 of 100000)"),
    ],
)
def test_a_rate_reads_well_and_never_as_a_false_0_or_100(successes: int, n: int, text: str) -> None:
    assert Rate(successes, n).text == text


def test_a_rate_keeps_its_numbers() -> None:
    found = Rate(3, 12)
    assert (found.hits, found.of, found.rate) == (3, 12, 0.25)
    assert (found.low, found.high) == wilson(3, 12)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (3, 2), (-1, 4)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(DataError, match=f"{successes} of {n}"):
        wilson(successes, n)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_impossible_levels_are_refused(level: float) -> None:
    with pytest.raises(SettingError, match="between 0 and 1"):
        wilson(1, 2, level)


def test_a_close_reconstruction_is_identified_and_a_swapped_one_is_not() -> None:
    originals, decoys = torch.rand(6, 3, 8, 8), torch.rand(50, 3, 8, 8)
    reconstructed = originals + 0.1 * torch.randn_like(originals)
    reconstructed[2] = decoys[7] + 0.01
    found = identification(reconstructed, originals, decoys)
    assert found.dtype == torch.bool
    assert found.tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize("others", [1, 9])
def test_noise_identifies_at_the_chance_rate(others: int) -> None:
    """A reconstruction independent of victims and decoys; the bounds are 5 standard deviations."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 2000, 1, 4, 4, generator=generator)
    hits = 0
    for start in range(0, 2000, 100):
        decoys = torch.rand(others, 1, 4, 4, generator=generator)
        hits += int(identification(images[0, start : start + 100], images[1, start : start + 100], decoys).sum())
    chance = 1 / (others + 1)
    # Decoys shared by 100 victims make the hits of a group depend on each other, so the deviation is measured wide.
    assert abs(hits / 2000 - chance) < 5 * (chance * (1 - chance) / 200) ** 0.5


@pytest.mark.parametrize("side", [8, 224])
def test_a_tie_is_not_an_identification(side: int) -> None:
    originals = torch.rand(1, 3, side, side)
    doubles = torch.cat([torch.rand(2, 3, side, side), originals])
    assert identification(originals, originals, doubles[:2]).tolist() == [True]
    assert identification(originals, originals, doubles).tolist() == [False]
    assert identification(originals + 0.1, originals, doubles).tolist() == [False]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_a_reconstruction_that_is_not_finite_identifies_nobody(bad: float) -> None:
    originals, decoys = torch.rand(2, 1, 4, 4), torch.rand(3, 1, 4, 4)
    reconstructed = originals.clone()
    reconstructed[0, 0, 0, 0] = bad
    assert identification(reconstructed, originals, decoys).tolist() == [False, True]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    originals, decoys = torch.rand(20, 1, 4, 4), torch.rand(7, 1, 4, 4)
    reconstructed = originals + 1.0 * torch.randn_like(originals)
    whole = identification(reconstructed, originals, decoys)
    assert 0 < whole.sum() < 20
    monkeypatch.setattr("dosimeter.metrics.rates.CHUNK", 32)
    assert identification(reconstructed, originals, decoys).tolist() == whole.tolist()


def test_without_decoys_there_is_nothing_to_tell_apart() -> None:
    images = torch.rand(2, 1, 4, 4)
    for decoys in (images[:0], torch.rand(3, 3, 4, 4)):
        with pytest.raises(DataError, match="at least one decoy"):
            identification(images, images, decoys)


def test_a_grey_image_points_at_nobody_however_the_decoys_are_drawn() -> None:
    """With decoys of its own for every victim the rate is that of chance, at every seed; with shared ones it is not."""
    data = load("mnist-5k")
    grey, rates, shared = torch.full((256, 1, 28, 28), 0.3), [], []
    for seed in range(4):
        victims = pick(data, 256, seed=seed)
        decoys = pick_decoys(data, victims, 2000, seed=seed, split="train")
        images = victims.images.flatten(0, 1)
        rates.append(int(identification(grey, images, decoys, among=19).sum()))
        shared.append(int(identification(grey, images, decoys[:19]).sum()))

    def chi2(found: list[int]) -> float:
        """With 4 degrees of freedom; above 18.5 once in 1,000 times where every image is a trial of its own."""
        return sum((hits - 256 / 20) ** 2 / (256 * 0.05 * 0.95) for hits in found)

    assert chi2(rates) < 18.5 < chi2(shared), (rates, shared)
