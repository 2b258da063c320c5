"""Who may look into folders, what the next start removes, and which files are refused before they are read."""

import multiprocessing
import os
import signal
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dosimeter import drafts, files, models, store, unpacking
from dosimeter.attacks.generators.files import load_generator, save_generator
from dosimeter.attacks.generators.network import Network
from dosimeter.cli.console import err
from dosimeter.data.files import read_npz
from dosimeter.errors import DataError, DosimeterError, ModelError
from dosimeter.federated.checkpoint import MODEL, ROUND
from dosimeter.federated.training import train
from dosimeter.sweeps import Store
from faults.test_hostile_files import peak
from small_federation import federation


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def die(work: Callable[[], object]) -> None:
    """Run in a process that is killed at the end of it."""

    def run() -> None:
        work()
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        process.start()
    process.join()


def save(folder: Path, *, overwrite: bool = False) -> None:
    with drafts.reserve(folder, overwrite=overwrite) as draft:
        store.write_interrupted(draft.place, "new")


def test_folders_with_private_images_are_their_owners_alone(tmp_path: Path) -> None:
    save(tmp_path / "runs" / "run")
    with Store(tmp_path / "store") as kept:
        kept._draft("aa")
        assert mode(tmp_path / "store" / "drafts") == 0o700
    assert [mode(tmp_path / name) for name in ("runs/run", "store")] == [0o700, 0o700]
    with files.scratch() as place:
        assert mode(place) == 0o700


def test_a_folder_that_was_opened_to_others_stays_open(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o750)
    save(tmp_path / "run")
    assert mode(tmp_path / "run") == 0o750
    save(tmp_path / "run", overwrite=True)
    assert mode(tmp_path / "run") == 0o750


def test_what_a_killed_process_left_of_a_file_is_removed_when_it_is_written_again(tmp_path: Path) -> None:
    def half() -> None:
        (tmp_path / f".page.html.{os.getpid()}").write_text("private")

    die(half)
    mine = tmp_path / f".page.html.{os.getpid()}"
    mine.write_text("of a living one")
    (tmp_path / ".page.html.old").write_text("no draft")
    (tmp_path / ".other.html.999999999").write_text("of another file")
    files.clear(tmp_path, "page.html")
    assert {path.name for path in tmp_path.iterdir()} == {".other.html.999999999", ".page.html.old", mine.name}


def test_scratch_folders_of_killed_processes_are_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def half() -> None:
        with files.scratch() as place:
            (place / "page.html").write_text("private")
            os.kill(os.getpid(), signal.SIGKILL)

    die(half)
    assert len(list(tmp_path.rglob("page.html"))) == 1
    with files.scratch() as living:
        files.clear_scratch()
        assert list(tmp_path.iterdir()) == [living]
    assert not list(tmp_path.iterdir())


def test_a_process_that_is_killed_while_it_takes_a_folder_blocks_nobody(tmp_path: Path) -> None:
    def half() -> None:
        (tmp_path / f"{drafts.PREFIX}run.{os.getpid()}{drafts.NEW}" / "run").mkdir(parents=True)

    die(half)
    save(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_that_was_done_takes_the_place_of_the_one_that_it_was_to_replace(tmp_path: Path) -> None:
    save(tmp_path / "run")

    def done() -> None:
        with drafts.reserve(tmp_path / "run", overwrite=True) as draft:
            files.replace_json(draft.place / store.RUN, {"program": "dosimeter", "status": "complete"})
            os.kill(os.getpid(), signal.SIGKILL)

    die(done)
    assert not store.finished_run(tmp_path / "run")
    save(tmp_path / "other")
    assert store.finished_run(tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "run"]


def test_the_model_is_never_of_an_earlier_round_than_the_training_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = federation(rounds=2)
    train(whole, folder=tmp_path / "whole", workers=1)
    written, replace = list[str](), files.replace

    def stopped(path: Path, *given: object, **more: object) -> None:
        if Path(path).parent.name == "broken":
            written.append(Path(path).name)
            if len(written) == 6:  # the last file of the last round
                raise KeyboardInterrupt
        replace(path, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(whole, folder=tmp_path / "broken", workers=1)
    monkeypatch.undo()
    train(whole, folder=tmp_path / "broken", workers=1)
    for name in (MODEL, ROUND):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_store_reaches_nothing_outside_of_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with Store(tmp_path / "store") as kept:
        words = ("../../mine", "audit", "{}", "failed", "Traceback")
        with kept._base.writing() as base:
            base.execute("INSERT INTO trials (digest, kind, words, status, why) VALUES (?, ?, ?, ?, ?)", words)
        with pytest.raises(DataError, match="damaged"):
            kept.prune(["../../mine"])
        with kept._base.writing() as base:
            base.execute("CREATE VIEW more AS SELECT * FROM trials")
    assert (tmp_path / "mine").is_dir()
    with pytest.raises(DataError, match="it has the view more"):
        Store(tmp_path / "store", create=False)


def npz(path: Path, claimed: tuple[int, ...], values: bytes, *, packed: bool = False) -> Path:
    """One whose header claims an array of bytes."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {claimed}, }}".ljust(117).encode() + b"\n"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name in ("train_images", "train_labels", "weight"):
            archive.writestr(f"{name}.npy", head + values)
    return path


@pytest.mark.parametrize("read", [read_npz, lambda path: models.load_checkpoint(nn.Linear(2, 2), path)])
def test_arrays_that_claim_more_than_there_is_take_no_memory(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = peak()
    with pytest.raises(DosimeterError, match=r"claims 3,221,225,472 bytes, but 10 follow"):
        read(npz(tmp_path / "claims.npz", (3 * 2**30,), bytes(10)))
    monkeypatch.setattr(unpacking, "SMALL", 2**20)
    bomb = npz(tmp_path / "bomb.npz", (2**20,), bytes(2**20), packed=True)
    with pytest.raises(DosimeterError, match=r"more than 100 times as much; save it without compression"):
        read(bomb)
    assert peak() - before < 2**28


def test_weights_that_ask_for_memory_by_a_number_are_refused(tmp_path: Path) -> None:
    before, model = peak(), nn.Linear(2, 2)
    torch.save({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        for name, data in held.items():
            asks = b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x01\x85R."
            archive.writestr(name, asks if name.endswith("data.pkl") else data)
    with pytest.raises(ModelError, match="bytearray"):
        models.load_checkpoint(model, tmp_path / "evil.pt")
    torch.save({"weight": torch.zeros(1).expand(2**20, 2**10), "bias": torch.zeros(2)}, tmp_path / "wide.pt")
    with pytest.raises(ModelError, match="holds less of 'weight' than its shape"):
        models.load_checkpoint(model, tmp_path / "wide.pt")
    assert peak() - before < 2**28


def test_a_generator_that_claims_to_be_large_takes_no_memory(tmp_path: Path) -> None:
    network = Network(latent=8, shape=(1, 8, 8), width=2, trained=True)
    save_generator(network, tmp_path / "g.safetensors", shape=(1, 8, 8), latent=8, width=2, about="of a test")
    told = {"format": "dosimeter generator 1", "about": "", "latent": "4096", "width": "2048", "channels": "1"}
    tensors = {name: each.contiguous() for name, each in network.state_dict().items()}
    save_file(tensors, tmp_path / "large.safetensors", told | {"height": "64", "across": "64"})
    before = peak()
    with pytest.raises(ModelError, match="does not fit the generator of its metadata"):
        load_generator(tmp_path / "large.safetensors")
    assert peak() - before < 2**28
    found = load_generator(tmp_path / "g.safetensors")
    assert found.network.state_dict().keys() == network.state_dict().keys()


def test_nothing_that_is_printed_steers_the_terminal() -> None:
    with err.capture() as shown:
        err.print("a \x1b]0;title\x07 and \x1b[31mred", markup=False)
    assert "\x1b" not in shown.get()
    assert "\x07" not in shown.get()
