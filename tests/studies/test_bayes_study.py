"""The right densities of the Bayes paper's synthetic task, at a size for tests."""

import json
from pathlib import Path

from dosimeter import studies


def test_the_right_density_is_nearer_than_the_wrong_one(tmp_path: Path) -> None:
    found = list(studies.compare_densities(40, 60, folder=tmp_path))
    assert [(row.prior, row.density) for row in found] == [
        ("Gaussian", "Laplace"),
        ("Gaussian", "Gaussian"),
        ("Laplace", "Laplace"),
        ("Laplace", "Gaussian"),
    ]
    assert found[0].more == 0
    assert all(row.more > 2 * row.more_error for row in (found[1], found[3]))
    assert json.loads((tmp_path / "densities.json").read_text())["points"] == 40
    table = studies.distances_as_markdown(found)
    assert table.count("\n") == 5
    assert f"{found[1].mean:.4f}" in table
