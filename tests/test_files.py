"""A file is there as a whole or not at all."""

import errno
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dosimeter import files
from dosimeter.errors import OutputError


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=50), st.text(st.characters(codec="utf-8"), max_size=50)), min_size=1))
def test_the_last_content_is_the_files_and_no_draft_stays(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes | str]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    path = folder / "new" / "folder" / "name"
    for content in contents:
        files.replace(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(path.parent) == ["name"]


@pytest.mark.parametrize("at", ["write_bytes", "replace"])
def test_what_cannot_be_written_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    path = tmp_path / "kept.json"
    files.replace_json(path, {"a": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, at, full)
    with pytest.raises(OutputError, match=r"kept\.json': No space left on device; choose another folder\."):
        files.replace_json(path, {"a": 2}, instead="folder")
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["kept.json"]


def test_what_was_made_with_anything_else_is_refused(tmp_path: Path) -> None:
    was = {"model": "m 1", "seed": 0, "at": (1, 2), "words": "x" * 200}
    files.check_same(tmp_path, {**was, "at": [1, 2]}, was)
    said = r"another model \(m 1, now m 2\), seed \(0, now None\), steps \(None, now 3\), words; choose another --out"
    with pytest.raises(OutputError, match=said):
        files.check_same(
            tmp_path, {**was, "at": [1, 2]}, {"model": "m 2", "steps": 3, "at": (1, 2), "words": "y" * 200}
        )


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(OutputError, match="choose another --out"):
        files.replace(tmp_path / "taken" / "name", b"")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_folder_is_tried_before_work_and_left_as_it_was(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "new" / "run")
    files.check_writable(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "taken").write_text("mine")
    for place in ("taken", "taken/run", "null\0byte", "a" * 300):
        with pytest.raises(OutputError, match=r"Cannot write .* choose another --out\."):
            files.check_writable(tmp_path / place)
    assert os.listdir(tmp_path) == ["taken"]


@pytest.mark.parametrize("number", files.STOPS)
def test_what_is_asked_in_the_middle_of_writing_happens_after_it(number: int) -> None:
    before, done = signal.signal(number, signal.default_int_handler), []

    def write() -> None:
        with files.undisturbed(), files.undisturbed():
            signal.raise_signal(number)
            done.append("written")

    try:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert done == ["written"]


def test_what_is_ignored_stays_ignored_while_writing() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with files.undisturbed():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    files.replace(pipe, "through")
    reader.join(10)
    assert read == [b"through"]
    assert pipe.is_fifo()
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]
