"""Folders of images: their layout, every kind of pixel, and what a folder of strangers may hold."""

import io
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from dosimeter.cli import app
from dosimeter.data import Dataset, folder, load, pick, read_folder
from dosimeter.errors import DataError, SettingError

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
ORIENTATION = 0x0112


def save(path: Path, pixels: np.ndarray | Image.Image, **how: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **how)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes, three photographs of 7 wide and 5 high."""
    root = tmp_path / "photos"
    save(root / "dog" / "b.png", COLOURS[0])
    save(root / "cat" / "c.png", COLOURS[1])
    save(root / "cat" / "a.PNG", COLOURS[2])
    return root


def test_folders_are_classes_in_the_order_of_their_names(photos):
    data = load(photos)
    assert (data.name, data.source, data.shape, data.classes) == ("photos", "photos", (3, 5, 7), 2)
    assert np.array_equal(data.train_images, COLOURS[[2, 1, 0]])
    assert data.train_labels.tolist() == [0, 0, 1]
    assert data.test_labels.tolist() == []
    with pytest.raises(DataError, match="photos has no images in the split 'test'; use the split 'train'"):
        pick(data, 1, split="test")
    assert pick(data, 3).shape == (3, 5, 7)


def test_splits_share_their_classes(tmp_path):
    for i, name in enumerate(["train/a/1.png", "train/c/2.png", "test/b/3.png", "test/c/4.png", "val/z/5.png"]):
        save(tmp_path / name, COLOURS[i])
    data = load(tmp_path)
    assert (data.train_labels.tolist(), data.test_labels.tolist(), data.classes) == ([0, 2], [1, 2], 3)
    assert np.array_equal(data.train_images, COLOURS[:2])
    assert np.array_equal(data.test_images, COLOURS[2:4])


@pytest.mark.parametrize(("split", "other"), [("train", "test"), ("test", "train")])
def test_one_split_is_enough(tmp_path, split, other):
    save(tmp_path / split / "a" / "1.png", COLOURS[0])
    data = load(tmp_path)
    assert data.count(split) == 1
    with pytest.raises(DataError, match=f"no images in the split {other!r}; use the split {split!r}"):
        data.labels(other)


def test_a_class_may_be_called_train(tmp_path):
    save(tmp_path / "plane" / "1.png", COLOURS[0])
    save(tmp_path / "train" / "2.png", COLOURS[1])
    assert load(tmp_path).train_labels.tolist() == [0, 1]


def test_names_are_sorted_as_text(tmp_path):
    for i, name in enumerate(["0", "2", "10", "Ärger", "zebra", "Zoo"]):
        save(tmp_path / name / "1.png", np.full((2, 2), i, np.uint8))
    assert load(tmp_path).train_images[:, 0, 0, 0].tolist() == [0, 2, 1, 5, 4, 3]  # 0, 10, 2, Zoo, zebra, Ärger


@settings(max_examples=40, deadline=None)
@given(
    size=st.none() | st.integers(1, 12),
    channels=st.sampled_from([None, 1, 3]),
    grey=st.booleans(),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_a_folder_gives_what_the_same_arrays_give(tmp_path_factory, size, channels, grey, shape):
    root = tmp_path_factory.mktemp("same")
    images = RNG.integers(0, 256, (4, *shape) if grey else (4, *shape, 3), dtype=np.uint8)
    for i, image in enumerate(images):
        save(root / f"class {i // 2}" / f"{i}.png", image)
    arrays = Dataset(
        name="same",
        train_images=images,
        train_labels=np.array([0, 0, 1, 1]),
        test_images=images[:0],
        test_labels=np.zeros(0, int),
    ).prepared(size, channels)
    found = load(root, size=size, channels=channels)
    assert found.shape == arrays.shape
    assert np.array_equal(found.split("train")[0], arrays.split("train")[0])
    assert found.statistics() == read_folder(root, size=size, channels=channels).statistics()


def test_the_fingerprint_is_of_the_contents(photos):
    before = load(photos).fingerprint
    os.utime(photos / "cat" / "a.PNG", (1, 1))
    (photos / "cat" / "a.PNG").rename(photos / "cat" / "a.png")
    assert load(photos).fingerprint == before
    assert load(photos, size=5).fingerprint != before
    changed = COLOURS[2].copy()
    changed[0, 0, 0] ^= 1
    save(photos / "cat" / "a.png", changed)
    assert load(photos).fingerprint != before
    save(photos / "cat" / "a.png", COLOURS[2])
    (photos / "cat" / "a.png").rename(photos / "dog" / "a.png")
    assert load(photos).fingerprint != before


FORMATS = {
    "png": {},
    "bmp": {},
    "tif": {},
    "ppm": {},
    "webp": {"lossless": True},
    "jp2": {"irreversible": False},
    "gif": None,
    "jpg": None,
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_formats(tmp_path, suffix):
    """Those that lose nothing give the pixels back; of the others an even grey comes near."""
    exact = FORMATS[suffix] is not None
    pixels = np.repeat(np.repeat(COLOURS[0], 8, 0), 8, 1) if exact else np.full((40, 56, 3), 77, np.uint8)
    save(tmp_path / "a" / f"x.{suffix}", pixels, **(FORMATS[suffix] or {}))
    found = load(tmp_path, channels=3).train_images[0]
    assert np.abs(found.astype(int) - pixels).max() <= (0 if exact else 1)


def test_the_first_of_moving_pictures_is_taken(tmp_path):
    first, second = (Image.fromarray(np.full((4, 4), level, np.uint8)) for level in (10, 200))
    save(tmp_path / "a" / "x.gif", first, save_all=True, append_images=[second])
    save(tmp_path / "a" / "y.tiff", first, save_all=True, append_images=[second])
    assert (load(tmp_path).train_images == 10).all()


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels as stored by a camera held so, to be shown as `pixels` (EXIF 2.32, tag 274)."""
    inverse = {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.swapaxes(0, 1),
        6: lambda x: np.rot90(x, 1),
        7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
        8: lambda x: np.rot90(x, -1),
    }
    return np.ascontiguousarray(inverse[orientation](pixels))


@pytest.mark.parametrize("suffix", ["png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_cameras_held_any_way_up(tmp_path, orientation, suffix):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    stored = turned(COLOURS[0], orientation)
    save(tmp_path / "a" / f"x.{suffix}", stored, exif=exif, **(FORMATS[suffix]))
    assert np.array_equal(load(tmp_path).train_images[0], COLOURS[0])


def test_odd_exif_data_are_no_obstacle(tmp_path):
    path = save(tmp_path / "a" / "x.jpg", COLOURS[0], exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12")
    assert load(path.parents[1]).shape == (3, 5, 7)


GREY = RNG.integers(0, 256, (5, 7), dtype=np.uint8)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.fromarray(GREY), GREY),
        (Image.fromarray(GREY > 127), np.where(GREY > 127, 255, 0)),
        (Image.fromarray(np.stack([GREY, np.full_like(GREY, 255)], 2)), GREY),
        (Image.fromarray(np.stack([GREY, np.zeros_like(GREY)], 2)), np.full_like(GREY, 255)),
        (Image.fromarray(GREY.astype(np.uint16) * 257), GREY),
        (Image.fromarray(np.dstack([COLOURS[0], np.full((5, 7), 255, np.uint8)])), COLOURS[0]),
        (Image.fromarray(np.dstack([COLOURS[0], np.zeros((5, 7), np.uint8)])), np.full((5, 7, 3), 255)),
        (Image.fromarray(COLOURS[0]).quantize(256), COLOURS[0]),
    ],
    ids=["grey", "bilevel", "opaque grey", "clear grey", "16 bits", "opaque colour", "clear colour", "palette"],
)
def test_every_kind_of_pixel(tmp_path, image, expected):
    save(tmp_path / "a" / "x.png", image)
    data = load(tmp_path)
    expected = expected if expected.ndim == 3 else expected[..., None]
    assert data.shape == (expected.shape[2], 5, 7)
    assert np.array_equal(data.train_images[0], expected)


def test_half_transparent_pixels_are_mixed_with_white(tmp_path):
    pixels = np.dstack([COLOURS[0], RNG.integers(0, 256, (5, 7), dtype=np.uint8)])
    save(tmp_path / "a" / "x.png", pixels)
    alpha = pixels[..., 3:] / 255
    mixed = alpha * pixels[..., :3] + (1 - alpha) * 255
    assert np.abs(load(tmp_path).train_images[0] - mixed).max() <= 1


def test_a_transparent_entry_of_a_palette_is_white(tmp_path):
    image = Image.frombytes("P", (2, 1), bytes([0, 1]))
    image.putpalette([200, 0, 0, 0, 100, 0])
    save(tmp_path / "a" / "x.png", image, transparency=0)
    assert load(tmp_path).train_images[0].tolist() == [[[255, 255, 255], [0, 100, 0]]]


def test_inks_become_colours(tmp_path):
    """Cyan, yellow, black and no ink."""
    inks = np.zeros((8, 32, 4), np.uint8)
    for i, ink in enumerate((0, 2, 3)):
        inks[:, 8 * i : 8 * i + 8, ink] = 255
    save(tmp_path / "a" / "x.tif", Image.frombytes("CMYK", (32, 8), inks.tobytes()))
    seen = load(tmp_path).train_images[0][4, 4::8]
    assert seen.tolist() == [[0, 255, 255], [255, 255, 0], [0, 0, 0], [255, 255, 255]]


@settings(max_examples=30, deadline=None)
@given(value=st.integers(0, 65535), suffix=st.sampled_from(["png", "tif"]))
def test_sixteen_bits_are_scaled_to_eight(tmp_path_factory, value, suffix):
    root = tmp_path_factory.mktemp("deep")
    save(root / "a" / f"x.{suffix}", np.full((2, 2), value, np.uint16))
    assert (load(root).train_images == round(value / 257)).all()


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_wider_pixels_have_no_known_white(tmp_path, dtype):
    save(tmp_path / "a" / "x.tif", np.full((2, 2), 70000, dtype))
    with pytest.raises(DataError, match=r"x\.tif' cannot be read \(its pixels are 32 bits wide"):
        load(tmp_path)


def test_one_coloured_file_makes_the_set_coloured(tmp_path):
    save(tmp_path / "a" / "x.png", GREY)
    assert load(tmp_path).shape == (1, 5, 7)
    assert load(tmp_path, channels=3).shape == (3, 5, 7)
    save(tmp_path / "b" / "y.png", COLOURS[0])
    data = load(tmp_path)
    assert data.shape == (3, 5, 7)
    assert (data.train_images[0] == GREY[..., None]).all()
    grey = load(tmp_path, channels=1).train_images[1, :, :, 0]
    assert np.array_equal(grey, np.asarray(Image.fromarray(COLOURS[0]).convert("L")))


def test_different_sizes_need_one(photos):
    save(photos / "dog" / "z.png", np.zeros((9, 6, 3), np.uint8))
    words = "differ in size: 'photos/cat/a.PNG' is 7x5, 'photos/dog/z.png' is 6x9; give one size, with size= or --size"
    with pytest.raises(DataError, match=re.escape(words)):
        load(photos)
    data = load(photos, size=4)
    assert data.shape == (3, 4, 4)
    square = Image.fromarray(COLOURS[1]).crop((1, 0, 6, 5))  # the middle of 7x5
    exact = [
        Image.fromarray(np.asarray(square)[..., c].astype(np.float32)).resize((4, 4), Image.Resampling.BILINEAR)
        for c in range(3)
    ]
    assert np.abs(data.train_images[1] - np.stack([np.asarray(c) for c in exact], 2)).max() <= 0.5 + 1e-3


def test_one_image_a_class(tmp_path):
    for i in range(40):
        save(tmp_path / f"person {i:02}" / "face.png", COLOURS[i % 6])
    data = load(tmp_path)
    assert (data.count("train"), data.classes) == (40, 40)


def test_what_is_hidden_or_no_image_is_left_out(photos):
    before = load(photos).fingerprint
    for name in (".DS_Store", "readme.txt", "labels.csv", "cat/Thumbs.db", "cat/.hidden.png", "cat/notes"):
        (photos / name).write_bytes(b"not an image")
    for name in (".git/x", "__MACOSX/cat", "cat/.cache"):
        (photos / name).mkdir(parents=True)
    assert load(photos).fingerprint == before


def listing(root: Path) -> list[tuple[str, int, int]]:
    return sorted((str(p), p.stat().st_mtime_ns, p.stat().st_mode) for p in [root, *root.rglob("*")])


def test_nothing_is_written(photos):
    for path in [*photos.rglob("*"), photos]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = listing(photos)
    assert load(photos).count("train") == 3
    assert listing(photos) == before
    for path in [photos, *photos.rglob("*")]:
        path.chmod(0o755)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *more: bytes) -> bytes:
    """A PNG of a few bytes that claims these sides."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")
    )


BOMB = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**24)))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.png", b"", "it is no image, or of a format that is not read"),
        ("x.jpg", b"hello", "it is no image"),
        ("x.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is no image"),
        ("x.png", png(12000, 12000), "exceeds limit of 89478485 pixels"),
        ("x.png", png(60000, 60000), "exceeds limit of 178956970 pixels"),
        ("x.png", png(8, 8, BOMB), "too large"),
        ("x.png", png(30, 30), "truncated|not enough|incomplete|broken"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_in_one_line(photos, name, content, words):
    (photos / "dog" / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"^'photos/dog/{name}' cannot be read \(.*({words})") as caught:
        load(photos)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="cannot be read"):
        load(photos, size=4, channels=3)


def test_a_limit_that_the_user_raised_is_respected(tmp_path, monkeypatch):
    save(tmp_path / "a" / "x.png", np.zeros((20, 20), np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 399)
    with pytest.raises(DataError, match="exceeds limit of 399 pixels"):
        load(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert load(tmp_path).shape == (1, 20, 20)


@pytest.mark.parametrize("name", ["x.heic", "x.SVG", "x.dcm"])
def test_an_image_of_another_format_is_not_overlooked(photos, name):
    (photos / "dog" / name).write_bytes(b"...")
    with pytest.raises(DataError, match=f"'photos/dog/{name}' is in a format that is not read; convert it to PNG"):
        load(photos)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: save(root / "loose.png", GREY), "'photos/loose.png' lies beside the folders of the classes"),
        (lambda root: (root / "empty").mkdir(), "The class 'photos/empty' holds no images"),
        (lambda root: (root / "cat" / "kittens").mkdir(), "The class 'photos/cat' holds the folder 'kittens'"),
        (
            lambda root: (root / "cat" / "gone.png").symlink_to("nowhere"),
            "'photos/cat/gone.png' cannot be read (it is no",
        ),
        (lambda root: (root / "cat" / "me.png").symlink_to("me.png"), "'photos/cat/me.png' cannot be read (it is no"),
        (lambda root: (root / "cat" / "up").symlink_to(root), "The class 'photos/cat' holds the folder 'up'"),
        (lambda root: (root / "loop").symlink_to(root), "The class 'photos/loop' holds the folder 'cat'"),
        (lambda root: os.mkfifo(root / "cat" / "pipe.png"), "'photos/cat/pipe.png' cannot be read (it is no file"),
    ],
    ids=["loose", "empty", "nested", "broken link", "link to itself", "link up", "loop", "pipe"],
)
def test_a_folder_of_another_layout_is_refused(photos, make, words):
    make(photos)
    with pytest.raises(DataError, match=f"^{re.escape(words)}") as caught:
        load(photos)
    assert "\n" not in str(caught.value)


def test_a_folder_without_labels_is_refused(tmp_path):
    root = tmp_path / "flat"
    save(root / "x.png", GREY)
    with pytest.raises(
        DataError, match=r"'flat' holds images but no folders, so the images have no labels; expected a"
    ):
        load(root)
    root = tmp_path / "splits"
    save(root / "train" / "x.png", GREY)
    with pytest.raises(DataError, match="'splits/train' holds images but no folders"):
        load(root)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="'none' holds no images; expected a folder of images for every class"):
        load(tmp_path / "none")


def test_linked_files_and_folders_are_followed(photos, tmp_path):
    (tmp_path / "linked").symlink_to(photos)
    data = load(tmp_path / "linked")
    assert (data.name, data.fingerprint) == ("linked", load(photos).fingerprint)
    farm = tmp_path / "farm"
    farm.mkdir()
    (farm / "cat").symlink_to(photos / "cat")
    (farm / "dog").mkdir()
    (farm / "dog" / "1.png").symlink_to(photos / "dog" / "b.png")
    assert load(farm).fingerprint == data.fingerprint


def test_a_folder_that_may_not_be_opened(photos, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(folder.os, "listdir", refuse)
    with pytest.raises(DataError, match="Cannot open the folder 'photos': Permission denied"):
        load(photos)


def test_too_many_images_are_refused_before_any_is_read(photos, monkeypatch):
    monkeypatch.setattr(folder, "MOST_BYTES", 3 * 5 * 7 * 3 - 1)
    with pytest.raises(
        DataError, match=r"'photos' has 3 image\(s\), which take 0\.0 GiB at 7x5, more than 0\.0; use a sm"
    ):
        load(photos)
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(DataError, match="at 224x224, more than"):
        load(photos, size=224)


@pytest.mark.parametrize(
    "name",
    ["Übungen/日本.png", "a b/c'd\".png", "new\nline/x\t.png", b"\xff\xfe/\xe9.png".decode("utf8", "surrogateescape")],
)
def test_any_name_is_read_and_shown_in_one_line(tmp_path, name):
    try:
        path = save(tmp_path / name, COLOURS[0])
    except OSError:
        pytest.skip("this file system does not take such names")
    assert load(tmp_path).count("train") == 1
    path.write_bytes(b"broken")
    with pytest.raises(DataError, match="cannot be read") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    str(caught.value).encode()  # what cannot be written would end in a traceback


def test_settings_that_cannot_be(photos):
    with pytest.raises(
        DataError, match=re.escape("photos can be given with 1 channel (grey) or 3 (colours), not with 2")
    ):
        load(photos, channels=2)
    with pytest.raises(SettingError, match="size of images must be at least 1 and at most 4,096, got 0"):
        load(photos, size=0)


def test_folders_are_found_by_their_path(photos, monkeypatch, tmp_path):
    expected = load(photos).fingerprint
    monkeypatch.chdir(photos.parent)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("photos", "photos/", "./photos", "~/photos", Path("photos"), Path("photos").absolute()):
        assert (load(path).name, load(path).fingerprint) == ("photos", expected)
    monkeypatch.chdir(photos)
    assert (load(".").name, load(Path()).fingerprint) == ("photos", expected)
    photos.rename(tmp_path / "mnist-5k")
    monkeypatch.chdir(tmp_path)
    assert load("mnist-5k").source == "package"  # a known name comes first
    assert load("./mnist-5k").fingerprint == expected
    with pytest.raises(DataError, match=r"Unknown data set 'photos'.*of a folder of images"):
        load("photos")


@pytest.fixture(scope="session")
def encoded(tmp_path_factory):
    """The bytes of one photograph in several formats, and a folder for broken copies."""
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    contents = []
    for kind, how in [
        ("PNG", {"exif": exif}),
        ("JPEG", {"exif": exif}),
        ("GIF", {}),
        ("BMP", {}),
        ("WEBP", {}),
        ("PPM", {}),
    ]:
        buffer = io.BytesIO()
        Image.fromarray(COLOURS[0]).save(buffer, kind, **how)
        contents.append(buffer.getvalue())
    root = tmp_path_factory.mktemp("damaged")
    (root / "a").mkdir()
    return root, contents


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_image_is_refused_or_read(encoded, data):
    root, contents = encoded
    content = bytearray(data.draw(st.sampled_from(contents)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    (root / "a" / "x.png").write_bytes(bytes(content))
    refusal = None
    try:
        assert read_folder(root, size=4).train_images.shape[:3] == (1, 4, 4)
    except DataError as error:
        refusal = str(error)
    assert refusal is None or re.match(r"^'.*/a/x\.png' cannot be read \(.*\); repair it or move it away\.$", refusal)


def test_a_folder_is_audited_in_one_command(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(photos / "dog" / "large.jpg", RNG.integers(0, 256, (90, 60, 3), dtype=np.uint8))
    words = ["audit", "--data", "photos", "--size", "8", "--model", "mlp-2", "--victims", "2", "--steps", "3"]
    done = CliRunner().invoke(app, [*words, "--decoys", "2", "--out", "run"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "report.html").is_file()
    done = CliRunner().invoke(app, [*words[:3], *words[5:]])
    assert done.exit_code == 2
    assert done.stderr.startswith("dosimeter: The images differ in size")
    assert done.stderr.count("\n") == 1
