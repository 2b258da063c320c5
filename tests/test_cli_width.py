"""What commands print on a terminal of 80 columns: every line fits, and the last one says what to look at next."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dosimeter.cli import app, console

TASK = "--model mlp-2 --size 12 --victims 1"
QUICK = f"{TASK} --steps 3 --decoys 3"
TRAINED = f"{TASK} --protocol ppp:rounds=1,clients=2,epochs=1"
COMMANDS = {
    "audits": (
        f"audit {QUICK} --attack ig --out audit-one",
        f"audit {QUICK} --attack ig --explain --out audit-explained",
        f"audit {QUICK} --attack auto --defense precode --out audit-panel",
        f"audit {QUICK} --attack auto --defense noise:sigma=0.01 --explain --out audit-noise",
        f"audit {QUICK} --attack auto --dry-run",
        "report audit-one",
        "report audit-one audit-panel audit-noise --out all.html",
        "score audit-panel --threshold 0.4 --explain --out scored",
    ),
    "dose": (f"dose {TASK} --public 40 --out dosed",),
    "lint": ("lint --model cnn --explain", "lint --model resnet20:width=0.25 --defense noise:sigma=0.01"),
    "train": ("train --model mlp-2 --size 12 --protocol ppp:rounds=1,clients=2,epochs=1 --out trained",),
    "follow": (f"follow {TRAINED} --at 0 --steps 3 --out followed",),
    "compare": (f"compare {TRAINED} --steps 3 --defense none --defense noise:sigma=0.1 --explain --out compared",),
    "sweep": (
        f"sweep {TASK} --steps 3 --attack ig --defense none --defense noise:sigma=0.1 --out swept",
        f"sweep {TASK} --steps 3 --attack auto --defense none --defense precode --dry-run --out planned",
        "store list swept",
        "store export swept all.csv",
    ),
    "items": ("reproduce --list",),
    "lists": tuple(f"list {kind}" for kind in ("models", "data", "attacks", "defenses", "servers", "protocols")),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_it_fits_and_says_what_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(console.out, "_force_terminal", True)  # pipes get other tables
    for command in COMMANDS[name]:
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == 0, done.output
        lines = re.sub(r"\x1b\[[\d;]*m", "", done.stdout).splitlines()
        assert [line for line in (*lines, *done.stderr.splitlines()) if len(line) > 80] == [], command
        assert re.match(r"next {10}\S", lines[-1]), command


def test_an_audit_in_one_line_and_as_json_say_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quiet = CliRunner().invoke(app, f"audit {QUICK} --attack auto --quiet --out a".split())
    assert re.fullmatch(r"no defense: .*; \d of 1 images read by [\w ,-]+, in [\d.]+ s\n", quiet.stdout)
    assert quiet.stderr == ""
    document = CliRunner().invoke(app, f"audit {QUICK} --attack ig --json --out b".split()).stdout
    assert document.startswith("{")
    assert "next  " not in document
