"""Results on disk: a run is a folder, which `dosimeter.drafts` puts there as a whole or not at all.

    run.json                     program, format, status, times and machine; what a rerun does not repeat
    records.json                 settings, threat model, scores and one record an image; the same in every rerun
    reconstructions.safetensors  images, baseline, originals (V, B, C, H, W) in [0, 1]; curve (V, T), curve_steps (T,)
    images/                      victim-000-0-original.png and victim-000-0-reconstruction.png for every image, and
                                 victim-000-0-transformed.png where the client trained on another
    run.toml                     the options, for `dosimeter audit --config`
    report.html                  the page for people, by `dosimeter.reports`; report-redacted.html has no pictures, and
                                 report.pdf or report-redacted.pdf are either in print
    dose.json                    what the updates determine, where it was asked for, by `dosimeter.doses`
    gate.json, .junit.xml, ...   what a gate said, for pipelines, by `dosimeter.reports.pipelines`
    attacks/                     the same of every attack of a panel
    updates/                     the same of every update of a federation whose images were searched for

`baseline` is what the same attack gives without the update. `raw` and `raw_baseline` stand beside them where clipping
changed them; where a search was traced, `trace/NAME` is (V, T, 7) of each parameter: norm, cosine with the observed
tensor and two entries of the simulated one, then norm and the same entries of the observed. `labels`, `indices`, `std`,
`transformed` and `read_as` are what scores need. The originals are the
private images themselves, which the owner of an audit has; who passes a run on passes them on as well. A run of a
captured update, which records.json marks as "captured", has none unless the truth was given, and has `certified`, the
image that a certificate is about, where anything of it is certain. Reading executes nothing: JSON and safetensors.
"""

import json
import re
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dosimeter import files, plain
from dosimeter.auditing import Captured, Entry, Finding, ImageRecord, Outcome, Result, Summary, Survey, Trial
from dosimeter.auditing.dosed import Dosed
from dosimeter.errors import DAMAGED, DataError
from dosimeter.files import reason
from dosimeter.types import Curve, ThreatModel, Victims

FORMAT = 1
"""The version of everything above; raised when an older reader would misread a run."""

GATES = ("gate.json", "gate.junit.xml", "gate.sarif", "gate.md")
TRACE = "trace/"
"""Before the name of a parameter: what became of its part of the simulated update (V, T, `types.TRACED`)."""
RUN, RECORDS, TENSORS, IMAGES = "run.json", "records.json", "reconstructions.safetensors", "images"

_FOLDERS = re.compile(r"((attacks|updates)/[^/]+/)?images|(attacks|updates)(/[^/]+)?")
_FILES = re.compile(
    r"((attacks|updates)/[^/]+/)?"
    r"(run\.json|run\.toml|records\.json|reconstructions\.safetensors|dose\.json|report(-redacted)?\.(html|pdf)"
    r"|\.report(-redacted)?\.(html|pdf)\.\d+"
    r"|images/victim-\d+-\d+-(original|transformed|reconstruction)\.png)|gate\.(json|junit\.xml|sarif|md)"
)
"""All that a run may consist of; the hidden page is what a process leaves that was killed while it wrote one."""


F = TypeVar("F", Result, Captured)


class Run(NamedTuple):
    """A run as read from its folder."""

    info: dict[str, Any]  # run.json
    document: dict[str, Any] | None  # records.json; None when the run was interrupted before anything was attacked
    tensors: dict[str, Tensor]  # reconstructions.safetensors; empty when the document is None


def write_run(result: Outcome | Survey, folder: Path) -> None:
    """Write a result into a folder, usually a draft; run.json comes last, and with it the folder is a run."""
    for number, trial in enumerate(result.panel if isinstance(result, Result) else (), 1):
        place = folder / attack_folder(number, trial.attack)
        if trial.result is not None and not (place / RUN).is_file():
            write_run(trial.result, place)
    if isinstance(result, Survey):
        for key, update in result.results.items():
            if not (folder / update_folder(key) / RUN).is_file():
                write_run(update, folder / update_folder(key))
        _write_json(folder / RECORDS, result.document())
        info = _info(result.status, result.seconds, result.environment, len(result.entries))
        _write_json(folder / RUN, info | _told(result))
        return
    # Copies, since tensors that share memory are refused; `save_file` would make a file that only its owner reads.
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in _tensors(result).items()}
    with files.undisturbed():
        _write_json(folder / RECORDS, result.document())
        files.replace(folder / TENSORS, save(copies))
        _write_images(result, folder / IMAGES)
        info = _info(result.status, result.seconds, result.environment, len(result.records))
        _write_json(folder / RUN, info | _told(result))


def attack_folder(number: int, name: str) -> str:
    """Where an attack of a panel lies in its folder."""
    return f"attacks/{number:02d}-{re.sub(r'[ /]', '-', name)}"


def update_folder(key: str) -> str:
    """Where an update of a federation lies in its folder, and never outside of it."""
    if "/" in key or key in ("", ".", ".."):
        raise ValueError(f"an update cannot be called {key!r}")
    return f"updates/{key}"


def _tensors(result: Outcome) -> dict[str, Tensor]:
    steps = torch.tensor(result.curve.steps, dtype=torch.long)
    tensors = {"images": result.images, "baseline": result.baseline, "curve": result.curve.match, "curve_steps": steps}
    tensors |= {f"{TRACE}{name}": each for name, each in result.curve.traces.items()}
    raw = {"raw": (result.raw, result.images), "raw_baseline": (result.raw_baseline, result.baseline)}
    tensors |= {name: left for name, (left, shown) in raw.items() if not torch.equal(left, shown)}
    judged = result.judged if isinstance(result, Captured) else result
    more = {"certified": result.certified if isinstance(result, Captured) else None}
    if judged is not None:
        beside = judged.victims
        tensors |= {"originals": beside.images, "labels": beside.labels, "indices": beside.indices}
        more |= {"std": judged.std, "transformed": judged.transformed, "read_as": judged.read_as}
    return tensors | {name: tensor for name, tensor in more.items() if tensor is not None}


def write_interrupted(folder: Path, why: str, *, made: str = "") -> None:
    """Write a run that was ended before there was a result: run.json alone, with the reason."""
    _write_json(folder / RUN, _info("interrupted", 0.0, {}, 0) | {"why": why, "made": made})


def unfinished(folder: Path) -> str:
    """What would have been made by a run that was stopped; nothing of any other folder."""
    try:
        info = _read_json(folder / RUN)
    except DataError:
        return ""
    return str(info.get("made", "")) if info.get("status") == "interrupted" else ""


def finished_run(folder: Path) -> bool:
    """Whether a folder holds a run that was not stopped."""
    try:
        return bool(_read_json(folder / RUN).get("status") == "complete")
    except DataError:
        return False


def finished(folder: Path, kind: type[F]) -> dict[str, F]:
    """Attacks of a panel, or updates of a federation, that were done, by what made them."""
    found: dict[str, F] = {}
    for place in sorted([*folder.glob("attacks/*"), *folder.glob("updates/*")]):
        with suppress(DataError):  # one that was being written
            result = read(place)
            if isinstance(result, kind) and result.made and result.status == "complete":
                found[result.made] = result
    return found


def read_run(folder: Path) -> Run:
    """Read a run back, or refuse a folder that is none, is damaged or misses a part."""
    info = _read_json(folder / RUN)
    if info.get("program") != "dosimeter":
        raise DataError(f"{folder / RUN}: expected a run of dosimeter, found another file of that name; name a run.")
    if info.get("format") != FORMAT:
        raise DataError(f"{folder}: expected a run of format {FORMAT}, got {info.get('format')!r}; update dosimeter.")
    if info.get("status") == "interrupted" and info.get("images") == 0:
        return Run(info, None, {})
    document = _read_json(folder / RECORDS)
    if document.get("survey"):
        return Run(info, document, {})
    try:
        tensors: dict[str, Tensor] = load_file(folder / TENSORS)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder / TENSORS}: expected tensors, but {reason(error)}; repeat the audit.") from None
    if wrong := _wrong(info, document, tensors):
        raise DataError(f"{folder}: expected a whole run, but {wrong}; repeat the audit.")
    return Run(info, document, tensors)


def read(folder: str | Path) -> Outcome | Survey:
    """The result that a folder was written from; all that is to be looked at is made of it."""
    folder = Path(folder)
    run = read_run(folder)
    if run.document is None:
        raise DataError(f"{folder}: expected a result, but the run was {run.info.get('why')}; repeat the audit.")
    try:
        if run.document.get("survey"):
            return _survey(run, folder)
        return _captured(run) if run.document.get("captured") else _result(run, folder)
    except DAMAGED as error:
        raise DataError(f"{folder}: expected a run of this version, but {reason(error)}; repeat the audit.") from None


def _result(run: Run, folder: Path) -> Result:
    assert run.document is not None
    document, panel = run.document, []
    for number, row in enumerate(document.get("panel", []), 1):
        told = {key: row[key] for key in ("attack", "role", "about", "rounds", "same_client")}
        inner = None if "refused" in row else read(folder / attack_folder(number, row["attack"]))
        assert not isinstance(inner, Captured | Survey)
        panel.append(Trial(**told, result=inner, refused=row.get("refused", "")))
    found = _judged(run, plain.read(Summary, document["scores"], "scores"))
    dosed = None if "dose" not in document else _dosed(document["dose"])
    return replace(found, panel=tuple(panel), verdict=document.get("verdict", ""), dosed=dosed)


def _dosed(told: dict[str, Any]) -> Dosed:
    """Without what is said of it, which follows from the rest."""
    found: Dosed = plain.read(Dosed, {each.name: told[each.name] for each in fields(Dosed)}, "dose")
    return found


def _captured(run: Run) -> Captured:
    assert run.document is not None
    scores = plain.read(Finding, run.document["scores"], "scores")
    judged = None if scores.judged is None else _judged(run, scores.judged)
    return Captured(**_shared(run), scores=scores, certified=run.tensors.get("certified"), judged=judged)


def _survey(run: Run, folder: Path) -> Survey:
    info, document, _ = run
    assert document is not None
    entries = tuple(plain.read(Entry, each, f"entry {at}") for at, each in enumerate(document["entries"]))
    found = {each.key: read(folder / update_folder(each.key)) for each in entries if each.attack is not None}
    return Survey(
        settings=document["settings"],
        entries=entries,
        results={key: each for key, each in found.items() if isinstance(each, Captured)},
        seconds=float(info["seconds"]),
        environment=info["environment"],
        status=document["status"],
        command=info.get("command", ""),
        made=info.get("made", ""),
    )


def _judged(run: Run, scores: Summary) -> Result:
    assert run.document is not None
    shared, tensors, form = _shared(run), run.tensors, run.tensors["images"].shape[:2]
    # Runs of before these tensors were kept have them in their records.
    told = [torch.tensor([getattr(each, name) for each in shared["records"]]) for name in ("label", "index")]
    labels, indices = (each.view(*form, *each.shape[1:]) for each in told)
    kept = [tensors["originals"], tensors.get("labels", labels), tensors.get("indices", indices)]
    victims = Victims(kept[0], kept[1], kept[2], tuple(run.document["ids"]))
    more = {name: tensors.get(name) for name in ("std", "transformed", "read_as")}
    return Result(**shared | more, scores=scores, victims=victims)


def _shared(run: Run) -> dict[str, Any]:
    info, document, tensors = run
    assert document is not None
    return {
        "settings": document["settings"],
        "threat": plain.read(ThreatModel, document["threat"], "threat"),
        "records": [ImageRecord.read_from(each, f"record {at}") for at, each in enumerate(document["records"])],
        "raw": tensors.get("raw", tensors["images"]),
        "raw_baseline": tensors.get("raw_baseline", tensors["baseline"]),
        "curve": Curve(
            tuple(tensors["curve_steps"].tolist()),
            tensors["curve"],
            {name.removeprefix(TRACE): each for name, each in tensors.items() if name.startswith(TRACE)},
        ),
        "seconds": float(info["seconds"]),
        "environment": info["environment"],
        "status": document["status"],
        "command": info.get("command", ""),
        "made": info.get("made", ""),
    }


def is_run(folder: Path) -> bool:
    """Whether a folder says that it is a run of this program."""
    try:
        return bool(_read_json(folder / RUN).get("program") == "dosimeter")
    except DataError:
        return False


def stranger(folder: Path) -> Path | None:
    """Something in the folder of a run that is none of the run's own."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        kinds = _FOLDERS if path.is_dir() and not path.is_symlink() else _FILES
        if not kinds.fullmatch(inside.as_posix()):
            return inside
    return None


def picture(image: Tensor) -> Image.Image:
    """An image (C, H, W) in [0, 1] in 8 bits: colour for three channels, otherwise the first channel in grey."""
    shown = image.detach().cpu().float() if image.shape[0] == 3 else image[:1].detach().cpu().float()
    values = torch.nan_to_num(shown).clamp(0, 1).mul(255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(values if values.shape[2] == 3 else values[:, :, 0]))


def _info(status: str, seconds: float, environment: dict[str, str], images: int) -> dict[str, Any]:
    finished = datetime.now(UTC)
    started = finished - timedelta(seconds=seconds)
    times = {"started": started.isoformat(timespec="seconds"), "finished": finished.isoformat(timespec="seconds")}
    head = {"program": "dosimeter", "format": FORMAT, "status": status, "images": images}
    return head | times | {"seconds": seconds, "environment": environment}


def _told(result: Outcome | Survey) -> dict[str, Any]:
    """What made it and how long each attack of a panel took, where there are such."""
    panel = result.panel if isinstance(result, Result) else ()
    times = [{"attack": each.attack, "seconds": each.result.seconds if each.result else 0.0} for each in panel]
    return {
        key: value for key, value in {"command": result.command, "made": result.made, "attacks": times}.items() if value
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    files.replace(path, json.dumps(plain.of(value), indent=1, allow_nan=False) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return files.read_json(path, finite=True)
    except OSError as error:
        raise DataError(f"{path}: expected a file of a run, but {reason(error)}; name the folder of a run.") from None
    except ValueError as error:
        raise DataError(f"{path}: expected JSON, but it is damaged ({reason(error)}); repeat the audit.") from None


def _wrong(info: dict[str, Any], document: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """What keeps the parts of a run from fitting together, or nothing."""
    kinds = {"status": str, "settings": dict, "threat": dict, "scores": dict, "records": list}
    for key, kind in kinds.items():
        if not isinstance(document.get(key), kind):
            return f"{RECORDS} has no {key}"
    may_lack = {"originals"} if document.get("captured") is True else set()
    for name in ("images", "baseline", "originals", "curve", "curve_steps"):
        if name not in {*tensors, *may_lack}:
            return f"{TENSORS} has no {name}"
    images, records = tensors["images"], document["records"]
    beside = [tensors[name] for name in ("baseline", "originals") if name in tensors]
    if images.ndim != 5 or any(images.shape != other.shape for other in beside):
        return "images, baseline and originals differ in shape"
    if not len(records) == info.get("images") == images.shape[0] * images.shape[1]:
        return f"{len(records)} records, {images.shape[0] * images.shape[1]} images and run.json disagree"
    if tensors["curve"].shape != (len(images), len(tensors["curve_steps"])):
        return "the curve does not fit the victims"
    return ""


def _write_images(result: Outcome, folder: Path) -> None:
    try:
        rmtree(folder, ignore_errors=True)  # of a run that goes on
        folder.mkdir(parents=True)
        judged = result.judged if isinstance(result, Captured) else result
        made = None if judged is None else judged.transformed
        kinds = {"original": result.originals, "transformed": made, "reconstruction": result.images}
        for kind, batches in kinds.items():
            for v, images in enumerate(() if batches is None else batches):
                for b, image in enumerate(images):
                    picture(image).save(folder / f"victim-{v:03d}-{b}-{kind}.png")
    except OSError as error:
        raise files.refused(folder, error) from None
