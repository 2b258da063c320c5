"""Both sides of a defense, and the weakest that stops all attacks."""

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import small_federation
from dosimeter import defenses, spec
from dosimeter.errors import SettingError
from dosimeter.federated.checkpoint import read_history
from dosimeter.sweeps import Store, Trial, run_all
from dosimeter.sweeps.tradeoff import Balance, Comparison, Tried, calibrate, strength_of, strongest

NOISE = "noise:sigma=1"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tradeoff")


TRAINED = "ppp:rounds=4,clients=3,batch_size=8,lr=0.02"


def comparison(here: Path, protocol: str = TRAINED, attack: str = "ig", **more: Any) -> Comparison:
    words = small_federation.words(here)
    return Comparison(trial=Trial(**words, protocol=protocol, attack=attack, victims=3, steps=5, decoys=0), **more)


def balance(compared: Comparison, defense: str, here: Path) -> Balance:
    with Store(here / "kept") as store:
        return compared.balance(defense, run_all(compared.trials(defense), store), store)


def attacked(here: Path, defense: str) -> dict[str, Any]:
    with Store(here / "kept") as store:
        return strongest(run_all([comparison(here, attack="auto").audit(defense)], store)[0], store)


def test_a_balance_has_both_sides(here: Path) -> None:
    plain = balance(comparison(here, attack="auto", seeds=2), "none", here)
    parameters = sum(p.numel() for p in small_federation.model().parameters())
    assert plain.added == 0
    assert plain.bytes == parameters * 4
    assert 0 <= plain.accuracy <= 1
    assert plain.success["of"] == 3
    assert "attacks were tried" in plain.verdict
    assert plain.privacy is None
    bottleneck = balance(comparison(here), "precode:k=4", here)
    assert bottleneck.added == pytest.approx(bottleneck.bytes / plain.bytes - 1)
    assert bottleneck.added > 0.1


@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_accuracy_is_that_of_a_round_that_the_test_split_did_not_choose(here: Path, validation: float) -> None:
    protocol = f"ppp:rounds=6,clients=3,batch_size=8,lr=0.5,validation={validation}"
    compared = comparison(here, protocol, seeds=2)
    with Store(here / "kept") as store:
        entries = run_all(compared.trials("none"), store)
        found = compared.balance("none", entries, store)
        trainings = [read_history(store.place(each.digest))["rounds"] for each in entries[1:]]
    picked = [min(rounds, key=lambda e: e["validation_loss"]) if validation else rounds[-1] for rounds in trainings]
    assert found.accuracy == statistics.mean(entry["accuracy"] for entry in picked)
    if validation:  # and the test split would have chosen others
        assert found.accuracy < statistics.mean(max(entry["accuracy"] for entry in rounds) for rounds in trainings)


def test_ruinous_noise_costs_accuracy(here: Path) -> None:
    protocol = "ppp:rounds=10,clients=3,batch_size=8,lr=0.05"
    plain = balance(comparison(here, protocol), "none", here)
    assert balance(comparison(here, protocol), "noise:sigma=100", here).accuracy < plain.accuracy


@pytest.mark.parametrize("limit", [1e-4, 0.01, 1.0])
def test_the_weakest_that_stops_is_found(limit: float) -> None:
    asked: list[float] = []

    def reads(defense: str) -> dict[str, Any]:
        asked.append(spec.joined("defense", defense, defenses.BY_NAME).sigma)
        return {"rate": 0.0 if asked[-1] >= limit else 0.5}

    told: list[Tried] = []
    found = calibrate(reads, NOISE, allowed=0.0, told=lambda _, tried: told.append(tried))
    assert found.weakest == limit
    assert found.defense == f"noise:sigma={limit:g}"
    assert [tried.value for tried in told] == asked
    grid = strength_of(defenses.GaussianNoise()).grid
    if limit != grid[0]:  # the next weaker one was seen to fail
        assert grid[grid.index(limit) - 1] in asked


def test_a_defense_that_never_suffices_is_said_so() -> None:
    found = calibrate(lambda _: {"rate": 1.0}, "prune:ratio=0.9", allowed=0.0)
    assert found.weakest is None
    assert max(tried.value for tried in found.tried) == strength_of(defenses.Pruning()).grid[-1]


def test_what_cannot_be_calibrated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no strength"):
        calibrate(lambda _: {"rate": 1.0}, "none", allowed=0.0)
    with pytest.raises(SettingError, match="Unknown strength 'rate'"):
        calibrate(lambda _: {"rate": 1.0}, NOISE, allowed=0.0, vary="rate")
    (tmp_path / "own.py").write_text(OWN + "def both():\n    return NoDefense() | Own(level=1.0)\n")
    with pytest.raises(SettingError, match="level can be set in words"):  # whose parts have no words of their own
        calibrate(lambda _: {"rate": 1.0}, f"{tmp_path}/own.py:both", allowed=0.0)


def test_a_panel_that_measured_nothing_stops_nothing(here: Path) -> None:
    """Pruning all of an update leaves zeros, of which no attack says anything."""
    found = attacked(here, "prune:ratio=1")
    assert found["rate"] == 0.0
    assert calibrate(lambda _: found, "prune", allowed=0.5).weakest is None


@pytest.mark.parametrize("allowed", [math.nan, -0.1, 1.5])
def test_what_is_allowed_is_a_share(allowed: float) -> None:
    with pytest.raises(SettingError, match=r"in \[0, 1\]"):
        calibrate(lambda _: {"rate": 1.0}, "prune", allowed=allowed)


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


OWN = """
from dataclasses import dataclass
from dosimeter.defenses import NoDefense

@dataclass(frozen=True, kw_only=True)
class Own(NoDefense):
    level: float = 0.0

    def strengths(self):
        return {"level": (1.0, 2.0, 3.0)}

"""


def test_a_users_own_defense_is_calibrated_by_what_it_says_of_itself(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    words = f"{tmp_path}/own.py:Own"
    found = calibrate(lambda said: {"rate": float(said.endswith("level=1"))}, words, allowed=0.0)
    assert found.defense == f"{words}:level=2"


def test_strengths_at_which_searches_fell_short_are_not_said_to_stop_anything(here: Path) -> None:
    """Five steps read nothing of an update that holds all."""
    found = attacked(here, "noise:sigma=0.0001")
    assert found["hits"] == 0
    assert found["evidence"]["fell short"]
    assert found["kind"] == "inconclusive"
    assert calibrate(lambda _: found, NOISE, allowed=0.0).weakest is None
    weak = balance(comparison(here, attack="auto"), "noise:sigma=0.0001", here)
    assert weak.kind == "inconclusive"
    assert weak.verdict.startswith("The audit cannot tell")


def test_what_is_calibrated_and_compared_is_the_same_trials(here: Path) -> None:
    """A strength that was tried is not attacked again where it is compared."""
    compared = comparison(here)
    with Store(here / "kept") as store:
        (tried,) = run_all([compared.audit("noise:sigma=0.0003")], store)
        audit, training = run_all(compared.trials("noise:sigma=0.0003"), store)
        assert (audit, training.kind) == (tried, "training")
        (again,) = run_all([replace(compared, trained=True).audit("noise:sigma=0.0003")], store)
        assert again.uses == training.digest  # which is not trained again


@pytest.mark.parametrize("start", [1e-5, 1e-4, 2e-3, 0.1, 1.0, 50.0])
@pytest.mark.parametrize("limit", [1e-4, 3e-3, 0.3, 1.0, 2.0])
def test_where_a_calibration_begins_changes_nothing_but_how_long_it_takes(start: float, limit: float) -> None:
    def reads(defense: str) -> dict[str, Any]:
        return {"rate": 0.0 if spec.joined("defense", defense, defenses.BY_NAME).sigma >= limit else 0.5}

    plain = calibrate(reads, NOISE, allowed=0.0)
    found = calibrate(reads, NOISE, allowed=0.0, start=start)
    assert found.weakest == plain.weakest
    values = [tried.value for tried in found.tried]
    assert len(values) == len(set(values))
    assert {tried.value for tried in found.tried if tried.stopped} >= {found.weakest} - {None}
    grid = strength_of(defenses.GaussianNoise()).grid
    right = next((value for value in grid if value >= start), grid[-1])
    if right == found.weakest:
        assert len(values) <= 2  # it, and the next weaker one


def test_a_calibration_of_fewer_bits_begins_at_a_strength_no_weaker() -> None:
    assert [strength_of(defenses.Quantisation()).nearest(bits) for bits in (20, 8, 7, 1)] == [0, 3, 4, 8]
