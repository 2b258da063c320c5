"""Both sides of a defense, and the weakest that stops all attacks."""

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dosimeter import defenses, pick, presets, spec
from dosimeter.auditing import Audit, perform
from dosimeter.defenses import Defense
from dosimeter.errors import SettingError
from dosimeter.federated import Federation
from dosimeter.federated.checkpoint import read_history
from dosimeter.federated.tradeoff import Comparison, Tried, calibrate, strength_of
from small_federation import federation


def comparison(seeds: int = 1, **more: object) -> Comparison:
    def make(seed: int) -> Federation:
        return replace(federation(rounds=4, lr=0.02), seed=seed)

    return Comparison(
        federation=make,
        whole=Audit(model=make(0).model, victims=pick(make(0).dataset, 3), attack=presets.inverting_gradients(steps=5)),
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


@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_accuracy_is_that_of_a_round_that_the_test_split_did_not_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: float
) -> None:
    one = perform(comparison().whole)
    monkeypatch.setattr(Comparison, "audit", lambda *_: one)  # whose panel is not what this is about

    def make(seed: int) -> Federation:
        return replace(federation(rounds=6, lr=0.5, validation=validation), seed=seed)

    found = replace(comparison(seeds=2), federation=make).balance("none", defenses.NoDefense(), str(tmp_path))
    trainings = [read_history(tmp_path / f"seed-{seed}")["rounds"] for seed in range(2)]
    picked = [min(rounds, key=lambda e: e["validation_loss"]) if validation else rounds[-1] for rounds in trainings]
    assert found.accuracy == statistics.mean(entry["accuracy"] for entry in picked)
    assert found.accuracy < statistics.mean(max(entry["accuracy"] for entry in rounds) for rounds in trainings)


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
    grid = strength_of(defenses.GaussianNoise()).grid
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
    assert max(tried.value for tried in found.tried) == strength_of(defenses.Pruning()).grid[-1]


def test_calibration_runs_the_whole_panel_for_real() -> None:
    found = calibrate(comparison(), defenses.GaussianNoise(sigma=1.0), allowed=1.0)
    assert found.weakest == strength_of(defenses.GaussianNoise()).grid[0]  # all may be read, so the weakest will do
    assert found.tried[0].success["attack"]


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(SettingError, match="no strength"):
        calibrate(comparison(), defenses.NoDefense(), allowed=0.0)
    with pytest.raises(SettingError, match="Unknown strength 'rate'"):
        calibrate(comparison(), defenses.GaussianNoise(sigma=1.0), allowed=0.0, vary="rate")


def test_a_panel_that_measured_nothing_stops_nothing() -> None:
    """Pruning all of an update leaves zeros, of which no attack says anything."""
    found = comparison().strongest(defenses.Pruning(ratio=1.0))
    assert found["rate"] == 0.0
    kept = dict.fromkeys(strength_of(defenses.Pruning()).grid, found)
    assert calibrate(comparison(), defenses.Pruning(), allowed=0.5, kept=kept).weakest is None


@pytest.mark.parametrize("allowed", [math.nan, -0.1, 1.5])
def test_what_is_allowed_is_a_share(allowed: float) -> None:
    with pytest.raises(SettingError, match=r"in \[0, 1\]"):
        calibrate(comparison(), defenses.Pruning(), allowed=allowed)


@pytest.mark.parametrize("name", sorted(set(defenses.BY_NAME) - {"none", "fedkl", "ats", "no-bias"}))
def test_every_defense_with_a_strength_can_be_set_to_all_of_it(name: str) -> None:
    defense = defenses.BY_NAME[name]()
    assert defense.strengths()
    for setting, grid in defense.strengths().items():
        strength = strength_of(defense, setting)
        assert strength == (0, setting, grid)
        assert [getattr(strength.of(defense, value), setting) for value in grid] == list(grid)


def test_the_strength_that_has_an_effect_is_turned_up_and_other_settings_stay() -> None:
    pruned = defenses.Ppp(k=4, prune=0.9)
    assert strength_of(pruned).setting == "prune"
    assert strength_of(defenses.Ppp(k=4)).setting == "sigma"
    joined = defenses.Cvb(kernel=3) | defenses.GaussianNoise()
    assert strength_of(joined).of(joined, 0.5) == defenses.Cvb(kernel=3) | defenses.GaussianNoise(sigma=0.5)
    assert strength_of(joined, "beta").of(joined, 2.0) == defenses.Cvb(kernel=3, beta=2.0) | defenses.GaussianNoise()
    words = spec.with_setting("cvb:kernel=3,beta=1|noise", 0, "beta", "2")
    assert words == "cvb:kernel=3,beta=2|noise"
    assert spec.with_setting("cvb|noise", 1, "sigma", "0.1") == "cvb|noise:sigma=0.1"


def test_a_users_own_defense_is_calibrated_by_what_it_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Own(Defense):
        level: float = 0.0

        def strengths(self) -> dict[str, tuple[float, ...]]:
            return {"level": (1.0, 2.0, 3.0)}

    monkeypatch.setattr(Comparison, "strongest", lambda _, defense: {"rate": float(defense.level < 2)})
    assert calibrate(comparison(), Own(), allowed=0.0).defense == Own(level=2.0)


def test_strengths_at_which_searches_fell_short_are_not_said_to_stop_anything() -> None:
    """One step reads nothing of an update that holds all."""
    found = comparison().strongest(defenses.GaussianNoise(sigma=1e-4))
    assert found["hits"] == 0
    assert found["evidence"]["fell short"]
    assert found["kind"] == "inconclusive"
    kept = dict.fromkeys(strength_of(defenses.GaussianNoise()).grid, found)
    assert calibrate(comparison(), defenses.GaussianNoise(sigma=1.0), allowed=0.0, kept=kept).weakest is None
    balance = comparison().balance("noise", defenses.GaussianNoise(sigma=1e-4))
    assert balance.kind == "inconclusive"
    assert balance.verdict.startswith("The audit cannot tell")
