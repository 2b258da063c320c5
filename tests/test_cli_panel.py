"""A panel on the command line: killed, interrupted or out of disk, it goes on where it was."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dosimeter import store
from dosimeter.cli import app
from machine import full_disk

AUDIT = "audit --model mlp-2 --size 12 --victims 1 --steps 5 --attack auto --decoys 3 --out run"
WORDS = AUDIT.split()
NAMES = ["analytic", "coarse to fine", "ig", "all revealed"]


def again(*more: str) -> Result:
    return CliRunner().invoke(app, [*WORDS, *more])


def begin(*words: str) -> "subprocess.Popen[str]":
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    program = [sys.executable, "-c", "from dosimeter.cli import main; main()", *words]
    try:
        return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(process: "subprocess.Popen[str]", *patterns: str) -> None:
    while not all(list(Path().glob(pattern)) for pattern in patterns):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize("overwrite", [False, True], ids=["in a new folder", "over an older run"])
def test_a_killed_panel_goes_on_and_attacks_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["--overwrite"] if overwrite else []
    if overwrite:
        store.write_interrupted(tmp_path / "run", "another one")
    process = begin(*WORDS, *more)
    try:
        wait_for(process, ".dosimeter-run/run/attacks/01-analytic/run.json", ".dosimeter-run/run/run.json")
    finally:
        process.kill()
        process.communicate()
    done = Path(".dosimeter-run/run/attacks/01-analytic/run.json").read_text()
    if overwrite:
        assert store.read_run(tmp_path / "run").info["why"] == "another one"
    with full_disk(2000):
        stuck = again(*more)
    assert stuck.exit_code == 2, stuck.output
    assert "File too large" in stuck.output
    found = again(*more)
    assert found.exit_code == 0, found.output
    assert "analytic: kept from before" in found.output
    assert "all revealed: kept" not in found.output
    assert (tmp_path / "run" / "attacks" / "01-analytic" / "run.json").read_text() == done
    result = store.read(tmp_path / "run")
    assert [row["attack"] for row in result.document()["panel"]] == NAMES
    assert (result.status, os.listdir()) == ("complete", ["run"])
    refused = again()
    assert refused.exit_code == 2
    assert "holds an older run" in refused.output  # since it is whole


def test_ctrl_c_in_a_search_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dosimeter.auditing.watches.Watches.of", interrupted_at(3))
    found = again("--steps", "1000")
    assert found.exit_code == 130, found.output
    run = store.read(tmp_path / "run")
    assert run.status == "interrupted"
    assert [(t["attack"], "refused" in t) for t in run.document()["panel"]] == [
        ("analytic", False),
        ("coarse to fine", False),
    ]
    searched = run.panel[1].result
    assert searched is not None
    assert [record.stopped for record in searched.records] == ["interrupted"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    other = again("--steps", "2")  # another panel
    assert other.exit_code == 2, other.output
    assert "holds an older run" in other.output


def interrupted_at(step: int):  # type: ignore[no-untyped-def]
    """Watches that hear Ctrl-C then."""

    def of(self, tile):  # type: ignore[no-untyped-def]
        def watch(*, done, total, match, active):  # type: ignore[no-untyped-def]
            if done >= step:
                raise KeyboardInterrupt

        return watch

    return of


def test_a_numbered_folder_goes_on_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for word in WORDS if word not in ("--out", "run")]
    with monkeypatch.context() as patch:
        patch.setattr("dosimeter.auditing.watches.Watches.of", interrupted_at(3))
        assert CliRunner().invoke(app, words).exit_code == 130
    found = CliRunner().invoke(app, [*words, "--json"])
    assert found.exit_code == 0, found.output
    assert [row["attack"] for row in json.loads(found.stdout)["panel"]] == NAMES
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mnist-5k-mlp-2-auto-1"]


def test_one_that_was_stopped_before_its_first_attack_goes_on_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dosimeter.cli.panel.audit_panel", stopped)
        assert again().exit_code == 130
    assert store.read_run(tmp_path / "run").info["why"] == "interrupted before anything was attacked"
    found = again()
    assert found.exit_code == 0, found.output
