"""Both sides of a defense, and the weakest that stops all attacks."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dosimeter import defenses, pick, presets
from dosimeter.auditing import Setting, Yardstick
from dosimeter.defenses import Defense
from dosimeter.errors import SettingError
from dosimeter.federated import Federation
from dosimeter.federated.tradeoff import GRIDS, Comparison, Tried, calibrate
from small_federation import federation


def comparison(seeds: int = 1, **more: object) -> Comparison:
    def make(seed: int) -> Federation:
        return replace(federation(rounds=4, lr=0.02), seed=seed)

    return Comparison(
        federation=make,
        victims=pick(make(0).dataset, 3),
        setting=Setting(attack=presets.inverting_gradients(steps=5)),
        yardstick=Yardstick(),
        steps=5,
        seeds=seeds,
        **more,  # type: ignore[arg-type]
    )


def test_a_balance_has_both_sides(tmp_path: Path) -> None:
    plain = comparison(seeds=2).balance("none", defenses.NoDefense(), tmp_path)
    assert (tmp_path / "seed-0" / "model.safetensors").is_file()
    assert (tmp_path / "seed-1" / "model.safetensors").is_file()
    assert plain.added == 0
    assert plain.bytes == sum(t.numel() * 4 for t in federation().initial().values())
    assert 0 <= plain.accuracy <= 1
    assert plain.success["of"] == 3
    assert "attacks were tried" in plain.verdict
    assert plain.privacy is None
    bottleneck = comparison().balance("precode", defenses.Precode(k=4))
    model = federation(defenses.Precode(k=4)).template
    count = sum(p.numel() for p in model.parameters())
    assert bottleneck.added == pytest.approx(count / (plain.bytes / 4) - 1)


def test_ruinous_noise_costs_accuracy() -> None:
    plain = comparison().balance("none", defenses.NoDefense())
    noisy = comparison().balance("noise", defenses.GaussianNoise(sigma=100.0))
    assert noisy.accuracy < plain.accuracy


@pytest.mark.parametrize("limit", [1e-4, 0.01, 1.0])
def test_the_weakest_that_stops_is_found(monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    asked: list[float] = []

    def strongest(_self: Comparison, defense: Defense) -> dict[str, object]:
        assert isinstance(defense, defenses.GaussianNoise)
        asked.append(defense.sigma)
        return {"rate": 0.0 if defense.sigma >= limit else 0.5}

    monkeypatch.setattr(Comparison, "strongest", strongest)
    told: list[Tried] = []
    found = calibrate(
        comparison(), defenses.GaussianNoise(sigma=1.0), allowed=0.0, told=lambda _, tried: told.append(tried)
    )
    assert found.weakest == limit
    assert found.defense == defenses.GaussianNoise(sigma=limit)
    assert [tried.value for tried in told] == asked
    grid = GRIDS[defenses.GaussianNoise][1]
    if limit != grid[0]:  # the next weaker one was seen to fail
        assert grid[grid.index(limit) - 1] in asked
    kept = {tried.value: tried.success for tried in told}
    again = calibrate(comparison(), defenses.GaussianNoise(sigma=1.0), allowed=0.0, kept=kept)
    assert again == found
    assert len(asked) == len(told)  # nothing was tried again


def test_a_defense_that_never_suffices_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "strongest", lambda *_: {"rate": 1.0})
    found = calibrate(comparison(), defenses.Pruning(ratio=0.9), allowed=0.0)
    assert found.weakest is None
    assert max(tried.value for tried in found.tried) == GRIDS[defenses.Pruning][1][-1]


def test_calibration_runs_the_whole_panel_for_real() -> None:
    found = calibrate(comparison(), defenses.GaussianNoise(sigma=1.0), allowed=1.0)
    assert found.weakest == GRIDS[defenses.GaussianNoise][1][0]  # all may be read, so the weakest will do
    assert found.tried[0].success["attack"]


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(SettingError, match="no strength"):
        calibrate(comparison(), defenses.NoDefense(), allowed=0.0)
    with pytest.raises(SettingError, match="One defense"):
        calibrate(comparison(), defenses.GaussianNoise(sigma=1.0) | defenses.Pruning(ratio=0.5), allowed=0.0)


def test_every_strength_of_a_grid_can_be_set() -> None:
    for kind, (key, grid) in GRIDS.items():
        assert list(grid) == sorted(grid)
        for value in grid:
            assert getattr(kind(**{key: value}), key) == value


def test_a_panel_that_measured_nothing_stops_nothing() -> None:
    """Pruning all of an update leaves zeros, of which no attack says anything."""
    found = comparison().strongest(defenses.Pruning(ratio=1.0))
    assert found["rate"] == 0.0
    kept = dict.fromkeys(GRIDS[defenses.Pruning][1], found)
    assert calibrate(comparison(), defenses.Pruning(), allowed=0.5, kept=kept).weakest is None


@pytest.mark.parametrize("allowed", [math.nan, -0.1, 1.5])
def test_what_is_allowed_is_a_share(allowed: float) -> None:
    with pytest.raises(SettingError, match=r"in \[0, 1\]"):
        calibrate(comparison(), defenses.Pruning(), allowed=allowed)
