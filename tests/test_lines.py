"""Text and tables on a terminal: they fit, and nothing that belongs together is broken."""

import io
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from dosimeter.cli import app
from dosimeter.lines import Grid, fact, markdown, say, shell, wrap
from release import STEERING, steered

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=12)
DASH = "\N{EN DASH}"
TEXTS = st.lists(WORDS, max_size=30).map(" ".join)


@given(TEXTS, st.integers(12, 80))
def test_wrapping_keeps_words_whole_and_in_order(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width or " of " in line or any(c.isdigit() for c in line) for line in lines)


@pytest.mark.parametrize(
    "together",
    [
        "95 %",
        "2 of 2",
        "0.359 ± 0.045",
        "4.2e-04 ± 5.9e-04",
        "12.5 dB",
        "3 min 07 s",
        "140 MiB",
        "0-78 %",
        "1,024 of 2,048",
    ],
)
def test_a_number_stays_with_its_unit(together: str) -> None:
    for before in range(1, 40):
        text = f"{'x' * before} {together} and more of it"
        assert any(together in line for line in wrap(text, 40)), before


def test_what_cannot_be_broken_stands_whole() -> None:
    path = "/a/very/long/path/" + "x" * 90
    assert wrap(f"see {path} there", 80) == ["see", path, "there"]


@given(
    st.lists(st.tuples(TEXTS, TEXTS, st.floats(0, 1e6).map("{:.3g}".format)), min_size=1, max_size=6),
    st.integers(30, 100),
)
def test_a_table_fits_and_loses_nothing(rows: list[tuple[str, str, str]], width: int) -> None:
    table = Grid("what", "why it is so", "number")
    for row in rows:
        table.add_row(*row)
    lines = table.lines(width)
    assert max(map(len, lines)) <= width
    held = sorted("".join(lines).replace(" ", ""))
    for row in rows:
        for word in " ".join(row).split():
            assert any(word in line for line in lines), word
    assert len(held) >= sum(len("".join(row).replace(" ", "")) for row in rows)


def test_columns_of_numbers_stand_to_the_right() -> None:
    table = Grid("name", "SSIM", "time")
    table.add_row("a", "0.1", "12.0 s")
    table.add_row("bcd", DASH, "3 min 02 s")
    assert table.lines(80) == ["name  SSIM  time", "a      0.1  12.0 s", f"bcd      {DASH}  3 min 02 s"]


def test_a_table_of_too_many_columns_becomes_blocks() -> None:
    table = Grid("case", *(f"column-{n}" for n in range(8)))
    table.add_row("first", *(f"value-{n}" for n in range(8)))
    lines = table.lines(40)
    assert lines[-9:] == ["first", *(f"  column-{n}: value-{n}" for n in range(8))]
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize(
    "command",
    [
        "dosimeter audit --model cnn --data mnist-5k --defense 'noise:sigma=0.01|cvb' --attack auto "
        "--victims 6 --steps 1000 --json",
        "dosimeter lint",
    ],
)
def test_a_command_over_several_lines_is_the_same_command(command: str) -> None:
    lines = shell(command, 50)
    assert max(map(len, lines)) <= 50
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)  # as a shell reads it
    assert not any(line.split()[-2:-1] == ["--defense"] for line in lines)


def printed(what: object, *args: object, width: int = 60, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    what(Console(file=file, width=width), *args)  # type: ignore[operator]
    file.flush()
    return raw.getvalue().decode(encoding)


def test_names_are_no_markup_and_steer_nothing() -> None:
    assert printed(say, "[red]model[/] \x1b[2J") == "[red]model[/] \N{REPLACEMENT CHARACTER}[2J\n"
    table = Grid("[b]name[/b]")
    table.add_row("[link=x]\x07")
    assert printed(table.print) == "[b]name[/b]\n[link=x]\N{REPLACEMENT CHARACTER}\n"
    assert "x±y" not in printed(say, "x±y", encoding="ascii")


def test_facts_hang_under_their_names() -> None:
    lines = printed(fact, "threat model", "granted: " + "one thing and " * 6).splitlines()
    assert lines[0].startswith("threat model  granted: one")
    assert all(line.startswith(" " * 14 + "") for line in lines[1:])
    assert len(lines) > 1


def test_tables_of_documents_fit_too() -> None:
    text = "Which is it?\n\n| defense | what was found of it |\n|---|---|\n| none | " + "all of it " * 12 + "|\n\nDone."
    lines = printed(markdown, text).splitlines()
    assert lines[:3] == ["Which is it?", "", "defense  what was found of it"]
    assert lines[-1] == "Done."
    assert not any("|" in line or len(line) > 60 for line in lines)


@pytest.mark.parametrize("words", [("audit", "--model", "{file}:make"), ("audit", "--config", "{file}")])
def test_no_file_name_steers_a_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / f"{STEERING}.py"
    file.write_text("1 / 0 [\n")
    done = CliRunner().invoke(app, [word.format(file=file) for word in words])
    assert done.exit_code == 2
    assert steered(done.output) == []
    assert "owned" in done.output
