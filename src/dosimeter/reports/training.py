"""Pages of trainings: accuracy over rounds, and what they leak on their way."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dosimeter.reports import charts, sections
from dosimeter.reports.charts import Point
from dosimeter.reports.markup import Html

Entry = Mapping[str, Any]
"""A round's figures, or an audit's on the way, as plain values."""


def write_training(path: str | Path, found: Mapping[int, Sequence[Entry]], *, about: str) -> None:
    """Accuracy and loss over rounds, a line a seed."""

    def curve(key: str) -> dict[str, list[Point]]:
        return {
            f"seed {seed}": [(entry["round"], entry[key]) for entry in history if entry.get(key) is not None]
            for seed, history in found.items()
        }

    accuracy = charts.lines(curve("accuracy"), x="round", y="accuracy", top=1.0)
    loss = charts.lines(curve("train_loss"), x="round", y="loss")
    drawn = [
        sections.drawing(accuracy, "Accuracy on the test split.", charts.legend(list(curve("accuracy")))),
        sections.drawing(loss, "Loss in training."),
        *_privacy(curve("epsilon"), [entry for history in found.values() for entry in history]),
    ]
    charts.write_charts(path, "Federated training", about, [("Rounds", charts.side_by_side(*drawn))])


def _privacy(spent: Mapping[str, Sequence[Point]], entries: Sequence[Entry]) -> list[Html]:
    """What DP-SGD has cost, where it ran."""
    known = [entry for entry in entries if "epsilon" in entry]
    if not known:
        return []
    name = f"Epsilon at delta {known[0]['delta']:g}, of the client that spent most."
    words = "Its accountant takes shuffled batches for Poisson samples. Without noise epsilon is infinite. "
    return [sections.drawing(charts.lines(spent, x="round", y="epsilon"), name, words)]


def write_leakage(path: str | Path, points: Sequence[Entry], *, about: str) -> None:
    """SSIM, PSNR, rate and accuracy over rounds (Bayes, Fig. 2), and SSIM by the norm of the update (IG, Sec. 5.1)."""
    names = list(dict.fromkeys(point["server"] for point in points))

    def over(value: Callable[[Entry], float], servers: Sequence[str] = names) -> dict[str, list[Point]]:
        return {name: [(p["round"], value(p)) for p in points if p["server"] == name] for name in servers}

    def by_norm(point: Entry) -> list[Point]:
        return [(image["norm"], image["ssim"]) for image in point["images"]]

    blind = over(lambda p: p["blind_ssim"], names[:1])
    floor = {"without the update": next(iter(blind.values()))}
    norms = {f"round {p['round']}, {p['server']}": by_norm(p) for p in points}
    rate, accuracy = over(lambda p: p["success"]["rate"]), over(lambda p: p["accuracy"], names[:1])
    drawn = [
        ("SSIM.", charts.lines(over(lambda p: p["ssim"]) | floor, x="round", y="SSIM", top=1.0), [*names, *floor]),
        ("PSNR.", charts.lines(over(lambda p: p["psnr"]), x="round", y="PSNR in dB"), names),
        ("Share of images read.", charts.lines(rate, x="round", y="read", top=1.0), names),
        ("Accuracy.", charts.lines(accuracy, x="round", y="accuracy", top=1.0), names[:1]),
        ("SSIM by the norm of the update.", charts.scatter(norms, x="norm", y="SSIM"), list(norms)),
    ]
    figures = [sections.drawing(figure, name, charts.legend(series)) for name, figure, series in drawn]
    spent = sorted({(p["round"], p["epsilon"]) for p in points if p.get("epsilon") is not None})
    figures += _privacy({"epsilon": spent}, points)
    charts.write_charts(path, "Leakage while training", about, [("Over rounds", charts.side_by_side(*figures))])
