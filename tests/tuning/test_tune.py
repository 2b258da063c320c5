"""Tuning: settings share a batch, victims stay out of it, nothing is tried twice and nothing is lost."""

import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dosimeter.auditing import audit
from dosimeter.data import pick
from dosimeter.errors import OutputError, SettingError
from dosimeter.sweeps import Trial
from dosimeter.task import load_task
from dosimeter.tuning import presets
from dosimeter.tuning.compare import compare, saved
from dosimeter.tuning.journal import Journal, State
from dosimeter.tuning.setting import Tuning, informed
from dosimeter.tuning.spaces import Choice, Space, Span, space_of
from dosimeter.tuning.tune import Found, ground_of, tune

TRIAL = Trial(model="lenet", defense="noise:sigma=0.01", attack="bayes:density=cosine", steps=8)
AXES = {"lr": Span(0.05, 1.0, log=True), "tv": Choice((1e-4, 1e-2)), "decay": Span(0.9, 1.0)}
GRID = Tuning(trial=TRIAL, space=Space(name="own", axes=AXES), sampler="grid", prune="none", points=2, shadows=2)
TPE = replace(GRID, sampler="tpe", prune="halving", trials=12, at_once=4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    folder = tmp_path_factory.mktemp("tune")
    return folder, tune(GRID, folder)


def summary(found: Found) -> list[tuple[str, float]]:
    return sorted((each.words, round(each.tried.psnr, 3)) for each in found.outcomes)


def test_a_grid_is_tried_whole_and_a_settings_score_is_that_of_an_audit(whole: tuple[Path, Found]) -> None:
    found = whole[1]
    assert len(found.outcomes) == 1 + 8
    assert found.best.tried.psnr == max(each.tried.psnr for each in found.outcomes)
    assert found.untuned.words == "bayes:density=cosine,steps=8"
    assert found.cost == 9 * 2 * 8
    task, ground = load_task("lenet", "mnist-5k", seed=0), ground_of(GRID, None)
    alone = audit(task.model, ground.shadows, attack=found.best.words, defense=TRIAL.defense, seed=0)
    assert alone.scores.nearest["psnr"].mean == pytest.approx(found.best.tried.psnr, abs=0.02)
    assert alone.scores.nearest["ssim"].mean == pytest.approx(found.best.tried.ssim, abs=0.005)
    assert alone.scores.success.hits == found.best.tried.read


def test_what_is_done_is_not_tried_again_and_victims_change_nothing(whole: tuple[Path, Found]) -> None:
    folder, found = whole
    before = (folder / "tune.jsonl").read_bytes()
    again = tune(replace(GRID, trial=replace(TRIAL, victims=50)), folder)
    assert summary(again) == summary(found)
    assert len((folder / "tune.jsonl").read_bytes()) - len(before) < 1000  # nothing but somebody's having looked
    victims = set(pick(load_task("lenet", "mnist-5k", seed=0).dataset, 3998, seed=0).ids)
    assert not victims & set(found.shadows)
    with pytest.raises(OutputError, match=r"was made with another .*task"):
        tune(replace(GRID, trial=replace(TRIAL, seed=1)), folder)


def test_optuna_stops_poor_settings_early_and_stays_within_its_budget(tmp_path: Path) -> None:
    found = tune(TPE, tmp_path / "trials")
    assert len(found.outcomes) == 12
    assert sum(each.tried.left for each in found.outcomes) > 0
    assert all(each.tried.cost in (2 * 2, 2 * 4) for each in found.outcomes if each.tried.left)
    assert not found.best.tried.left
    assert found.importances.keys() == AXES.keys()
    within = tune(replace(TPE, trials=None, budget=100), tmp_path / "budget")
    assert 100 - 2 * 8 < within.cost <= 100
    assert [each.words for each in within.outcomes[:5]] == [each.words for each in found.outcomes[:5]]  # by the seed


def test_a_space_of_two_stages_looks_for_its_factor_first(tmp_path: Path) -> None:
    def settings(values: object, factor: float | None, attack: object) -> dict[str, float]:
        assert factor is not None
        return {"tv": 1 / factor}

    space = Space(
        name="own", axes={"lr": Choice((0.1, 0.2))}, settings=settings, factors=(1e4, 1e2), before={"lr": 0.1}
    )  # type: ignore[arg-type]
    found = tune(replace(GRID, space=space, at_once=64), tmp_path)
    assert len(found.outcomes) == 1 + 2 + 20 + 2
    coarse = max(found.outcomes[1:3], key=lambda each: each.tried.psnr)
    fine = max(found.outcomes[3:23], key=lambda each: each.tried.psnr)
    assert found.outcomes[3].settings["tv"] == pytest.approx(2 * coarse.settings["tv"])
    assert found.factor == pytest.approx(1 / fine.settings["tv"])
    assert {each.settings["tv"] for each in found.outcomes[23:]} == {fine.settings["tv"]}


def _tune(folder: str, at_once: int) -> None:
    tune(replace(GRID, at_once=at_once), folder)


def test_a_tuning_that_is_killed_again_and_again_ends_as_one_that_is_not(
    tmp_path: Path, whole: tuple[Path, Found]
) -> None:
    drawn, started = random.Random(1), multiprocessing.get_context("fork")
    for _ in range(6):
        child = started.Process(target=_tune, args=(str(tmp_path), 2))
        child.start()
        assert child.pid is not None
        child.join(drawn.uniform(0.05, 1.2))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        with open(tmp_path / "tune.jsonl", "ab") as journal:
            journal.write(b'{"op_code": 5, "wor')  # as much as one that is killed may have written of a line
    assert summary(tune(GRID, tmp_path)) == summary(whole[1])


def test_several_processes_share_a_tuning(tmp_path: Path, whole: tuple[Path, Found]) -> None:
    started = multiprocessing.get_context("fork")
    children = [started.Process(target=_tune, args=(str(tmp_path), 1)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert summary(tune(GRID, tmp_path)) == summary(whole[1])
    with Journal(tmp_path) as kept:
        owners = {each.user_attrs["owner"] for each in kept.trials() if "tried" in each.user_attrs}
        assert len(owners) == 2
        assert not kept.trials(State.RUNNING, State.WAITING)


def test_bad_settings_of_a_tuning_are_refused() -> None:
    for changed, said in (
        ({"by": "lpips"}, "psnr or ssim"),
        ({"sampler": "annealing"}, "Unknown sampler 'annealing'"),
        ({"prune": "all"}, "Unknown pruning 'all'"),
        ({"sampler": "tpe"}, "how many settings"),
        ({"trial": replace(TRIAL, attack="analytic", steps=None)}, "settings of a search"),
        ({"trial": replace(TRIAL, attack="auto", steps=None)}, "Unknown attack 'auto'"),
    ):
        with pytest.raises(SettingError, match=said):
            replace(GRID, **changed)  # type: ignore[arg-type]


def test_the_tuned_and_the_untuned_attack_meet_the_same_victims(tmp_path: Path, whole: tuple[Path, Found]) -> None:
    folder, found = whole
    asked = replace(GRID, trial=replace(TRIAL, victims=3))
    presets.write(presets.preset_of("mine", asked, found), tmp_path / "mine.toml")
    both = presets.on_victims(asked, tmp_path / "mine.toml", tmp_path / "victims")
    assert both["tuned"].attack == f"tuned:{tmp_path / 'mine.toml'}"
    assert both["tuned"].read.of == both["untuned"].read.of == 3
    assert both["tuned"].psnr.mean != both["untuned"].psnr.mean
    assert both["tuned"].psnr.half is not None
    assert json.loads((folder / "made.json").read_text())["task"]["defense"] == "noise:sigma=0.01"


@pytest.mark.parametrize(
    ("defense", "attack", "known"),
    [
        ("noise:sigma=0.02", "bayes:k=1", "bayes:k=1,density=gaussian,scale=0.02"),
        ("laplace:scale=0.1", "bayes", "bayes:density=laplace,scale=0.1"),
        ("random-prune:rate=0.4|noise:sigma=0.1", "bayes", "bayes:density=prune-gaussian,scale=0.1,rate=0.4"),
        ("none", "bayes", "bayes"),
        ("noise:sigma=0.02", "bayes:density=l2", "bayes:density=l2"),
        ("noise:sigma=0.02", "ig", "ig"),
    ],
)
def test_a_density_that_nobody_names_is_that_of_the_noise_that_the_attacker_knows(
    defense: str, attack: str, known: str
) -> None:
    assert informed(Trial(model="lenet", defense=defense, attack=attack)).attack == known


def test_settings_that_an_attack_refuses_are_passed_over(tmp_path: Path) -> None:
    space = space_of("default", ["k=1,2", "lr=0.1,0.2"], "bayes:density=cosine")  # k=2 needs a ball
    found = tune(replace(GRID, space=space), tmp_path)
    assert sorted(each.words for each in found.outcomes if each.settings) == [
        f"bayes:density=cosine,steps=8,k=1,lr={lr}" for lr in (0.1, 0.2)
    ]


def test_ctrl_c_leaves_a_tuning_that_goes_on(tmp_path: Path, whole: tuple[Path, Found]) -> None:
    child = multiprocessing.get_context("fork").Process(target=_tune, args=(str(tmp_path), 2))
    child.start()
    assert child.pid is not None
    while not (tmp_path / "tune.jsonl").exists() or (tmp_path / "tune.jsonl").stat().st_size < 2000:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGINT)
    child.join(20)
    assert child.exitcode not in (None, -signal.SIGKILL)
    assert summary(tune(GRID, tmp_path)) == summary(whole[1])


def test_samplers_are_compared_with_a_grid_at_equal_cost(tmp_path: Path) -> None:
    asked = replace(GRID, prune="halving", trial=replace(TRIAL, victims=2))
    grid, random_ = compare(asked, GRID.space, ["random"], [0], tmp_path)
    most = 2 * 8  # image-steps of one setting
    assert (grid.way, grid.tried, grid.stopped, grid.cost) == ("grid", 9, 0, 9 * most)
    assert grid.cost - most < random_.cost <= grid.cost
    assert random_.tried > grid.tried  # since some were stopped early
    assert random_.stopped > 0
    assert grid.before == random_.before  # the untuned attack, on the same victims
    assert grid.untuned == random_.untuned


def test_many_settings_in_a_batch_are_timed_beside_one() -> None:
    found = saved(GRID, settings=8, turns=1)
    assert (found.settings, found.shadows) == (8, 2)
    assert found.times == found.many / found.one > 0
