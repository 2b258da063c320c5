"""Studies: every model is in the first, a stopped one goes on, and its table says what was run."""

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import small_federation
from dosimeter import models, spec, studies
from dosimeter.attacks import Search, presets
from dosimeter.cli import app
from dosimeter.cli.study import named_bars
from dosimeter.data import pick
from dosimeter.errors import DataError
from dosimeter.studies import study as module
from dosimeter.sweeps import Progress, Status, Store, versions
from dosimeter.task import load_task

TINY = replace(
    studies.BY_NAME["pooling"],
    rows=tuple(
        studies.Row(model=model, data="mnist-5k", victims=1, steps=2, size=16, published="12.3")
        for model in ("convnet:width=2", "mlp-2")
    ),
)


def test_every_model_is_in_the_study_of_architectures() -> None:
    rows = [row for row in studies.BY_NAME["architectures"].rows if row.attack == "ig" and row.steps == 200]
    assert sorted(row.model.partition(":")[0] for row in rows) == sorted(models.BY_NAME)


def test_psnrs_of_inverting_gradients_stand_in_both_units() -> None:
    """Its program normalises before it takes them; CIFAR-10's deviations say what that is worth."""
    std = torch.tensor([0.2470, 0.2435, 0.2616])[:, None, None]
    error = torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(0))
    below = 10 * float((error / std).square().mean().log10() - error.square().mean().log10())
    said = [row.published or "" for name in ("ablation", "pooling") for row in studies.BY_NAME[name].rows]
    assert said[0] == "31.4 (19.36 on normalised images), basic setup"
    for text in said:
        ours, theirs = text.split(" on ")[0].split(" (")
        assert float(ours) - float(theirs) == pytest.approx(below, abs=0.1)


def there(study: studies.Study, folder: Path) -> list[bool]:
    """Whether each row was kept before it was asked for."""
    seen: list[Progress] = []
    found = studies.run(study, folder, told=seen.append)
    assert all(outcome for _, outcome, _ in found)
    return [entry.digest in seen[-1].before for *_, entry in found]


def test_rows_are_kept_with_their_pictures(tmp_path: Path) -> None:
    one = replace(TINY, rows=TINY.rows[:1])
    first = studies.run(one, tmp_path)
    seen: list[Progress] = []
    again = studies.run(TINY, str(tmp_path), told=seen.append)
    assert again[0] == first[0]
    assert seen[-1].before == {again[0][2].digest}
    with Store(tmp_path, create=False) as store:
        assert store.result(again[1][2].digest).images.shape == (1, 1, 1, 16, 16)


def test_a_row_is_the_audit_that_the_command_makes(tmp_path: Path) -> None:
    ((_, outcome, _),) = studies.run(replace(TINY, rows=TINY.rows[:1]), tmp_path)
    assert outcome
    words = "audit --model convnet:width=2 --data mnist-5k --size 16 --attack ig --victims 1 --steps 2 --json"
    found = CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path / "run")])
    assert found.exit_code == 0, found.output
    scores = json.loads((tmp_path / "run" / "records.json").read_text())["scores"]
    assert outcome.psnr == scores["scores"]["psnr"]["mean"]
    assert outcome.blind_psnr == scores["baseline"]["psnr"]["mean"]


def test_the_study_of_labels_trains_defends_and_prints_labels(tmp_path: Path) -> None:
    study = studies.BY_NAME["labels"]
    few = {"model": "lenet:width=2", "data": "mnist-5k", "attack": "labels", "victims": 3, "batch": 4, "steps": None}
    rows = (
        studies.Row(**few),  # type: ignore[arg-type]
        studies.Row(**few, defense="noise:sigma=10|prune:ratio=0"),  # type: ignore[arg-type]
        studies.Row(**few, protocol="bayes:rounds=1,steps=3"),  # type: ignore[arg-type]
    )
    found = list(studies.run(replace(study, rows=rows), tmp_path))
    plain, noisy, trained = (outcome for _, outcome, _ in found if outcome)
    assert (plain.labels, plain.updates) == ("12 of 12", "3 of 3")
    assert noisy.updates == "0 of 3"
    assert trained.blind_psnr == plain.blind_psnr
    table = studies.as_markdown(study, [(row, outcome) for row, outcome, _ in found if outcome])
    assert table.splitlines()[0].startswith("| model | attack | defense | trained | updates | labels right |")
    assert "| noise:sigma=10\\|prune:ratio=0 | - | 3 of 4 |" in table
    assert "| none | 3 steps | 3 of 4 |" in table


def test_rows_after_training_say_how_long_and_how_well(tmp_path: Path) -> None:
    study = studies.BY_NAME["fedkl"]
    few = [replace(row, data="mnist-5k", victims=1) for row in study.rows if row.attack == "unlock"]
    rows = tuple(replace(row, protocol=row.protocol and "fedkl:clients=2,rounds=1,epochs=none,steps=2") for row in few)
    study = replace(study, rows=rows)
    found = [(row, outcome) for row, outcome, _ in studies.run(study, tmp_path) if outcome]
    (_, before), (_, after) = found
    assert before.accuracy is None
    assert after.accuracy is not None
    assert before.read == after.read == "1 of 1"  # of weights that training changed
    assert before.psnr != after.psnr
    first, second = studies.as_markdown(study, found).splitlines()[2:]
    assert "| `lenet` | - | - | fedkl:round=later | `unlock` |" in first
    assert f"| `lenet` | 2 steps | {after.accuracy:.1%} |" in second


def test_a_row_whose_training_ends_early_says_when(tmp_path: Path) -> None:
    words = small_federation.words(tmp_path)
    early = "ppp:clients=3,rounds=50,lr=0.3,validation=0.25,patience=2"
    row = studies.Row(**words, victims=1, steps=1, protocol=early)
    ((_, outcome, _),) = studies.run(replace(TINY, rows=(row,)), tmp_path / "kept")
    assert outcome
    assert outcome.rounds
    assert 2 < outcome.rounds < 50
    assert 0 <= (outcome.accuracy or 0) <= 1
    assert module.COLUMNS["trained"](row, outcome) == f"{outcome.rounds} rounds"
    stepwise = replace(row, protocol="fedsgd:rounds=50,steps=4")
    assert module.COLUMNS["trained"](stepwise, outcome) == f"{4 * outcome.rounds} steps"
    assert module.COLUMNS["trained"](row, outcome._replace(rounds=None)) == "50 rounds"


def test_settings_are_chosen_on_other_images_than_the_victims(tmp_path: Path) -> None:
    tries = ("bayes:tv=1000", "bayes:tv=0.01")
    row = studies.Row(
        model="mlp-2", data="mnist-5k", size=8, victims=3, steps=30, tries=tries, defense="noise:sigma=0.01"
    )
    ((_, outcome, _),) = studies.run(replace(TINY, rows=(row,)), tmp_path)
    assert outcome
    assert outcome.chosen == "bayes:tv=0.01"
    victims = set(pick(load_task(row.model, row.data, seed=0, size=8).dataset, 3).indices.flatten().tolist())
    with Store(tmp_path, create=False) as store:
        results = {store.result(each.digest): each.words.get("shadows") for each in store.entries()}
    assert sorted(map(str, results.values())) == ["8", "8", "None"]
    for result, shadows in results.items():
        seen = set(result.victims.indices.flatten().tolist())
        assert len(seen) == (shadows or 3)
        assert bool(seen & victims) != bool(shadows)


def test_studies_share_a_training(tmp_path: Path) -> None:
    words = small_federation.words(tmp_path)
    row = studies.Row(**words, victims=1, steps=1, protocol="ppp:rounds=2,clients=3")
    one, other = replace(TINY, rows=(row,)), replace(TINY, name="other", rows=(replace(row, attack="idlg"),))
    ((_, first, _),) = studies.run(one, tmp_path / "kept")
    ((_, second, _),) = studies.run(other, tmp_path / "kept")
    assert first
    assert second
    assert first.accuracy == second.accuracy is not None
    with Store(tmp_path / "kept", create=False) as store:
        assert sorted(each.kind for each in store.entries(Status.DONE)) == ["audit", "audit", "training"]


def test_files_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"rows": [1]}')
    with pytest.raises(DataError, match=r"found 'study.json'; choose another --out"):
        studies.run(TINY, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


def test_rows_of_other_files_settings_or_code_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, kept = small_federation.words(tmp_path), tmp_path / "kept"
    row = studies.Row(**words, victims=1, steps=1)
    study = replace(TINY, rows=(row,))
    assert [there(study, kept) for _ in range(2)] == [[False], [True]]
    assert there(replace(study, rows=(replace(row, published="1"),)), kept) == [True]  # which is no result of ours
    net = Path("mine.py")
    net.write_text(net.read_text().replace("ReLU", "Tanh"))
    assert [there(study, kept) for _ in range(2)] == [[False], [True]]
    arrays = dict(np.load("rows.npz"))
    arrays["train_images"][3] += 1
    np.savez("rows.npz", **arrays)
    assert [there(study, kept) for _ in range(2)] == [[False], [True]]
    assert there(replace(study, threshold=0.4), kept) == [False]
    monkeypatch.setattr(versions, "_core", lambda: frozenset({"dosimeter.rng"}))  # another program
    assert there(study, kept) == [False]
    with Store(kept, create=False) as store:
        assert len(store.entries()) == 5


@pytest.mark.parametrize("name", ["ppp", "cvb", "soteria", "fedkl", "pruned", "labels", "ablation"])
def test_steps_and_data_are_those_of_every_row(name: str) -> None:
    for row in studies.BY_NAME[name].rows:
        changed = row.on(steps=7, data="mnist-5k", victims=3)
        assert (changed.data, changed.victims, changed.published) == ("mnist-5k", 3, None)
        makers = [spec.parse("attack", words, presets.BY_NAME) for words in (changed.attack, *changed.tries)]
        for attack, settings in makers:
            made = spec.make("attack", changed.attack, presets.BY_NAME, steps=changed.steps)
            takes = "steps" in inspect.signature(presets.BY_NAME[attack]).parameters
            assert (settings.get("steps") or changed.steps) == (7 if takes else None)
            assert not isinstance(made, Search) or made.stop.steps == 7
        assert row.on(data=row.data, steps=7).published == row.published


def test_a_study_has_the_threshold_of_its_paper_unless_another_is_said(tmp_path: Path) -> None:
    assert {name: study.threshold for name, study in studies.BY_NAME.items() if study.threshold != 0.5} == {"ppp": 0.4}
    reads = {}
    for threshold in (1e-6, 1.0):
        ((_, outcome, _),) = studies.run(replace(TINY, rows=TINY.rows[:1], threshold=threshold), tmp_path)
        assert outcome
        reads[threshold] = outcome.read
    assert reads == {1e-6: "1 of 1", 1.0: "0 of 1"}


def test_the_figure_tells_attacks_apart_by_the_settings_in_which_they_differ(tmp_path: Path) -> None:
    short = "steps=1,restarts=1,distance=mean-cosine,secrets"
    rows = tuple(
        studies.Row(model="lenet:width=2", data="mnist-5k", victims=1, defense="fedkl", attack=attack, steps=None)
        for attack in (f"ig:{short}=joint", f"ig:{short}=known", "unlock")
    )
    found = [(row, outcome) for row, outcome, _ in studies.run(replace(TINY, rows=rows), tmp_path) if outcome]
    names = ["fedkl, ig secrets=joint", "fedkl, ig secrets=known", "fedkl, unlock"]
    assert list(named_bars(found)) == names


def test_the_command_prints_a_table_and_refuses_unknown_names(tmp_path: Path) -> None:
    words = ["study", "pooling", "--data", "mnist-5k", "--victims", "1", "--steps", "1", "--threshold", "0.3"]
    found = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "An image is read from an SSIM of 0.3." in found.output
    assert "| `convnet:width=8,pooling=average` | 1 of mnist-5k | 1 |" in found.output
    assert "17.87" not in found.output  # which is published of CIFAR-10
    assert not (tmp_path / "study.svg").exists()  # whose rows differ in their model
    page = (tmp_path / "study.html").read_text()
    assert "dosimeter study pooling --data mnist-5k" in page
    assert page.count('id="picture-') == 2  # a row's picture each
    assert "data:image" in page
    assert str(tmp_path) not in page
    for wrong in (["study", "poling"], ["study", "pooling", "--only", "resnet"]):
        refused = CliRunner().invoke(app, wrong)
        assert refused.exit_code == 2
        assert refused.output.count("\n") == 1


def test_a_killed_study_runs_only_what_is_missing_and_prints_the_same(tmp_path: Path) -> None:
    words = ["study", "pooling", "--data", "mnist-5k", "--victims", "1", "--steps", "1", "--out"]
    whole = CliRunner().invoke(app, [*words, str(tmp_path / "whole")])
    line = [sys.executable, "-c", "from dosimeter.cli import main; main()", *words, str(tmp_path / "broken")]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("broken/trials/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Store(tmp_path / "broken", create=False) as store:
        done = {each.digest: each.began for each in store.entries(Status.DONE)}
    again = CliRunner().invoke(app, [*words, str(tmp_path / "broken")])
    with Store(tmp_path / "broken", create=False) as store:
        after = {each.digest: each.began for each in store.entries(Status.DONE)}
    assert len(done) < len(after) == 2
    assert done.items() <= after.items()
    tables = [found.stdout.partition("report")[0] for found in (whole, again)]
    assert tables[0] == tables[1] != ""


OWN = """
from dosimeter.defenses import NoDefense

class Own(NoDefense):
    def on_gradient(self, gradient, moment, rng):
        raise ZeroDivisionError("mine")
"""


def test_a_row_that_fails_stops_no_other_and_is_said_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = small_federation.words(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    good = studies.Row(**words, victims=1, steps=1)
    bad = replace(good, defense=f"{tmp_path}/own.py:Own")
    monkeypatch.setitem(studies.BY_NAME, "pooling", replace(TINY, rows=(bad, good)))
    found = CliRunner().invoke(app, ["study", "pooling", "--out", str(tmp_path / "kept")])
    assert found.exit_code == 1, found.output
    assert "in on_gradient: ZeroDivisionError: mine" in found.stderr
    assert "1 trial failed; see dosimeter store list" in found.stderr
    assert found.stdout.count("mine.py:make` |") == 1
