"""A run is in its folder as a whole or not at all, and survives the way there and back."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from dosimeter import auditing, drafts, models, store
from dosimeter.attacks import presets
from dosimeter.errors import DataError, OutputError
from dosimeter.types import Victims
from machine import full_disk


@pytest.fixture(scope="module")
def result() -> auditing.Result:
    images = torch.rand(2, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    victims = Victims(images, torch.tensor([[0, 1], [2, 3]]), torch.tensor([[5, 6], [7, 8]]), ("a", "b"))
    model = models.build("cnn", shape=(3, 32, 32), classes=10, mean=(0.5,) * 3, std=(0.25,) * 3, seed=0)
    return auditing.audit(
        model, victims, attack=presets.inverting_gradients(steps=2), resources=auditing.Resources(progress=False)
    )


def save(result: auditing.Result, folder: Path, *, overwrite: bool = False) -> Path:
    with drafts.reserve(folder, overwrite=overwrite) as draft:
        store.write_run(result, draft.place)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_survives_its_folder(result: auditing.Result, tmp_path: Path) -> None:
    run = store.read_run(save(result, tmp_path / "new" / "run"))
    assert run.document == json.loads(json.dumps(result.document()))
    assert run.tensors["images"].equal(result.images)
    assert run.tensors["baseline"].equal(result.baseline)
    assert run.tensors["originals"].equal(result.victims.images)
    assert run.tensors["curve"].equal(result.curve.match)
    assert tuple(run.tensors["curve_steps"].tolist()) == result.curve.steps
    assert run.info["status"] == "complete"
    assert run.info["seconds"] == result.seconds
    assert run.info["environment"] == result.environment
    assert run.info["started"] <= run.info["finished"]
    assert run.info["finished"].endswith("+00:00")


def test_a_rerun_gives_the_same_records(result: auditing.Result, tmp_path: Path) -> None:
    first, second = (save(result, tmp_path / name) for name in "ab")
    for name in ("records.json", "reconstructions.safetensors", "images/victim-001-0-original.png"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert (first / "records.json").read_text().endswith("}\n")


def test_nothing_but_the_run_is_left(result: auditing.Result, tmp_path: Path) -> None:
    folder = save(result, tmp_path / "run")
    assert names(tmp_path) == ["run"]
    assert names(folder) == ["images", "reconstructions.safetensors", "records.json", "run.json"]
    usual = tmp_path / "usual"
    usual.mkdir()
    assert folder.stat().st_mode == usual.stat().st_mode
    modes = {path.stat().st_mode for path in folder.iterdir() if path.is_file()}
    assert len(modes) == 1


def test_pictures_have_the_pixels(result: auditing.Result, tmp_path: Path) -> None:
    folder = save(result, tmp_path / "run") / "images"
    assert len(names(folder)) == 8
    for kind, images in (("original", result.victims.images), ("reconstruction", result.images)):
        with Image.open(folder / f"victim-001-0-{kind}.png") as picture:
            pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        assert pixels.equal((images[1, 0] * 255).round().byte())


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "L"), (3, "RGB"), (4, "L")])
def test_pictures_of_any_channels(channels: int, mode: str) -> None:
    image = torch.rand(channels, 5, 7)
    image[0, 0, 0] = torch.nan
    picture = store.picture(image)
    assert (picture.mode, picture.size) == (mode, (7, 5))


def test_json_has_no_infinities(result: auditing.Result, tmp_path: Path) -> None:
    records = [record | {"match": float("inf"), "psnr": float("nan")} for record in result.records]
    settings = result.settings | {"path": Path("a"), 3: (1, 2)}
    folder = save(replace(result, records=records, settings=settings), tmp_path / "run")
    document = store.read_run(folder).document
    assert document is not None
    assert document["records"][0]["match"] is None
    assert document["records"][0]["psnr"] is None
    assert document["settings"]["path"] == "a"
    assert document["settings"]["3"] == [1, 2]


def test_interrupted_before_anything(tmp_path: Path) -> None:
    store.write_interrupted(tmp_path / "run", "Ctrl-C")
    run = store.read_run(tmp_path / "run")
    assert (run.info["status"], run.info["why"], run.document, run.tensors) == ("interrupted", "Ctrl-C", None, {})


def test_failure_keeps_the_old_run(result: auditing.Result, tmp_path: Path) -> None:
    folder = save(result, tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for largest in (0, 100_000):  # for the records, for the tensors
        with full_disk(largest), pytest.raises(OutputError, match="File too large"):
            save(result, folder, overwrite=True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert names(tmp_path) == ["run"]


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _tensors(path: Path, **changes: torch.Tensor | None) -> None:
    found = load_file(path) | changes
    save_file({name: tensor.clone() for name, tensor in found.items() if tensor is not None}, path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no run.json": lambda folder: (folder / "run.json").unlink(),
    "no records.json": lambda folder: (folder / "records.json").unlink(),
    "no tensors": lambda folder: (folder / "reconstructions.safetensors").unlink(),
    "half of run.json": lambda folder: (folder / "run.json").write_text('{"program": "dosim'),
    "empty records.json": lambda folder: (folder / "records.json").write_text(""),
    "bytes in records.json": lambda folder: (folder / "records.json").write_bytes(b"\xff\xfe\x00"),
    "nan in records.json": lambda folder: (folder / "records.json").write_text('{"records": [NaN]}'),
    "deep records.json": lambda folder: (folder / "records.json").write_text("[" * 100_000),
    "a list": lambda folder: (folder / "records.json").write_text("[]"),
    "another program": lambda folder: _edit(folder / "run.json", program="another"),
    "a newer format": lambda folder: _edit(folder / "run.json", format=2),
    "other count": lambda folder: _edit(folder / "run.json", images=1),
    "no scores": lambda folder: _edit(folder / "records.json", scores=None),
    "fewer records": lambda folder: _edit(folder / "records.json", records=[]),
    "half of the tensors": lambda folder: os.truncate(folder / "reconstructions.safetensors", 1000),
    "a pickle": lambda folder: torch.save({"images": 1}, folder / "reconstructions.safetensors"),
    "no originals": lambda folder: _tensors(folder / "reconstructions.safetensors", originals=None),
    "other shape": lambda folder: _tensors(folder / "reconstructions.safetensors", baseline=torch.zeros(2)),
    "other curve": lambda folder: _tensors(folder / "reconstructions.safetensors", curve=torch.zeros(2, 1)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_runs_are_refused(damage: str, result: auditing.Result, tmp_path: Path) -> None:
    folder = save(result, tmp_path / "run")
    DAMAGES[damage](folder)
    with pytest.raises(DataError) as refused:
        store.read_run(folder)
    assert "\n" not in str(refused.value)
    assert "expected" in str(refused.value)


def test_no_folder_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        store.read_run(tmp_path / "nothing")
