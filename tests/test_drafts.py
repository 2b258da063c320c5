"""A run takes its place as a whole or not at all, alone, and in place of nobody's files."""

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from dosimeter import drafts, store
from dosimeter.errors import OutputError


def save(folder: Path, why: str = "new", *, overwrite: bool = False) -> Path:
    with drafts.reserve(folder, overwrite=overwrite) as draft:
        store.write_interrupted(draft.place, why)  # the smallest run
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def start(work: Callable[..., None], *given: object) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=work, args=given, daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        process.start()
    return process


def reserved(folder: Path) -> None:
    """A process that has something private in a draft and lives until it is killed."""
    with drafts.reserve(folder) as draft:
        (draft.place / "attacks").mkdir()
        (draft.place / "attacks" / "private.png").write_text("private")
        (draft.place.parent / "here").touch()
        time.sleep(60)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    store.read_run(save(tmp_path / "run"))


def test_an_older_run_stays_unless_told(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", "old")
    with pytest.raises(OutputError, match=r"older run.*--overwrite"):
        save(folder)
    assert store.read_run(folder).info["why"] == "old"
    save(folder, overwrite=True)
    assert store.read_run(folder).info["why"] == "new"
    assert names(tmp_path) == ["run"]


OWN = ("records.json", "report.html", ".report.html.123", "images/victim-012-3-original.png", "attacks/01-ig/run.json")
FOREIGN = ("thesis.tex", ".hidden", "images/holiday.png", "attacks/notes.txt", "attacks/01-ig/weights.pt", "link")


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_never_deleted(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "run", "old")
    for own in OWN:
        (folder / own).parent.mkdir(parents=True, exist_ok=True)
        (folder / own).touch()
    if name == "link":
        (folder / name).symlink_to(tmp_path)
    (folder / name).touch()
    with pytest.raises(OutputError, match=rf"run' holds '{name}' too; move that away or choose another --out\.$"):
        save(folder, overwrite=True)
    assert (folder / name).exists()
    assert store.read_run(folder).info["why"] == "old"
    (folder / name).unlink()
    save(folder, overwrite=True)
    assert names(folder) == ["run.json"]


def test_a_file_that_comes_while_an_audit_runs_is_not_deleted_either(tmp_path: Path) -> None:
    folder = save(tmp_path / "run", "old")

    def meet() -> None:
        with drafts.reserve(folder, overwrite=True) as draft:
            store.write_interrupted(draft.place, "new")
            (folder / "thesis.tex").touch()

    with pytest.raises(OutputError, match=r"'thesis.tex' too.* It is in ") as refused:
        meet()
    assert (folder / "thesis.tex").exists()
    save(tmp_path / "next")  # which clears nothing that was to be kept
    kept = Path(str(refused.value).split("It is in ")[1].removesuffix("."))
    assert store.read_run(kept).info["why"] == "new"


@pytest.mark.parametrize("content", [None, "{}", "not json", '["dosimeter"]'])
def test_other_folders_are_never_replaced(content: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.png").touch()
    if content is not None:
        (folder / "run.json").write_text(content)
    with pytest.raises(OutputError, match="no run of dosimeter"):
        save(folder, overwrite=True)
    assert "holiday.png" in names(folder)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        save(tmp_path / "file", overwrite=True)
    with pytest.raises(OutputError, match="Not a directory"):
        save(tmp_path / "file" / "below" / "run")
    assert (tmp_path / "file").read_text() == "mine"


def test_links(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OutputError, match="choose another --out"):
        save(tmp_path / "loop" / "run")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "run")
    save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    store.read_run(tmp_path / "far" / "run")


def test_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError, match="choose another --out"):
        save(tmp_path / "null\0byte")
    with pytest.raises(OutputError, match="choose another --out"):
        save(tmp_path / ("long" * 100))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for here in (".", ".."):
        with pytest.raises(OutputError, match="folder of its own"):
            save(Path(here), overwrite=True)
    save(Path("run"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_a_wrong_place_is_found_before_the_work() -> None:
    worked = False
    with pytest.raises(OutputError, match=r"choose another --out\.$"), drafts.reserve(Path("/proc/run")):
        worked = True
    assert not worked


def fail(folder: Path, name: str, error: type[BaseException]) -> None:
    with drafts.reserve(folder) as draft:
        store.write_interrupted(draft.place, "new")
        os.rename(draft.place / "run.json", draft.place / name)
        raise error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_leaves_nothing_unless_a_run_was_written(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error):
        fail(tmp_path / "a" / "b" / "run", "half", error)
    assert names(tmp_path) == []
    with pytest.raises(error):
        fail(tmp_path / "run", "run.json", error)
    store.read_run(tmp_path / "run")
    assert names(tmp_path) == ["run"]


def test_a_draft_is_closed_to_others(tmp_path: Path) -> None:
    with drafts.reserve(tmp_path / "run") as draft:
        assert draft.place.parent.stat().st_mode & 0o777 == 0o700


def test_what_a_killed_process_left_is_cleared_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    killed, living = start(reserved, tmp_path / "killed"), start(reserved, tmp_path / "living")
    try:
        for name in ("killed", "living"):
            wait_for(tmp_path / f".dosimeter-{name}" / "here")
        killed.kill()
        killed.join()
        assert (tmp_path / ".dosimeter-killed" / "run" / "attacks" / "private.png").exists()
        save(tmp_path / "run")
        assert names(tmp_path) == [".dosimeter-living", "run"]
        assert (tmp_path / ".dosimeter-living" / "run" / "attacks" / "private.png").exists()
        with pytest.raises(OutputError, match="another audit is writing"):
            save(tmp_path / "living")
        assert living.is_alive()
    finally:
        living.kill()
        living.join()
    save(tmp_path / "living")
    assert names(tmp_path) == ["living", "run"]


def test_a_killed_process_that_was_done_leaves_its_run(tmp_path: Path) -> None:
    def work() -> None:
        with drafts.reserve(tmp_path / "done") as draft:
            store.write_interrupted(draft.place, "done")
            os.kill(os.getpid(), signal.SIGKILL)

    start(work).join()
    assert names(tmp_path) == [".dosimeter-done"]
    save(tmp_path / "run")
    assert names(tmp_path) == ["done", "run"]
    assert store.read_run(tmp_path / "done").info["why"] == "done"


def test_no_two_processes_choose_the_same_folder(tmp_path: Path) -> None:
    together = multiprocessing.get_context("fork").Barrier(8)

    def work(name: str) -> None:
        together.wait()
        with drafts.reserve(tmp_path / "run", numbered=True) as draft:
            store.write_interrupted(draft.place, name)

    for process in [start(work, str(n)) for n in range(8)]:
        process.join()
    assert names(tmp_path) == [f"run-{n}" for n in range(1, 9)]
    assert {store.read_run(folder).info["why"] for folder in tmp_path.iterdir()} == {str(n) for n in range(8)}


def test_a_refused_move_keeps_old_and_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "run")
    before, rename = (folder / "run.json").read_bytes(), os.rename

    def refuse(source: Path, target: Path) -> None:
        if source.name == "run" and source != folder:
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OutputError, match="It is in ") as refused:
        save(folder, overwrite=True)
    assert (folder / "run.json").read_bytes() == before
    store.read_run(Path(str(refused.value).split("It is in ")[1].removesuffix(".")))


def test_a_quicker_program_is_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def meet() -> None:
        with drafts.reserve(folder) as draft:
            store.write_interrupted(draft.place, "new")
            folder.mkdir()
            (folder / "other").touch()

    with pytest.raises(OutputError, match="It is in "):
        meet()
    assert names(folder) == ["other"]


def test_a_folder_that_another_audit_has_just_filled_is_refused_at_the_start(tmp_path: Path) -> None:
    def work() -> None:
        with drafts.reserve(tmp_path / "run") as draft:
            store.write_interrupted(draft.place, "old")
            os.kill(os.getpid(), signal.SIGKILL)

    start(work).join()
    worked = False
    with pytest.raises(OutputError, match=r"older run.*--overwrite"), drafts.reserve(tmp_path / "run"):
        worked = True  # the killed one's run took its place when this one looked after it
    assert not worked
    assert names(tmp_path) == ["run"]
