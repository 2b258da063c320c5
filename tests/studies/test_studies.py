"""Studies: every model is in the first, a stopped one goes on, and its table says what was run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import small_federation
from dosimeter import defenses, models, rng, studies
from dosimeter.cli import app
from dosimeter.cli.study import draw
from dosimeter.data import pick
from dosimeter.errors import OutputError
from dosimeter.studies import sweep
from dosimeter.task import Task, load_task

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
    kept = json.loads((tmp_path / "study.json").read_text())
    assert [entry["row"]["model"] for entry in kept["rows"]] == [row.model for row in TINY.rows]
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
        task = load_task(row.model, row.data, row.victims, seed=0)
        with rng.scoped(0, "defense", "model"):
            before = defense.on_model(task.model, task.dataset.shape)
        made = [sweep._train(task, row, defense, protocol) for _ in range(2)]
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
    task = Task(small_federation.model(), small_federation.dataset(), pick(small_federation.dataset(), 1), {})
    protocol = row.training()
    assert protocol is not None
    found = sweep._train(task, row, defenses.NoDefense(), protocol)
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
    outcome = sweep._audit(row, {})
    assert outcome.chosen == "bayes:tv=0.01"
    *shadows, victims = seen
    assert len(shadows) == 2
    assert all(len(one) == sweep.SHADOWS and not one & victims for one in shadows)


def test_a_file_that_says_less_of_its_rows_is_read_with_the_defaults(tmp_path: Path) -> None:
    next(iter(studies.run(TINY, tmp_path)))
    path = tmp_path / "study.json"
    kept = json.loads(path.read_text())
    for name in ("batch", "defense", "protocol"):
        del kept["rows"][0]["row"][name]
    for name in ("labels", "guess", "updates", "accuracy"):
        del kept["rows"][0]["outcome"][name]
    path.write_text(json.dumps(kept))
    assert next(iter(studies.run(TINY, tmp_path)))[2]


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"rows": [1]}')
    with pytest.raises(OutputError, match="no study"):
        next(iter(studies.run(TINY, tmp_path)))
    assert (tmp_path / "study.json").read_text() == '{"rows": [1]}'


def test_the_figure_tells_attacks_apart_by_the_settings_in_which_they_differ(tmp_path: Path) -> None:
    short = "steps=1,restarts=1,distance=mean-cosine,secrets"
    rows = tuple(
        studies.Row(model="lenet:width=2", data="mnist-5k", victims=1, defense="fedkl", attack=attack, steps=None)
        for attack in (f"ig:{short}=joint", f"ig:{short}=known", "unlock")
    )
    found = [(row, outcome) for row, outcome, _ in studies.run(replace(TINY, rows=rows), tmp_path)]
    draw(found, tmp_path)
    drawn = (tmp_path / "study.svg").read_text()
    for name in ("fedkl, ig secrets=joint", "fedkl, ig secrets=known", "fedkl, unlock"):
        assert f">{name}<" in drawn


def test_the_command_prints_a_table_and_refuses_unknown_names(tmp_path: Path) -> None:
    words = ["study", "pooling", "--data", "mnist-5k", "--victims", "1", "--steps", "1", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert "| `convnet:width=8,pooling=average` | 1 of mnist-5k | 1 |" in found.output
    assert "29.9 (17.87 on normalised images), width 64" in found.output
    assert not (tmp_path / "study.svg").exists()  # whose rows differ in their model
    for wrong in (["study", "poling"], ["study", "pooling", "--only", "resnet"]):
        refused = CliRunner().invoke(app, wrong)
        assert refused.exit_code == 2
        assert refused.output.count("\n") == 1
