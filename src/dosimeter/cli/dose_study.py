"""`dosimeter study dose`: predicted against reached, image by image, over models, defenses and strengths of noise."""

import csv
import io
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import correlation, mean, stdev

from rich.markup import escape

from dosimeter import data, files
from dosimeter.cli.console import err, out
from dosimeter.cli.dose import public
from dosimeter.doses.compare import QUIET, Compared, compared
from dosimeter.errors import DosimeterError
from dosimeter.reports import charts
from dosimeter.task import load_task

MODELS = ("cnn", "lenet", "mlp")
DEFENSES = {
    "none": (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "precode:k=32": (0.0, 1e-2),
    "cvb": (0.0, 1e-2),
}
"""{defense: strengths of noise that are added to it}"""
ATTACKS = (
    "analytic",
    "eliminate",
    "bayes:density=gaussian,scale=SIGMA,steps=STEPS",
    "ig:coarse=auto,steps=STEPS",
)
QUESTION = "How near do attacks come to what the dose says, image by image?"
_NUMBERS = {"dimensions": int, "white": int} | dict.fromkeys(("sigma", "bits", "psnr", "here"), float)


def run(folder: Path, *, models: Sequence[str], name: str, victims: int, steps: int) -> None:
    """Measure and attack what is not kept yet in `dose.csv`, image by image, then print and draw all."""
    path = folder / "dose.csv"
    kept = _read(path)
    for model in models:
        task = load_task(model, name, seed=0)
        chosen = data.pick(task.dataset, victims, split="test", seed=0)
        prior = public(task.dataset, chosen, "test", 0)
        for defense, sigmas in DEFENSES.items():
            there = {(row.sigma, row.image) for row in kept if (row.model, row.defense) == (model, defense)}
            missing = [v for v, image in enumerate(chosen.ids) if any((sigma, image) not in there for sigma in sigmas)]
            if not missing:
                continue
            left = chosen.take(missing)
            kept = [row for row in kept if (row.model, row.defense) != (model, defense) or row.image not in left.ids]
            found = compared(
                task.model, left, name=model, defense=defense, sigmas=sigmas, attacks=ATTACKS, prior=prior, steps=steps
            )
            try:
                for done in range(victims - len(missing) + 1, victims + 1):
                    kept += islice(found, len(sigmas))  # one image at every strength
                    _write(path, kept)
                    err.print(f"{model}, {defense}: {done} of {victims} images", highlight=False)
            except DosimeterError as reason:  # such as a bottleneck that has no place in a perceptron
                err.print(escape(f"{model}, {defense}: left out. {reason}"), highlight=False)
    _show(folder, kept)


def _show(folder: Path, rows: Sequence[Compared]) -> None:
    out.print(f"{QUESTION}\n", markup=False, highlight=False)
    out.print(as_markdown(rows), markup=False, highlight=False, soft_wrap=True)
    pairs = [row for row in rows if row.reached is not None]
    if len(pairs) > 2:
        related = correlation([row.here for row in pairs], [row.reached or 0.0 for row in pairs])
        out.print(f"\nPredicted and reached PSNR correlate by {related:.2f} over {len(pairs)} pairs.", highlight=False)
    points = {
        defense: [(row.here, row.reached) for row in rows if row.defense == defense and row.reached is not None]
        for defense in dict.fromkeys(row.defense for row in rows)
    }
    charts.write_svg(
        folder / "dose-scatter.svg",
        charts.scatter(points, x="PSNR by dose, dB", y="PSNR reached, dB", keys=True),
    )
    charts.write_svg(
        folder / "dose-noise.svg", charts.lines(curves(rows), x="log10 of the noise", y="PSNR, dB", keys=True)
    )
    out.print(f"\nfigures  {folder}/dose-scatter.svg, dose-noise.svg; data  {folder}/dose.csv", highlight=False)


def curves(rows: Sequence[Compared]) -> dict[str, list[tuple[float, float]]]:
    """Mean PSNR over noise of every model without another defense, by dose and by the nearest attack on each image."""
    found: dict[str, list[tuple[float, float]]] = {}
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model and row.defense == "none" and row.sigma]
        for sigma in sorted({row.sigma for row in own}):
            here = [row for row in own if row.sigma == sigma]
            found.setdefault(f"{model}, dose", []).append((math.log10(sigma), mean(row.here for row in here)))
            reached = [row.reached for row in here if row.reached is not None]
            if reached:
                found.setdefault(f"{model}, attacks", []).append((math.log10(sigma), mean(reached)))
    return found


def as_markdown(rows: Sequence[Compared]) -> str:
    """Means over images, for the documents."""
    lines = [
        "| model | defense | noise | images | determined | bits | dose | reached | excess | correlation |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys((row.model, row.defense, row.sigma) for row in rows):
        own = [row for row in rows if (row.model, row.defense, row.sigma) == key]
        near = [row.reached for row in own if row.reached is not None]
        above = [row.excess for row in own if row.excess is not None]
        related = ""
        if len(near) == len(own) > 2 and stdev(near) > 0 and stdev(row.here for row in own) > 0:
            related = f"{correlation([row.here for row in own], near):.2f}"
        cells = [
            key[0], key[1], f"{key[2]:g}" if key[2] else "none", f"{len(own)}",
            _spread([row.white for row in own], ",.0f"),
            f"{mean(row.bits for row in own):,.0f}", f"{mean(row.here for row in own):.1f} dB",
            f"{mean(near):.1f} dB" if near else "-", f"{_spread(above, '.1f')} dB" if above else "", related,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"\nWithout noise the dose counts with a deviation of {QUIET:g}; PSNR are means of decibels.")
    return "\n".join(lines)


def _spread(values: Sequence[float], form: str) -> str:
    return format(mean(values), form) + (f" +- {stdev(values):{form}}" if len(values) > 1 else "")


def _read(path: Path) -> list[Compared]:
    if not path.is_file():
        return []
    rows = []
    for row in csv.DictReader(io.StringIO(path.read_text())):
        values: dict[str, object] = {key: _NUMBERS.get(key, str)(value) for key, value in row.items()}
        values |= {key: float(row[key]) if row[key] else None for key in ("reached", "excess")}
        rows.append(Compared(**values))  # type: ignore[arg-type]
    return rows


def _write(path: Path, rows: Sequence[Compared]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Compared._fields)
    for row in rows:
        writer.writerow("" if v is None else f"{v:.6g}" if isinstance(v, float) else v for v in row)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text.getvalue())
