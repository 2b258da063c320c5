"""npz files: whole ones, half ones and hostile ones."""

import io
import os
import pickle
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy

from dosimeter.data import Dataset, available, read_npz
from dosimeter.data.files import Summary, peek, write_npz
from dosimeter.errors import DataError, OutputError


def arrays(**other):
    """The four arrays of a small file."""
    rng = np.random.default_rng(0)
    return {
        "train_images": rng.integers(0, 256, (5, 4, 4, 3), dtype=np.uint8),
        "train_labels": np.arange(5)[:, None],
        "test_images": rng.integers(0, 256, (2, 4, 4, 3), dtype=np.uint8),
        "test_labels": np.array([[1], [0]]),
    } | other


@pytest.fixture
def saved(tmp_path):
    def save(**other):
        path = tmp_path / "mine.npz"
        np.savez_compressed(path, **{name: array for name, array in arrays(**other).items() if array is not None})
        return path

    return save


def test_a_file_becomes_a_data_set_and_other_arrays_are_ignored(saved):
    path = saved(val_images=np.zeros(3), notes=np.array([{"a": 1}], dtype=object))
    data = read_npz(path)
    assert (data.name, data.source, data.classes, data.shape) == ("mine", "mine.npz", 5, (3, 4, 4))
    assert np.array_equal(data.train_images, arrays()["train_images"])
    assert data.test_labels.tolist() == [1, 0]
    assert peek(path) == Summary(5, 2, (3, 4, 4))


@pytest.mark.parametrize(("split", "other"), [("train", "test"), ("test", "train")])
def test_one_split_is_enough(saved, split, other):
    data = read_npz(saved(**{f"{other}_images": None, f"{other}_labels": None}))
    assert data.count(split) == len(arrays()[f"{split}_images"])
    with pytest.raises(DataError, match=f"mine has no images in the split {other!r}; use the split {split!r}"):
        data.split(other)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"test_labels": None}, "mine.npz lacks test_labels; expected train_images"),
        (dict.fromkeys(arrays()), "mine.npz lacks train_images, train_labels, test_images, test_labels"),
        ({"train_images": np.zeros((5, 4))}, "mine.npz: train_images must be (n, H, W)"),
        ({"train_labels": np.arange(4)}, "mine.npz: train_images has 5 rows but train_labels 4"),
        (
            {"train_images": np.full((5, 4, 4, 3), 7.0)},
            "mine.npz: train_images must be in [0, 1] without NaN, got 7 to 7",
        ),
        ({"train_labels": np.array([{}] * 5, dtype=object)}, "mine.npz: train_labels holds Python objects (a pickle)"),
    ],
)
def test_a_wrong_array_is_named(saved, other, words):
    with pytest.raises(DataError, match=re.escape(words)):
        read_npz(saved(**other, more=np.zeros(1)))


def test_nothing_is_ever_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    path = tmp_path / "trap.npz"
    np.savez(path, **arrays(train_labels=np.array([Trap()] * 5, dtype=object)))
    with pytest.raises(DataError, match="never loaded"):
        read_npz(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"trap\.npz is no npz file"):
        read_npz(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_what_is_no_npz_is_refused(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    for read in (read_npz, peek):
        with pytest.raises(DataError, match=r"x\.npz is no npz file, or was cut short"):
            read(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(DataError, match=f"Cannot open {tmp_path.name}: Is a directory"):
        read_npz(tmp_path)
    with pytest.raises(DataError, match=r"Cannot open no\.npz: No such file"):
        read_npz(tmp_path / "no.npz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have names")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    for read in (read_npz, peek):
        with pytest.raises(DataError, match=r"Cannot open pipe\.npz: it is no regular file"):
            read(tmp_path / "pipe.npz")
    assert [row.description for row in available(folder=tmp_path) if row.name == "pipe"] == [
        "unreadable: Cannot open pipe.npz: it is no regular file."
    ]


def test_a_file_that_unpacks_to_more_than_the_memory_is_refused(saved, monkeypatch):
    path = saved(train_images=np.zeros((5, 900, 900, 3), np.uint8), test_images=np.zeros((2, 900, 900, 3), np.uint8))
    assert path.stat().st_size < 50_000
    assert read_npz(path).count("train") == 5
    monkeypatch.setattr("dosimeter.data.files._memory", lambda: 7 * 900 * 900 * 3)
    with pytest.raises(DataError, match=r"mine\.npz unpacks to 0\.0 GiB, more than the 0\.0 GiB of memory here"):
        read_npz(path)
    assert peek(path) == Summary(5, 2, (3, 900, 900))


@pytest.mark.parametrize("shape", [(-1, 2, 2), (5, 0, 2), (5,), (5, 2, 2, 3, 3), (), (2**40, 2, 2)])
def test_a_header_that_claims_another_form_is_refused(tmp_path, shape):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("train_images", "train_labels"):
            header = io.BytesIO()
            npy.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
            archive.writestr(f"{name}.npy", header.getvalue() + b"abc")
    with pytest.raises(DataError, match=r"x\.npz: train_images cannot be read"):
        read_npz(path)
    if shape[:1] != (2**40,):  # that may be right as far as a header tells
        with pytest.raises(DataError, match=r"x\.npz: train_images cannot be read"):
            peek(path)


def test_a_member_that_is_no_array_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in arrays():
            archive.writestr(f"{name}.npy", b"hello")
    for read in (read_npz, peek):
        with pytest.raises(DataError, match=r"x\.npz: train_images cannot be read"):
            read(path)


@pytest.fixture(scope="session")
def contents(tmp_path_factory):
    """The bytes of one file, stored and compressed, and a place for broken copies."""
    folder = tmp_path_factory.mktemp("npz")
    np.savez(folder / "a.npz", **arrays())
    np.savez_compressed(folder / "b.npz", **arrays())
    return folder, [(folder / name).read_bytes() for name in ("a.npz", "b.npz")]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_file_is_refused_or_unharmed(contents, data):
    folder, whole = contents
    content = bytearray(data.draw(st.sampled_from(whole)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path = folder / "damaged.npz"
    path.write_bytes(bytes(content))
    read, refusal = None, "damaged.npz"
    try:
        read = read_npz(path)
    except DataError as error:
        refusal = str(error)
    assert "damaged.npz" in refusal
    assert "\n" not in refusal
    if read is None:
        return
    # One split may be lost with its two names in the archive's directory; no pixel may change.
    for name, array in arrays().items():
        kept = getattr(read, name)
        assert not len(kept) or np.array_equal(kept.reshape(array.shape), array)


@pytest.mark.parametrize("which", [0, 1])
def test_a_changed_pixel_is_noticed(contents, which):
    folder, whole = contents
    path = folder / "changed.npz"
    content = bytearray(whole[which])
    content[300] ^= 1  # within the first array, behind its header
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"changed\.npz: train_images cannot be read, the file is corrupt"):
        read_npz(path)


def test_bytes_after_an_array_are_noticed(contents):
    folder, _ = contents
    path = folder / "longer.npz"
    with zipfile.ZipFile(folder / "a.npz") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + b"?" * (name == "test_images.npy"))
    with pytest.raises(DataError, match=r"longer\.npz: test_images cannot be read.*claims 96 bytes, but 97 follow"):
        read_npz(path)


def test_a_name_that_is_no_text_does_not_break_the_line(tmp_path):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a\nb.npy", b"")
    with pytest.raises(DataError) as caught:
        read_npz(path)
    assert "\n" not in str(caught.value)


def test_writing_is_whole_or_not_at_all(tmp_path, monkeypatch, tiny):
    path = tmp_path / "new" / "t.npz"
    write_npz(path, tiny)
    back = read_npz(path)
    assert back.fingerprint == tiny.fingerprint

    def cut(file, **_):
        file.write(b"PK half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", cut)
    with pytest.raises(OutputError, match="No space left on device"):
        write_npz(tmp_path / "new" / "u.npz", tiny)
    assert [found.name for found in path.parent.iterdir()] == ["t.npz"]


@pytest.mark.parametrize(
    ("name", "train", "test", "shape", "classes"),
    [
        ("mnist", 60000, 10000, (1, 28, 28), 10),
        ("cifar100", 1600, 400, (3, 32, 32), 100),
        ("pneumoniamnist", 4708, 624, (1, 28, 28), 2),
        ("retinamnist", 1080, 400, (3, 28, 28), 5),
    ],
)
def test_real_files(real, name, train, test, shape, classes):
    data = read_npz(real / f"{name}.npz")
    assert isinstance(data, Dataset)
    assert (data.count("train"), data.count("test"), data.shape, data.classes) == (train, test, shape, classes)
    assert peek(real / f"{name}.npz") == Summary(train, test, shape)


def test_a_real_file_with_only_a_test_split(real):
    data = read_npz(real / "imagenet_samples_224.npz")
    assert (data.count("test"), data.shape) == (36, (3, 224, 224))
    with pytest.raises(DataError, match="no images in the split 'train'"):
        data.images("train", [0])
