"""Public sources end to end, through tiny servers on the loopback."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from dosimeter.data import SOURCES, Source, available, load
from dosimeter.data.files import peek
from dosimeter.errors import DataError

RNG = np.random.default_rng(0)


def idx(array):
    """An idx file as on MNIST's server."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return gzip.compress(header + array.tobytes())


def tar(members):
    """A tar.gz of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def served(server, name, files) -> dict[str, Source]:
    """The real source with the tiny server's address and checksums."""
    source = SOURCES[name]
    remotes = tuple(replace(file, md5=hashlib.md5(files[file.name]).hexdigest()) for file in source.files)
    return {**SOURCES, name: replace(source, base=f"{server.base}/", files=remotes)}


@pytest.fixture
def mnist(serve):
    """A tiny MNIST on a server: its arrays, the server and the sources that point to it."""
    images, labels = RNG.integers(0, 256, (9, 28, 28), dtype=np.uint8), np.arange(9, dtype=np.uint8)
    parts = (images[:6], labels[:6], images[6:], labels[6:])
    files = {file.name: idx(part) for file, part in zip(SOURCES["mnist"].files, parts, strict=True)}
    server = serve(files)
    return parts, server, served(server, "mnist", files)


def test_mnist_from_the_server_to_the_cache(mnist, cache):
    (train, train_labels, test, test_labels), server, sources = mnist
    data = load("mnist", sources=sources)
    assert (data.name, data.source, data.shape) == ("mnist", "cache", (1, 28, 28))
    assert np.array_equal(data.train_images[..., 0], train)
    assert np.array_equal(data.test_images[..., 0], test)
    assert data.train_labels.tolist() == train_labels.tolist()
    assert data.test_labels.tolist() == test_labels.tolist()
    assert len(server.seen) == 4
    assert [path.name for path in cache.iterdir()] == ["mnist.npz"]
    assert load("mnist", sources=sources, size=32, channels=3).shape == (3, 32, 32)
    assert len(server.seen) == 4  # the second time it comes from the cache


@pytest.mark.parametrize(("name", "labels"), [("cifar10", 1), ("cifar100", 2)])
def test_cifar_records(serve, name, labels):
    members = dict(SOURCES[name].convert.keywords)
    images = {
        member: RNG.integers(0, 256, (2, 3, 32, 32), dtype=np.uint8) for member in members["train"] + members["test"]
    }

    def record(i, image):  # the label of the first kind is 5, which must not be taken where there are two
        return bytes([5, i][-labels:]) + image.tobytes()

    files = {
        SOURCES[name].files[0].name: tar(
            {m: b"".join(map(record, (7, 8), images[m])) for m in images} | {"a/readme": b"x"}
        )
    }
    data = load(name, sources=served(serve(files), name, files))
    expected = np.concatenate([images[member] for member in members["train"]]).transpose(0, 2, 3, 1)
    assert np.array_equal(data.train_images, expected)
    assert data.train_labels.tolist() == [7, 8] * len(members["train"])
    assert np.array_equal(data.test_images, images[members["test"][0]].transpose(0, 2, 3, 1))
    assert data.test_labels.tolist() == [7, 8]


def test_medmnist_keeps_training_and_testing(serve):
    images, labels = RNG.integers(0, 256, (3, 28, 28, 3), dtype=np.uint8), np.array([[0], [4], [2]], np.uint8)
    both = {
        f"{split}_{part}": a
        for split in ("train", "val", "test")
        for part, a in (("images", images), ("labels", labels))
    }
    files = {"retinamnist.npz": npz(**both)}
    server = serve(files)
    data = load("retinamnist", sources=served(server, "retinamnist", files))
    assert np.array_equal(data.train_images, images)
    assert data.test_labels.tolist() == [0, 4, 2]
    assert server.seen == [("/retinamnist.npz?download=1", None)]


def jpeg(width, height, level):
    buffer = io.BytesIO()
    picture = np.full((height, width, 3), level, np.uint8)
    picture[:, : width // 2] //= 2
    Image.fromarray(picture).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def test_photographs_from_a_wheel(serve):
    """In the order of their numbers, whatever their form: the middle 224 of 256 pixels."""
    members = {
        "foolbox/data/imagenet_01_559.jpg": jpeg(640, 320, 80),
        "foolbox/data/imagenet_00_243.jpg": jpeg(512, 512, 200),
        "foolbox/data/imagenet_02_7.jpg": jpeg(100, 300, 120),
        "foolbox/data/cifar10_00_3.png": b"another",
        "foolbox/__init__.py": b"",
    }
    files = {SOURCES["imagenet_samples_224"].files[0].name: wheel(members)}
    data = load("imagenet_samples_224", sources=served(serve(files), "imagenet_samples_224", files))
    assert (data.count("test"), data.shape, data.classes) == (3, (3, 224, 224), 1000)
    assert data.labels("test").tolist() == [243, 559, 7]
    assert np.abs(data.test_images[:, 100, 200].astype(int) - [[200], [80], [120]]).max() <= 3
    assert np.abs(data.test_images[:, 100, 20].astype(int) - [[100], [40], [60]]).max() <= 3
    edge = np.abs(np.diff(data.test_images[:, 100, :, 0].astype(int), axis=1)).argmax(axis=1)
    assert np.abs(edge - 111).max() <= 1  # the halves meet in the middle
    with pytest.raises(DataError, match="no images in the split 'train'"):
        data.labels("train")


def wheel(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("imagenet_samples_224", b"no wheel", "is no whole wheel"),
        ("imagenet_samples_224", wheel({"foolbox/data/imagenet_00_1.jpg": b"x"}), "is no whole wheel"),
        ("imagenet_samples_224", wheel({"else": b""}), "holds no photographs foolbox/data/imagenet_"),
        ("cifar10", b"no archive", "is no whole tar.gz file"),
        ("cifar10", tar({"else": b""}), "has no file cifar-10-batches-bin/data_batch_1.bin"),
        ("cifar100", tar({"cifar-100-binary/train.bin": bytes(3000)}), "has 3000 bytes, expected a multiple of 3074"),
        ("mnist", b"no gzip", "is no whole gzip file"),
        ("mnist", gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"), "its length does not fit its header"),
        ("mnist", gzip.compress(b""), "is no idx file of bytes"),
        ("retinamnist", b"no zip", "retinamnist.npz is no npz file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",  # archives hold the time they were made at
)
def test_a_source_that_changed_its_form_is_refused(serve, cache, name, content, words):
    files = {file.name: content for file in SOURCES[name].files}
    with pytest.raises(DataError, match=words):
        load(name, sources=served(serve(files), name, files))
    assert not list(cache.glob("*.npz*"))


def test_a_corrupt_payload_leaves_no_data_set(mnist, cache):
    _, server, sources = mnist
    server.files["t10k-images-idx3-ubyte.gz"] = b"something else"
    with pytest.raises(DataError, match="gave a file of md5"):
        load("mnist", sources=sources)
    kept = sorted(path.name for path in cache.rglob("*") if path.is_file())
    assert kept == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]


KILLED = """
import os, signal, sys
from dataclasses import replace
import numpy as np
from dosimeter.data import SOURCES, load
from dosimeter.data.sources import Remote
def half(file, **arrays):
    file.write(b"PK half of a file")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
np.savez = half
files = tuple(Remote(name=file.name, md5=md5) for file, md5 in zip(SOURCES["mnist"].files, sys.argv[2:]))
load("mnist", sources={"mnist": replace(SOURCES["mnist"], base=sys.argv[1], files=files)})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_conversion_leaves_no_npz_and_the_next_goes_on(mnist, cache):
    _, server, sources = mnist
    source = sources["mnist"]
    checksums = [file.md5 for file in source.files]
    done = subprocess.run([sys.executable, "-c", KILLED, source.base, *checksums], capture_output=True)
    assert done.returncode == -9, done.stderr.decode()
    assert not list(cache.glob("*.npz"))
    assert {row.where for row in available(sources=sources)} == {"in the package", "to download"}
    assert load("mnist", sources=sources).count("train") == 6
    assert len(server.seen) == 4  # nothing was fetched twice
    assert [path.name for path in cache.iterdir()] == ["mnist.npz"]


def test_an_interrupted_conversion_leaves_no_npz(mnist, cache):
    _, _, sources = mnist

    def interrupted(paths):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("mnist", sources={"mnist": replace(sources["mnist"], convert=interrupted)})
    assert not list(cache.glob("*.npz*"))


def test_two_at_once_fetch_once(mnist):
    pytest.importorskip("fcntl", reason="folders can be locked on POSIX systems only")
    _, server, sources = mnist
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load("mnist", sources=sources), range(4)))
    assert len({data.fingerprint for data in loaded}) == 1
    assert len(server.seen) == 4


def test_sources_are_complete():
    for name, source in SOURCES.items():
        assert source.name == name
        assert all(source.url(file).startswith("https://") for file in source.files)
        assert all(len(file.md5) == 32 for file in source.files)
        assert source.description
        assert source.licence
        assert source.papers
        assert set(source.papers) <= {"IG", "PPP", "CVB", "Bayes", "FedKL"}
        assert source.known.classes > 1
        assert len(source.known.mean) == len(source.known.std)
    assert SOURCES["mnist"].url(SOURCES["mnist"].files[0]) == (
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz"
    )


def test_sources_that_are_here_whole_agree_with_their_summary(real):
    for name in ("mnist", "pneumoniamnist", "retinamnist"):
        assert peek(real / f"{name}.npz") == SOURCES[name].summary
