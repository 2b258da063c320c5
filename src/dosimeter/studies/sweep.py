"""A study: audits that differ in one thing, run in turn, each kept as soon as it is done."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter import defenses, spec
from dosimeter.attacks import presets
from dosimeter.auditing import audit
from dosimeter.errors import OutputError
from dosimeter.task import load_task


@dataclass(frozen=True, kw_only=True)
class Row:
    """One audit. `published` is what the paper prints, in its own words; None where it prints nothing."""

    model: str
    data: str = "cifar10"
    attack: str = "ig"
    defense: str = "none"
    victims: int = 4
    batch: int = 1
    steps: int | None = 200  # None for an attack that takes none
    split: str = "train"
    size: int | None = None
    seed: int = 0
    published: str | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """Rows with a question that they answer together."""

    name: str
    question: str
    rows: tuple[Row, ...]


class Outcome(NamedTuple):
    """What came of a row: means over its images, and the same without the update."""

    psnr: float
    ssim: float
    blind_psnr: float
    blind_ssim: float
    read: str
    seconds: float


def run(study: Study, folder: Path) -> Iterator[tuple[Row, Outcome, bool]]:
    """Every row with its outcome, in turn, and whether it was there already from a run with the same settings.

    The file `study.json` is replaced after every row, so that a run that was stopped goes on where it was.
    """
    path = folder / "study.json"
    kept = _read(path)
    for row in study.rows:
        key = _key(row)
        there = key in kept
        if not there:
            kept[key] = _audit(row)._asdict()
            write(path, {"study": study.name, "question": study.question, "rows": list(map(_entry, kept.items()))})
        yield row, Outcome(**kept[key]), there


def as_markdown(found: list[tuple[Row, Outcome]]) -> str:
    """The table that stands in the documents."""
    several = len({(row.attack, row.defense) for row, _ in found}) > 1
    heads = (
        "model",
        *(("attack", "defense") if several else ()),
        "data",
        "steps",
        "PSNR",
        "without the update",
        "SSIM",
    )
    heads = (*heads, "images read", "published")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row, o in found:
        data, steps = f"{row.victims} of {row.data}", row.steps or "-"
        data += f", {row.batch} an update" if row.batch > 1 else ""
        how = f"`{row.attack}` | `{row.defense}` | " if several else ""
        lines.append(
            f"| `{row.model}` | {how}{data} | {steps} | {o.psnr:.2f} | {o.blind_psnr:.2f} | {o.ssim:.3f} | {o.read} "
            f"| {row.published or '-'} |"
        )
    return "\n".join(lines)


def _audit(row: Row) -> Outcome:
    attack = spec.make("attack", row.attack, presets.BY_NAME, steps=row.steps)
    defense = spec.make("defense", row.defense, defenses.BY_NAME)
    task = load_task(row.model, row.data, row.victims, seed=row.seed, batch=row.batch, split=row.split, size=row.size)
    result = audit(task.model, task.victims, attack=attack, defense=defense, seed=row.seed, names=task.names)
    scores, blind = result.scores["scores"], result.scores["baseline"]
    return Outcome(
        scores["psnr"]["mean"],
        scores["ssim"]["mean"],
        blind["psnr"]["mean"],
        blind["ssim"]["mean"],
        "{hits} of {of}".format(**result.scores["success"]),
        round(result.seconds, 1),
    )


def _entry(item: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"row": json.loads(item[0]), "outcome": item[1]}


def _key(row: Row) -> str:
    return json.dumps(asdict(row), sort_keys=True)


def write(path: Path, value: dict[str, Any]) -> None:
    """Replace the file in one go, so that nobody ever finds half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(value, indent=1) + "\n")
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror}; choose another folder with --out.") from error


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Outcomes by row, of a study that was begun before."""
    if not path.is_file():
        return {}
    try:
        rows = json.loads(path.read_text())["rows"]
        kept = {_key(Row(**entry["row"])): dict(entry["outcome"]) for entry in rows}
        return {key: Outcome(**outcome)._asdict() for key, outcome in kept.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path} is no study of this program ({error}); delete it or give another --out.") from error
