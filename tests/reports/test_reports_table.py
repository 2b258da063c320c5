"""A result on terminals of all kinds."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dosimeter.auditing import Result, Trial
from dosimeter.reports import print_result, print_several


def printed(result: Result, *, width: int = 120, where: Path | None = None, explain: bool = False) -> str:
    file = io.StringIO()
    print_result(result, Console(file=file, width=width), where=where, explain=explain)
    return file.getvalue()


def words(text: str) -> set[str]:
    return set(re.split(r"[\s,:]+", text))


def test_everything_is_said_where_it_is_asked_for(colour: Result) -> None:
    text = printed(colour, where=Path("runs/a/report.html"), explain=True)
    one = colour.scores["ssim"]
    assert f"{one.mean:.3f} ± {one.std:.3f}" in text
    for part in ("ig on cnn, noise", "5 updates of 1 image", "without the update", "chance 10 %", "Labels right"):
        assert part in text
    for part in ("labels of the private batch not granted", "complete in", "runs/a/report.html"):
        assert part in text
    for score in ("SSIM", "PSNR", "MSE"):
        assert score in text


def test_one_screen_says_what_matters(colour: Result) -> None:
    lines = printed(colour, width=80, where=Path("runs/a/report.html")).splitlines()
    assert len(lines) < 30
    text = "\n".join(lines)
    for part in ("The updates leak: 5 of 5 labels", "SSIM", "PSNR", "MSE", "Labels right", "Images read"):
        assert part in text
    for left in ("MSE, standardised", "chance 10 %", "rounds 1 update"):
        assert left not in text
    assert lines[-2].split() == ["report", "runs/a/report.html"]
    assert lines[-1].startswith("next  ")


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


@pytest.mark.parametrize("explain", [False, True], ids=["short", "explained"])
@pytest.mark.parametrize("width", [20, 40, 80])
def test_narrow_terminals_break_no_word(grey: Result, width: int, explain: bool) -> None:
    wide, narrow = (printed(grey, width=each, explain=explain) for each in (400, width))
    assert max(map(len, narrow.splitlines())) <= width
    assert set(narrow.replace(",", " ").replace(":", " ").split()) <= set(
        wide.replace(",", " ").replace(":", " ").split()
    )


def test_a_panel_says_why_attacks_were_refused_where_it_is_asked_for(colour: Result) -> None:
    fits = Trial(attack="ig", role="published", about="", result=colour)
    refused = Trial(attack="analytic", role="adaptive", about="", refused="it has no such layer")
    whole = replace(colour, panel=(fits, refused), verdict="1 attack was tried.")
    text, told = printed(whole, width=80), printed(whole, width=80, explain=True)
    assert "analytic (--explain says why)" in text
    assert "no such layer" not in text
    assert "analytic was refused: it has no such layer" in told
    assert "1 attack was tried." in told


def test_several_audits_are_a_line_each(colour: Result, grey: Result) -> None:
    file = io.StringIO()
    print_several([("first", colour), ("second", grey)], Console(file=file, width=80))
    head, *lines = file.getvalue().splitlines()
    assert head.split() == ["audit", "verdict", "best", "attack", "images", "read", "SSIM", "evidence"]
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["first", "second"]
    assert "leaks" in lines[0]
    assert max(map(len, (head, *lines))) <= 80


def test_ascii_terminals(colour: Result) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_result(replace(colour, settings=colour.settings | {"model": "café"}), Console(file=file, width=100))
    file.flush()
    assert b"caf?" in raw.getvalue()
