"""A run is in its folder as a whole or not at all, and survives the way there and back."""

import json
import math
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import dosimeter as dm
from dosimeter import auditing, drafts, fingerprint, models, store
from dosimeter.attacks import presets
from dosimeter.auditing import Scoring
from dosimeter.auditing.score import judge
from dosimeter.errors import DataError, DosimeterError, OutputError
from dosimeter.reports.page import render
from dosimeter.types import Curve, Ended, Outcome, Reconstruction, Trained, Victims
from machine import full_disk


@pytest.fixture(scope="module")
def result() -> auditing.Result:
    return audited()


def audited(**asked: Any) -> auditing.Result:
    images = torch.rand(2, 2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    victims = Victims(images, torch.tensor([[0, 1], [2, 3]]), torch.tensor([[5, 6], [7, 8]]), ("a", "b"))
    model = models.build("cnn", shape=(3, 32, 32), classes=10, mean=(0.5,) * 3, std=(0.25,) * 3, seed=0)
    return auditing.audit(
        model,
        victims,
        attack=presets.inverting_gradients(steps=2),
        resources=auditing.Resources(progress=False),
        scoring=Scoring(**asked),
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


@pytest.mark.parametrize("seed", range(3))
def test_reading_gives_back_the_result_that_was_written(seed: int, tmp_path: Path) -> None:
    """Whatever its numbers are: images beyond [0, 1] or not finite, labels of any type, all optional parts or none."""
    made = random_result(seed)
    assert fingerprint.of(store.read(save(made, tmp_path / "run"))) == fingerprint.of(made)


def random_result(seed: int, *, panel: bool = True) -> auditing.Result:
    """A result as no audit gives it, with every part set or not by chance."""
    rng = random.Random(seed)
    numbers = torch.Generator().manual_seed(seed)
    v, b, shape = rng.randint(1, 3), rng.randint(1, 2), (rng.choice([1, 3]), 12, 12)
    images = torch.rand(v, b, *shape, generator=numbers)
    labels = [torch.randint(9, (v, b)), torch.rand(v, b, 2, dtype=torch.float64), torch.rand(v, b)][seed % 3]
    victims = Victims(images, labels, torch.arange(v * b).view(v, b), tuple(f"train:{n}" for n in range(v)))
    left = images + torch.randn(images.shape, generator=numbers) * rng.choice([0, 0.1, 9])
    left[0, 0, 0, 0, 0] = rng.choice([0.5, math.nan, math.inf])
    found = Reconstruction(
        images=left,
        labels=labels if seed % 3 == 0 else None,
        match=torch.tensor([rng.choice([rng.random(), math.inf]) for _ in range(v)]),
        steps=torch.arange(v),
        restart=torch.zeros(v, dtype=torch.long),
        stopped=tuple(Ended(Outcome(rng.choice(["steps", "diverged", "recovered"]))) for _ in range(v)),
        curve=Curve((0, 5), torch.randn(v, 2, generator=numbers)),
        determined=({"image": rng.random()},) * v if seed else (),
        trained=(Trained(2, rng.random()),) * v if seed > 1 else (),
    )
    decoys = torch.rand(3, *shape, generator=numbers) if seed else None
    far = dm.Metric(name="far", function=lambda a, b: (a - b).abs().flatten(1).amax(1), higher=False)
    scoring = Scoring(rng.random(), decoys, None, rng.choice([None, 1.5]), (far,) if seed else ())
    std, moved = torch.rand(shape[0], 1, 1, generator=numbers) + 0.1, images.flip(-1) if seed else None
    among = 9 if seed % 3 == 0 else None
    verdict = judge(victims, found, found, scoring, std=std, classes=among, transformed=moved)
    result = auditing.Result(
        settings={"model": "m", "channel": "nothing"} | scoring.settings(),
        threat=dm.ThreatModel(labels=bool(seed), rounds=3),
        records=verdict.records,
        scores=verdict.summary,
        victims=victims,
        raw=verdict.raw,
        raw_baseline=verdict.raw_baseline,
        std=std,
        transformed=moved,
        curve=found.curve,
        seconds=rng.random(),
        environment={"torch": "2"},
        status=rng.choice(["complete", "interrupted"]),
        command=rng.choice(["", "dosimeter audit --data 'a b'"]),
    )
    if not panel:
        return result
    inner = [random_result(seed, panel=False), random_result(seed + 7, panel=False)]
    trials = [
        auditing.Trial(attack="ig, rounds averaged", role="adaptive", about="mean", rounds=4, result=inner[0]),
        auditing.Trial(attack="analytic", role="adaptive", about="", refused="it does not fit"),
        auditing.Trial(attack="all revealed", role="control", about="", result=inner[1]),
    ]
    return auditing.conclude(trials)


def test_a_panel_cut_short_is_shown_with_as_many_images_as_each_attack_reached(result: auditing.Result) -> None:
    settings = result.settings | {"channel": "nothing"}
    first = result.records[: result.victims.batch]
    cut = replace(
        result, settings=settings, status="interrupted", victims=result.victims.take(slice(1)), records=first,
        raw=result.raw[:1], raw_baseline=result.raw_baseline[:1], curve=Curve((0,), torch.ones(1, 1)),
    )  # fmt: skip
    whole = replace(result, settings=settings)
    for panel in ((whole, cut), (cut, whole)):
        trials = [auditing.Trial(attack="ig", role="published", about="", result=each) for each in panel]
        shown = auditing.conclude(trials)
        assert shown.status == "interrupted"
        _, _, images = render(shown).partition('id="images"')
        name = f"Reconstruction of Image {first[0].index}"
        assert len(re.findall(rf"{name}\b[^\"]* by ig, SSIM", images)) == 2


def test_a_run_of_an_older_version_is_read(result: auditing.Result, tmp_path: Path) -> None:
    """Runs of before raw images, labels and deviations were kept."""
    folder = save(result, tmp_path / "run")
    gone = dict.fromkeys(("raw", "raw_baseline", "labels", "indices", "std"))
    _tensors(folder / "reconstructions.safetensors", **gone)
    old = store.read(folder)
    assert isinstance(old, auditing.Result)
    assert old.victims.labels.equal(result.victims.labels)
    assert old.victims.indices.equal(result.victims.indices)
    assert json.dumps(old.document()) == json.dumps(result.document())
    with pytest.raises(DosimeterError, match="older version"):
        auditing.rescore(old, Scoring(0.1))


def test_another_scoring_gives_what_an_audit_with_it_gives(result: auditing.Result) -> None:
    far = dm.Metric(name="far", function=lambda a, b: (a - b).abs().flatten(1).amax(1), higher=False)
    decoys = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    asked = {"threshold": 0.02, "delta": 20.0, "metrics": (far,), "decoys": decoys}
    expected = audited(**asked)
    again = auditing.rescore(result, Scoring(**asked))  # type: ignore[arg-type]
    assert json.dumps(again.document()) == json.dumps(expected.document())
    kept = auditing.rescore(again, Scoring(0.9)).scores
    assert (kept["far"], kept.identification) == (expected.scores["far"], expected.scores.identification)
    assert kept.success.threshold == 0.9


def test_a_rerun_gives_the_same_records(result: auditing.Result, tmp_path: Path) -> None:
    first, second = (save(result, tmp_path / name) for name in "ab")
    for name in ("records.json", "reconstructions.safetensors", "images/victim-001-0-original.png"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert (first / "records.json").read_text().endswith("}\n")


def test_nothing_but_the_run_is_left(result: auditing.Result, tmp_path: Path) -> None:
    folder = save(result, tmp_path / "run")
    assert names(tmp_path) == ["run"]
    assert names(folder) == ["images", "reconstructions.safetensors", "records.json", "run.json"]
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
    records = [replace(each, match=math.inf, scores=each.scores | {"psnr": math.nan}) for each in result.records]
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
