"""What rows show beside scores: lines over an attack's steps, accuracies by key, distributions behind batch norm."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dosimeter import defenses, files
from dosimeter.auditing import Result
from dosimeter.federated.client import client_secrets, set_secrets
from dosimeter.papers.densities import distances
from dosimeter.papers.item import Case
from dosimeter.papers.measured import Measured, Point
from dosimeter.papers.quantities import Value
from dosimeter.sweeps import Course, Store
from dosimeter.types import TRACED

IMAGES, BINS = 512, 60
"""Images behind a distribution, and its bins."""
AT = (1, 2, 5, 10, 20, 50, 100, 150, 200)
"""Steps at which distances are taken."""


def traced(result: Result) -> dict[str, dict[str, list[Point]]]:
    """Norm and cosine of every tensor over the steps, means over victims, and two entries of the first victim.

    Norms are relative to those of the observed tensors.
    """
    steps, lines = result.curve.steps, dict[str, dict[str, list[Point]]]()
    for name, each in result.curve.traces.items():
        facts = dict(zip(TRACED, each.unbind(-1), strict=True))
        share = (facts["norm"] / facts["observed norm"].clamp_min(1e-24)).nanmean(0)
        lines.setdefault("norm", {})[name] = _points(steps, share)
        lines.setdefault("cosine", {})[name] = _points(steps, facts["cosine"].nanmean(0))
        for which in ("first", "second"):
            apart = facts[which][0], facts[f"observed {which}"][0]
            lines.setdefault("entries", {})[f"{name}, {which}"] = _points(steps, apart[0])
            lines.setdefault("entries sent", {})[f"{name}, {which}"] = _points(steps, apart[1])
    return lines


def _points(steps: Sequence[int], values: Tensor) -> list[Point]:
    return [(float(step), float(value)) for step, value in zip(steps, values.tolist(), strict=True)]


def accuracy_of(case: Case, found: Mapping[str, Any]) -> float:
    """A training's, under the key that the row is of."""
    if not case.whose:
        return float(found["accuracy"])
    return float(found["random_key"] if case.whose == "random" else found["accuracies"][int(case.whose)])


def of_lock(case: Case, found: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float]]:
    """How far an accuracy is above that of a random key, and the share of parameters that the lock has."""
    assert case.course is not None
    gaps = [accuracy_of(case, each) - float(each["random_key"]) for each in found if "random_key" in each]
    federation = case.course.prepare().federation
    made = federation.template
    mine = federation.defense.private(made)
    sizes = {name: p.numel() for name, p in made.named_parameters()}
    share = sum(sizes[name] for name in mine) / sum(sizes.values())
    return {"share": (share,)} | ({"gap": (sum(gaps) / len(gaps),)} if gaps else {})


def behind(row: Measured, course: Course, store: Store) -> Measured:
    """What leaves the first batch norm, with its scale and shift, on test images of a trained model (FedKL, Fig. 4)."""
    trained = course.prepare()
    federation, found = trained.federation, trained.read(store.place(trained.digest))
    model = copy.deepcopy(federation.template)
    model.load_state_dict({**found.state, **found.private.get(0, {})})
    model = defenses.for_use(model).eval()
    set_secrets(model, client_secrets(federation, federation.target(model), 0))
    seen: list[Tensor] = []
    place = next(each for each in model.modules() if isinstance(each, nn.BatchNorm2d))
    locked = next((each for each in model.modules() if hasattr(each, "locked")), place)
    handle = locked.register_forward_hook(lambda _module, _given, out: seen.append(out.detach()))
    images = federation.images("test", np.arange(min(IMAGES, federation.dataset.count("test"))))
    with handle, torch.inference_mode():
        model(images)
    shapes = {"behind batch norm": seen[0].flatten(), "pixels": images.flatten()}
    values = shapes["behind batch norm"].double()
    centred = (values - values.mean()) / values.std()
    facts = {"deviation": Value(float(values.std())), "skewness": Value(float((centred**3).mean()))}
    lines = {name: _histogram(each) for name, each in shapes.items()}
    return row._replace(values={**row.values, **facts}, series={"distribution": lines})


def _histogram(values: Tensor) -> list[Point]:
    """(centre of a bin, density), of standardised numbers."""
    values = (values - values.mean()) / values.std().clamp_min(1e-12)
    counts = torch.histc(values, BINS, -4, 4)
    width = 8 / BINS
    density = counts / (counts.sum().clamp_min(1) * width)
    return [(-4 + width * (at + 0.5), float(each)) for at, each in enumerate(density)]


def distances_of(case: Case, folder: str | Path) -> Measured:
    """A row of points of a Gaussian, which is kept beside the trials."""
    if kept := kept_distances(case, folder):
        return kept
    assert case.pair is not None
    steps = [step for step in AT if step < case.curve] + [case.curve]
    found = distances(*case.pair, points=case.points, steps=steps)
    path = _place(case, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace_json(path, {"steps": [list(each) for each in found]})
    kept = kept_distances(case, folder)
    assert kept is not None
    return kept


def kept_distances(case: Case, folder: str | Path) -> Measured | None:
    """The same, where it was run."""
    if case.pair is None or not _place(case, folder).is_file():
        return None
    found = json.loads(_place(case, folder).read_text())["steps"]
    _, mean, error = found[-1]
    line = {", ".join(case.name): [(step, away) for step, away, _ in found]}
    return Measured(case.name, {"distance": Value(mean, error)}, series={"distance": line})


def _place(case: Case, folder: str | Path) -> Path:
    assert case.pair is not None
    return Path(folder) / "distances" / f"{'-'.join(case.pair).lower()}-{case.points}-{case.curve}.json"
