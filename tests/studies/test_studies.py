"""Studies: every model is in the first, a stopped one goes on, and its table says what was run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dosimeter import models, studies
from dosimeter.cli import app
from dosimeter.errors import OutputError

TINY = replace(
    studies.BY_NAME["pooling"],
    rows=tuple(
        studies.Row(model=model, data="mnist-5k", victims=1, steps=2, size=16, published="12.3")
        for model in ("convnet:width=2", "mlp-2")
    ),
)


def test_every_model_is_in_the_study_of_architectures() -> None:
    rows = studies.BY_NAME["architectures"].rows
    assert sorted(row.model.partition(":")[0] for row in rows) == sorted(models.BY_NAME)
    assert len({row.steps for row in rows}) == 1


def test_a_stopped_study_goes_on_where_it_was(tmp_path: Path) -> None:
    first = next(iter(studies.run(TINY, tmp_path)))
    assert not first[2]
    again = list(studies.run(TINY, tmp_path))
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


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"rows": [1]}')
    with pytest.raises(OutputError, match="no study"):
        next(iter(studies.run(TINY, tmp_path)))
    assert (tmp_path / "study.json").read_text() == '{"rows": [1]}'


def test_the_command_prints_a_table_and_refuses_unknown_names(tmp_path: Path) -> None:
    words = ["study", "pooling", "--data", "mnist-5k", "--victims", "1", "--steps", "1", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert "| `convnet:width=8,pooling=average` | 1 of mnist-5k | 1 |" in found.output
    assert "17.87 at width 64" in found.output
    for wrong in (["study", "poling"], ["study", "pooling", "--only", "resnet"]):
        refused = CliRunner().invoke(app, wrong)
        assert refused.exit_code == 2
        assert refused.output.count("\n") == 1
