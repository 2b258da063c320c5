"""Every example runs as a program, and the page on Flower from its first line to its last."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT, snippets

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ADDING = sorted((ROOT / "examples" / "adding").glob("*.py"))


@pytest.mark.parametrize("path", [*EXAMPLES, *ADDING], ids=lambda p: p.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "images read" in done.stdout


def test_the_page_on_flower_runs_from_its_first_line_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flwr.app import ArrayRecord, ConfigRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from typer.testing import CliRunner

    from dosimeter.cli import app
    from dosimeter.flower import Keep, run_here

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples" / "flower_quickstart")
    from quickstart.client_app import app as client  # type: ignore[import-not-found]
    from quickstart.task import make  # type: ignore[import-not-found]

    keeping, attacking, defending = snippets(ROOT / "docs" / "flower.md")
    held = {"make_model": make}
    exec(compile(keeping, "flower.md", "exec"), held)
    server, words = ServerApp(), {"images": 1, "lr": 0.1, "local-epochs": 1, "batch-size": 32, "momentum": 0.0}

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Keep(held["strategy"].strategy, "kept", context.run_config)
        told = ConfigRecord({"lr": 0.1})
        strategy.start(grid, ArrayRecord(make().state_dict()), num_rounds=1, train_config=told)

    run_here(server, client, nodes=2, config=words)
    exec(compile(attacking.replace("steps=400", "steps=2"), "flower.md", "exec"), held)
    exec(compile(defending, "flower.md", "exec"), held)
    assert capsys.readouterr().out.count("1 step at lr 0.1 torch.Size([1, 1, 1, 28, 28])") == 2
    line = re.search(r"^    dosimeter (audit --kept /tmp/kept .*)$", (ROOT / "docs/flower.md").read_text(), re.M)
    assert line is not None
    monkeypatch.chdir(ROOT / "examples" / "flower_quickstart")
    short = line[1].replace("/tmp/kept", str(tmp_path / "kept")).replace("--steps 400", "--steps 2").split()
    done = CliRunner().invoke(app, [*short, "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Most exposed: client" in done.output


@pytest.mark.parametrize("path", ADDING, ids=lambda p: p.stem)
def test_a_part_of_ones_own_is_one_short_file_and_runs_as_its_first_command_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from dosimeter.cli import app

    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert path.name in (ROOT / "docs" / "adding.md").read_text()
    command = re.search(r"^dosimeter (audit .*)$", text, re.M)
    assert command is not None
    monkeypatch.chdir(ROOT)
    words = re.sub(r"steps=\d+", "steps=3", command.group(1)).split()
    short = [] if any("steps=" in word for word in words) else ["--steps", "2"]
    found = CliRunner().invoke(
        app, [*words, *short, "--victims", "1", "--json", "--out", str(tmp_path / "run")], catch_exceptions=False
    )
    assert found.exit_code == 0, found.output
    told = {
        "attack": "Blurred(radius=2)",
        "defense": "Sketch(share=0.3)",
        "model": "model.py:small:width=16",
        "metric": '"edges"',
    }
    assert told[path.stem] in (tmp_path / "run" / "records.json").read_text()
    assert ("Edges" in (tmp_path / "run" / "report.html").read_text()) == (path.stem == "metric")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--defense {own}:Need", "needs a value of 'level'; write Need:level=..."),
        ("--defense {own}:Need:level=often", "expects a number, got 'often'"),
        ("--defense {own}:Need:share=1", "Unknown setting of defense 'Need' 'share'"),
        ("--defense {own}:Broken", "cannot be made: ValueError: no"),
        ("--attack {own}:nothing", "Unknown function"),
        ("--metric {own}:Need", "Expected a dosimeter.Metric"),
    ],
)
def test_a_part_of_ones_own_that_cannot_be_made_is_refused_in_a_line(words: str, said: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from dosimeter.cli import app

    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import dataclass\nimport dosimeter as dm\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Need(dm.Defense):\n    level: float\n\n"
        "class Broken(dm.Defense):\n    def __init__(self):\n        raise ValueError('no')\n"
    )
    found = CliRunner().invoke(app, ["audit", "--victims", "1", *words.format(own=own).split()])
    assert found.exit_code == 2, found.output
    assert said in " ".join(found.output.split())
