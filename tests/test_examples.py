"""Every example runs as a program, and the README shows the one it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "images read" in done.stdout


def snippets(page: str) -> list[str]:
    """What a document shows in Python."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


def test_the_readme_shows_an_example_that_runs() -> None:
    program = (ROOT / "examples" / "audit_my_model.py").read_text()
    assert snippets("README.md") == [program.partition("\n\n")[2].replace("  # noqa: T201", "")]


@pytest.mark.parametrize("page", ["docs/attacks.md", "docs/defenses.md", "docs/generators.md", "docs/training.md"])
def test_what_the_documents_show_in_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert snippets(page)
    for snippet in snippets(page):
        exec(compile(snippet, page, "exec"), {"__name__": "snippet"})


def test_commands_in_the_documents_name_options_that_exist() -> None:
    from typer.main import get_command

    from dosimeter.cli import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name, rest in re.findall(
            r"dosimeter (audit|check|list|bench)\b([^\n`]*(?:\\\n[^\n`]*)*)", page.read_text()
        ):
            command = commands[name]
            if name == "bench":
                command = command.commands[rest.split()[0]]
            known = {option for parameter in command.params for option in parameter.opts}
            for option in re.findall(r"(?<!\S)(--[a-z-]+)", rest):
                assert option in known, f"{page.name}: {name} {option}"
