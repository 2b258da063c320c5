"""`dosimeter search-policies` as a person meets it."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dosimeter import defenses, spec
from dosimeter.cli import app

TASK = ("--model", "mlp-2:width=8", "--data", "dots.npz")
SEARCH = ("search-policies", *TASK, "--candidates", "4", "--images", "3", "--epochs", "1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a data set of 8x8 pixels."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    sets = {"train": rng.integers(0, 256, (30, 8, 8), dtype="uint8"), "test": rng.integers(0, 256, (4, 8, 8), "uint8")}
    given = {f"{split}_images": images for split, images in sets.items()}
    np.savez("dots.npz", **given, **{f"{split}_labels": np.arange(len(i)) % 3 for split, i in sets.items()})
    return tmp_path


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_policies_are_found_written_and_used(here: Path) -> None:
    code, out, err = call(*SEARCH)
    assert code == 0, err
    document = json.loads(Path("policies.json").read_text())
    found = document["policies"]
    assert len(found) == 2
    assert document["said"]["candidates"] == 4
    assert found[0]["leakage"] <= found[1]["leakage"]
    used = f"ats:policy={found[0]['policy']}+{found[1]['policy']}"
    assert "2 of 4 policies" in out
    assert all(one["policy"] in out for one in found)
    assert " ".join(out.replace("\\\n", "").split()).endswith(f"dosimeter audit {' '.join(TASK)} --defense {used}")
    assert spec.joined("defense", used, defenses.BY_NAME) == defenses.Ats(policy=used.partition("=")[2])
    assert call(*SEARCH, "--overwrite")[1] == out


def test_what_does_not_fit_is_refused_in_one_line(here: Path) -> None:
    Path("old.json").write_text("{}")
    cases = {
        "at most 1, got --keep 2": (*SEARCH, "--keep", "2"),
        "there already": (*SEARCH, "--out", "old.json"),
        "Not a directory": (*SEARCH, "--data", "nothing", "--out", "old.json/new.json"),
        "nothing": (*SEARCH, "--data", "nothing"),
    }
    for words, command in cases.items():
        code, out, err = call(*command)
        assert (code, out) == (2, ""), words
        assert words in err
        assert len(err.strip().splitlines()) == 1
    assert sorted(p.name for p in here.iterdir()) == ["dots.npz", "old.json"]


def test_ctrl_c_leaves_no_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(defenses, "search_policies", interrupted)
    code, _, err = call(*SEARCH)
    assert code == 130
    assert "no policies were written" in err
    assert [p.name for p in here.iterdir()] == ["dots.npz"]


def test_policies_of_autoaugments_own_list(here: Path) -> None:
    code, out, err = call(*SEARCH, "--variant", "autoaugment")
    assert code == 0, err
    assert out.rstrip().endswith(",variant=autoaugment")
    code, _, err = call(*SEARCH, "--variant", "paper", "--overwrite")
    assert code == 2
    assert "autoaugment" in err
