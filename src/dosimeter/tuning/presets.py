"""What a tuning came to, as a file that `tuned:NAME` names; and the untuned and the tuned attack on victims."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from dosimeter import files
from dosimeter.attacks.presets import tuned
from dosimeter.attacks.presets.tuned import FORMAT, PREFIX, Tuned
from dosimeter.errors import SettingError
from dosimeter.metrics import Rate
from dosimeter.sweeps import Store, sweep
from dosimeter.tuning.ground import Tried
from dosimeter.tuning.setting import Tuning
from dosimeter.tuning.tune import Found


def preset_of(name: str, asked: Tuning, found: Found) -> Tuned:
    """The best setting with its evidence."""
    scores = {name: _scores(each.tried) for name, each in (("untuned", found.untuned), ("tuned", found.best))}
    settings = {
        key: float(f"{each:.6g}") if isinstance(each, float) else each for key, each in found.best.settings.items()
    }
    search = {
        "space": asked.space.name, "sampler": asked.sampler, "by": asked.by, "prune": asked.prune,
        "tried": len(found.outcomes), "stopped early": sum(each.tried.left for each in found.outcomes),
        "image steps": found.cost, "seconds": round(found.seconds, 1),
    }  # fmt: skip
    task = {key: value for key, value in asked.trial.words.items() if key not in ("attack", "steps", "victims")}
    task = {"model": asked.trial.model, "data": asked.trial.data, "defense": asked.trial.defense, **task}
    return Tuned(
        format=FORMAT, name=name, attack=found.best.words, untuned=found.untuned.words, settings=settings,
        task=task, search=search, scores=scores, shadows=list(found.shadows), images=found.images,
    )  # fmt: skip


def _scores(tried: Tried) -> dict[str, Any]:
    return {"psnr": round(tried.psnr, 4), "ssim": round(tried.ssim, 4), "read": tried.read, "of": tried.of}


def check_name(name: str, *, overwrite: bool, folder: Path) -> Path:
    """Where a preset of that name goes, refused before any work where another tuning's is there."""
    if not re.fullmatch(r"[\w.=+-]{1,100}", name) or name.startswith("."):
        raise SettingError(f"Expected a name of letters, digits and .=+-_ (--name), at most 100, got {name[:120]!r}.")
    place, mine = tuned.place_of(f"{name}"), folder / f"{name}{tuned.ENDING}"
    if place.exists() and not overwrite and not (mine.exists() and mine.read_bytes() == place.read_bytes()):
        raise SettingError(f"{str(place)!r} is there already, of another tuning; choose another --name or --overwrite.")
    files.check_writable(place.parent, instead="$DOSIMETER_TUNED")
    return place


def write(preset: Tuned, *places: Path) -> None:
    """As TOML: plain values first, then a table of each kind of evidence."""
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        files.replace(place, _toml(asdict(preset)))


def _toml(values: Mapping[str, Any], above: str = "") -> str:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{_key(key)} = {json.dumps(value)}" for key, value in values.items() if key not in tables]
    for key, value in tables.items():
        name = f"{above}{_key(key)}"
        flat = not value or any(not isinstance(each, dict) for each in value.values())
        lines += [*(["", f"[{name}]"] if flat else []), _toml(value, f"{name}.").rstrip("\n")]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)


class Mean(NamedTuple):
    """Of a score over images, with half the width of its 95 % interval; None of one image."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: list[float]) -> "Mean":
        return cls(fmean(values), 1.96 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.3g}" if self.half is None else f"{self.mean:.3f} ± {self.half:.3f}"


class OnVictims(NamedTuple):
    """What an attack reads of victims, who had no part in choosing its settings."""

    attack: str
    psnr: Mean
    ssim: Mean
    read: Rate
    verdict: str


def on_victims(asked: Tuning, preset: Path, folder: Path) -> dict[str, OnVictims]:
    """The untuned and the tuned attack on the same victims, kept as trials of a sweep."""
    trial = replace(asked.trial, steps=None)
    trials = {
        "untuned": replace(trial, attack=asked.words({})),
        "tuned": replace(trial, attack=f"{PREFIX}{preset}"),
    }
    rows = sweep(list(trials.values()), store=folder).rows
    found = {}
    with Store(folder, create=False) as store:
        for name, each in trials.items():
            row = next(row for row in rows if row["attack"] == each.attack)
            if row["status"] != "done":
                raise SettingError(f"The {name} attack failed on victims: {row.get('why', row['status'])}")
            records = store.records(row["digest"])
            psnr, ssim = (Mean.of([record[key] for record in records]) for key in ("psnr", "ssim"))
            found[name] = OnVictims(each.attack, psnr, ssim, Rate(row["read"], row["of"]), row["verdict"])
    return found
