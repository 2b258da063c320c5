"""Studies: every model is in the first, a stopped one goes on, and its table says what was run."""

import inspect
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import small_federation
from dosimeter import defenses, fingerprint, models, rng, spec, studies
from dosimeter.attacks import Search, presets
from dosimeter.auditing import Scoring
from dosimeter.cli import app
from dosimeter.cli.study import named_bars
from dosimeter.errors import OutputError
from dosimeter.federated import Federation
from dosimeter.studies import sweep
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


def test_a_stopped_study_goes_on_where_it_was(tmp_path: Path) -> None:
    first = next(iter(studies.run(TINY, tmp_path)))
    assert not first[2]
    again = list(studies.run(TINY, str(tmp_path)))
    assert [there for *_, there in again] == [True, False]
    assert again[0][:2] == first[:2]
    kept = json.loads((tmp_path / "study.json").read_text())["found"]
    assert [entry["row"]["model"] for entry in kept.values()] == [row.model for row in TINY.rows]
    other = replace(TINY, rows=(replace(TINY.rows[0], steps=3),))
    assert [there for *_, there in studies.run(other, tmp_path)] == [False]


def test_a_row_is_the_audit_that_the_command_makes(tmp_path: Path) -> None:
    _, outcome, _ = next(iter(studies.run(TINY, tmp_path)))
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
    plain, noisy, trained = (outcome for _, outcome, _ in found)
    assert (plain.labels, plain.updates) == ("12 of 12", "3 of 3")
    assert noisy.updates == "0 of 3"
    assert trained.blind_psnr == plain.blind_psnr
    table = studies.as_markdown(study, [(row, outcome) for row, outcome, _ in found])
    assert table.splitlines()[0].startswith("| model | attack | defense | trained | updates | labels right |")
    assert "| noise:sigma=10\\|prune:ratio=0 | - | 3 of 4 |" in table
    assert "| none | 3 steps | 3 of 4 |" in table


def test_training_changes_the_model_and_is_the_same_again() -> None:
    row = studies.Row(model="lenet:width=2", data="mnist-5k", victims=1, protocol="bayes:rounds=2,steps=1")
    assert row.trained(None) == "2 steps"
    protocol = row.training()
    assert protocol is not None
    for defense in (defenses.NoDefense(), defenses.Precode(k=4)):
        task = load_task(row.model, row.data, seed=0)
        with rng.scoped(0, "defense", "model"):
            before = defense.on_model(task.model, task.dataset.shape)
        whole = Federation(model=task.model, dataset=task.dataset, protocol=protocol, defense=defense)
        made = [sweep._train(whole) for _ in range(2)]
        assert 0 <= made[0].accuracy == made[1].accuracy <= 1
        once, again = (each.defense.on_model(before, (1, 1, 1)) for each in made)
        pairs = list(zip(before.parameters(), once.parameters(), again.parameters(), strict=True))
        assert all(torch.equal(b, c) for _, b, c in pairs)
        assert not any(torch.equal(a, b) for a, b, _ in pairs)
        assert not once.training


def test_rows_after_training_say_how_long_and_how_well(tmp_path: Path) -> None:
    study = studies.BY_NAME["fedkl"]
    few = [replace(row, data="mnist-5k", victims=1) for row in study.rows if row.attack == "unlock"]
    rows = tuple(replace(row, protocol=row.protocol and "fedkl:clients=2,rounds=1,epochs=none,steps=2") for row in few)
    study = replace(study, rows=rows)
    found = [(row, outcome) for row, outcome, _ in studies.run(study, tmp_path)]
    (_, before), (_, after) = found
    assert before.accuracy is None
    assert after.accuracy is not None
    assert before.read == after.read == "1 of 1"  # of weights that training changed
    assert before.psnr != after.psnr
    first, second = studies.as_markdown(study, found).splitlines()[2:]
    assert "| `lenet` | - | - | fedkl:round=later | `unlock` |" in first
    assert f"| `lenet` | 2 steps | {after.accuracy:.1%} |" in second


def test_a_row_whose_training_ends_early_says_when() -> None:
    row = studies.Row(model="mine", victims=1, protocol="ppp:clients=3,rounds=50,lr=0.2,validation=0.25,patience=2")
    protocol = row.training()
    assert protocol is not None
    found = sweep._train(replace(small_federation.federation(), protocol=protocol))
    assert 2 < found.rounds < 50
    assert 0 <= found.accuracy <= 1
    outcome = studies.Outcome(0.0, 0.0, 0.0, 0.0, "", 0.0, rounds=found.rounds)
    assert sweep.COLUMNS["trained"](row, outcome) == f"{found.rounds} rounds"
    stepwise = replace(row, protocol="fedsgd:rounds=50,steps=4")
    assert sweep.COLUMNS["trained"](stepwise, outcome) == f"{4 * found.rounds} steps"
    older = outcome._replace(rounds=None)  # of a file that does not say it
    assert sweep.COLUMNS["trained"](row, older) == "50 rounds"


def test_settings_are_chosen_on_other_images_than_the_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = ("bayes:tv=1000", "bayes:tv=0.01")
    row = studies.Row(
        model="mlp-2", data="mnist-5k", size=8, victims=3, steps=60, tries=tries, defense="noise:sigma=0.01"
    )
    seen: list[set[int]] = []
    audited = sweep.audit

    def watch(model, victims, **more):  # type: ignore[no-untyped-def]
        seen.append(set(victims.indices.flatten().tolist()))
        return audited(model, victims, **more)

    monkeypatch.setattr(sweep, "audit", watch)
    outcome = sweep._audit(sweep._case(row, Scoring()), {})
    assert outcome.chosen == "bayes:tv=0.01"
    *shadows, victims = seen
    assert len(shadows) == 2
    assert all(len(one) == sweep.SHADOWS and not one & victims for one in shadows)


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"rows": [1]}')
    with pytest.raises(OutputError, match="no file of this version"):
        next(iter(studies.run(TINY, tmp_path)))
    assert (tmp_path / "study.json").read_text() == '{"rows": [1]}'


def there(study: studies.Study, folder: Path) -> list[bool]:
    return [kept for *_, kept in studies.run(study, folder)]


def test_studies_in_one_folder_keep_each_others_rows(tmp_path: Path) -> None:
    one, other = replace(TINY, rows=TINY.rows[:1]), replace(TINY, name="other", rows=TINY.rows[1:])
    running = studies.run(TINY, tmp_path)
    next(running)
    assert there(other, tmp_path) == [False]  # while the first has not ended
    assert [kept for *_, kept in running] == [True]
    assert there(one, tmp_path) == there(other, tmp_path) == [True]


def test_rows_of_other_files_settings_or_code_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh())"
    Path("mine.py").write_text(net)
    arrays = {
        f"{split}_{part}": getattr(small_federation.dataset(), f"{split}_{part}")
        for split in ("train", "test")
        for part in ("images", "labels")
    }
    np.savez("rows.npz", **arrays)
    row = studies.Row(model="mine.py:make", data="rows.npz", victims=1, steps=1)
    study = replace(TINY, rows=(row,))
    assert [there(study, tmp_path) for _ in range(2)] == [[False], [True]]
    assert there(replace(study, rows=(replace(row, published="1"),)), tmp_path) == [True]  # which is no result of ours
    Path("mine.py").write_text(net.replace("Tanh", "ReLU"))
    assert [there(study, tmp_path) for _ in range(2)] == [[False], [True]]
    arrays["train_images"][3] += 1
    np.savez("rows.npz", **arrays)
    assert [there(study, tmp_path) for _ in range(2)] == [[False], [True]]
    assert there(replace(study, threshold=0.4), tmp_path) == [False]
    monkeypatch.setattr(fingerprint, "code", lambda: "another version")
    assert there(study, tmp_path) == [False]
    assert len(json.loads(Path("study.json").read_text())["found"]) == 5


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
        reads[threshold] = outcome.read
    assert reads == {1e-6: "1 of 1", 1.0: "0 of 1"}


def test_the_figure_tells_attacks_apart_by_the_settings_in_which_they_differ(tmp_path: Path) -> None:
    short = "steps=1,restarts=1,distance=mean-cosine,secrets"
    rows = tuple(
        studies.Row(model="lenet:width=2", data="mnist-5k", victims=1, defense="fedkl", attack=attack, steps=None)
        for attack in (f"ig:{short}=joint", f"ig:{short}=known", "unlock")
    )
    found = [(row, outcome) for row, outcome, _ in studies.run(replace(TINY, rows=rows), tmp_path)]
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
    assert str(tmp_path) not in page
    for wrong in (["study", "poling"], ["study", "pooling", "--only", "resnet"]):
        refused = CliRunner().invoke(app, wrong)
        assert refused.exit_code == 2
        assert refused.output.count("\n") == 1
