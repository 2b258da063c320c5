"""Every table and figure of the papers runs: its smallest scale prints what was measured beside what is published."""

from pathlib import Path

import pytest

from dosimeter import papers
from dosimeter.papers.quantities import QUANTITIES
from dosimeter.papers.show import cells, markdown


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all, as items share trials."""
    return tmp_path_factory.mktemp("papers") / "store"


@pytest.mark.parametrize("key", papers.ITEMS)
def test_an_item_runs(key: str, kept: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOSIMETER_DATA", str(data_folder))
    item = papers.ITEMS[key]
    small = item.at("smoke")
    found = papers.reproduce(item, kept, scale="smoke")
    assert [row.name for row in found] == [case.name for case in small.cases]
    assert any(not row.why_not for row in found)
    text = markdown(item, found, "smoke")
    for case, row, shown in zip(small.cases, found, cells(item, found, marked=False), strict=True):
        if row.why_not:
            assert row.why_not.startswith("needs "), row.why_not
            assert f"not run: needs {case.needs}" in text
            continue
        measured = [name for name in item.quantities if name in row.values]
        assert measured, (row.name, item.quantities)
        for name, cell in zip(item.quantities, shown[len(item.heading) :], strict=False):
            mine, theirs = row.values.get(name), case.value(name)
            assert cell.startswith("-") == (mine is None or mine.mean < 0)
            if theirs is not None:
                assert f"({theirs.mean:.{QUANTITIES[name].digits}f}" in cell
    if item.figure == "series":
        assert all(row.series for row in found if not row.why_not)
