"""The map of the field on two defenses of one model."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dosimeter.cli import app
from dosimeter.cli.reproduced import heat_of
from dosimeter.papers import atlas, field
from dosimeter.reports.raster import write_png


def test_a_map_has_every_attack_accuracy_and_what_does_not_fit(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOSIMETER_DATA", str(data_folder))
    places = field.chart(tmp_path, scale="smoke", models=("MLP",), defenses=("none", "FedKL"))
    by = {(each.defense, each.trained): each for each in places}
    assert set(by) == {(defense, trained) for defense in ("none", "FedKL") for trained in (False, True)}
    plain = by["none", False]
    assert plain.read == (1, 1)  # in closed form
    assert any(each.attack == "analytic" for each in plain.attacks)
    assert by["none", True].accuracy is not None
    assert by["none", True].accuracy > 0
    assert "no convolution" in by["FedKL", False].why_not or "has none" in by["FedKL", False].why_not
    text = atlas.page(places, "smoke", command="dosimeter reproduce map", machine="a machine")
    assert "1 of 1 read" in text
    assert "What does not go together" in text
    write_png(tmp_path / "map.png", heat_of(places))
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_every_defense_of_the_map_goes_with_some_model() -> None:
    asked = field.trials("laptop")
    assert len(asked) == 2 * len(field.MODELS) * len(field.DEFENSES)
    assert all((course is not None) == place.trained for place, _, course in asked)
    assert all(trial.training == course for _, trial, course in asked)


def test_a_dry_run_of_the_map_runs_nothing(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIMETER_DATA", str(data_folder))
    monkeypatch.chdir(tmp_path)
    asked = field.trials("smoke", models=("CNN",), defenses=("none",))
    monkeypatch.setattr(field, "trials", lambda scale: asked)
    monkeypatch.setattr(field, "run_all", lambda *_, **__: pytest.fail("trials were run"))
    done = CliRunner().invoke(app, ["reproduce", "map", "--scale", "smoke", "--dry-run", "--results", "docs"])
    assert done.exit_code == 0, done.output
    assert ["map", "3", "0"] in [line.split()[:3] for line in done.output.splitlines()]
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(("read", "hidden", "said"), [(1, 1, "1 of 2 read"), (0, 2, "hidden"), (0, 1, "undecided")])
def test_nothing_read_is_called_hidden_only_where_all_images_are(read: int, hidden: int, said: str) -> None:
    place = field.Place("none", "MLP", False, read=(read, 2), hidden=hidden)
    assert said in heat_of([place])
