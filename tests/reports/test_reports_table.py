"""A result on terminals of all kinds."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dosimeter.auditing import Result
from dosimeter.reports import print_result


def printed(result: Result, *, width: int = 120, where: Path | None = None) -> str:
    file = io.StringIO()
    print_result(result, Console(file=file, width=width), where=where)
    return file.getvalue()


def test_everything_is_said(colour: Result) -> None:
    text = printed(colour, where=Path("runs/a/report.html"))
    one = colour.scores["ssim"]
    assert f"{one.mean:.3f} ± {one.std:.3f}" in text
    for part in ("ig on cnn, noise", "5 updates of 1 image", "without the update", "chance 10 %", "Labels right"):
        assert part in text
    for part in ("labels of the private batch not granted", "complete in", "runs/a/report.html"):
        assert part in text
    for score in ("SSIM", "PSNR", "MSE"):
        assert score in text


def test_worst_is_the_best_read(colour: Result) -> None:
    line = next(line for line in printed(colour).splitlines() if line.strip().startswith("MSE "))
    assert f"{colour.scores['mse'].min:.3f}" in line


def test_names_are_no_markup(colour: Result) -> None:
    settings = colour.settings | {"model": "[red]cnn[/red] [/] \\", "data": "[link=x]\x1b[2Jdata"}
    text = printed(replace(colour, settings=settings))
    assert "[red]cnn[/red] [/] \\" in text
    assert "[link=x]" in text
    assert "\x1b" not in text


def test_interruption_is_said(colour: Result) -> None:
    assert "This audit was interrupted" in printed(replace(colour, status="interrupted"))
    assert "interrupted" not in printed(colour)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_narrow_terminals(grey: Result, width: int) -> None:
    assert max(map(len, printed(grey, width=width).splitlines())) <= width


def test_ascii_terminals(colour: Result) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_result(replace(colour, settings=colour.settings | {"model": "café"}), Console(file=file, width=100))
    file.flush()
    assert b"caf?" in raw.getvalue()
