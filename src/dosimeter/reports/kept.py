"""Pages over several results: trainings, what they leak on their way, comparisons and studies.

What a page shows is kept beside it as plain values, so that it can be drawn again at any later time.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dosimeter import files, store
from dosimeter.auditing import Result
from dosimeter.auditing.evidence import tally
from dosimeter.errors import DataError
from dosimeter.reports import charts, gallery, pictures, sections
from dosimeter.reports.charts import Point
from dosimeter.reports.markup import Html, tag

FILE = "page.json"

Entry = Mapping[str, Any]
"""Plain values: a round's figures, an audit's on the way, or all that a page shows."""


def write(folder: Path, kind: str, *, about: str, command: str, **shown: Any) -> Path:
    """Keep what a page of a kind shows and draw it; says where it is."""
    head = {"program": "dosimeter", "kind": kind, "about": about, "command": command}
    files.replace_json(folder / FILE, head | shown)
    return draw(folder)


def is_kept(folder: Path) -> bool:
    """Whether a page of several results lies there, which `draw` can make anew."""
    return (folder / FILE).is_file()


def draw(folder: Path) -> Path:
    """The page of what was kept."""
    try:
        found = json.loads((folder / FILE).read_text())
        name, title, parts = KINDS[found["kind"]]
        drawn = parts(found | {"folder": folder})
        if found["command"]:
            drawn.append(("Run it again", sections.again(found["command"])))
        charts.write_charts(folder / name, title, found["about"], drawn)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"{folder / FILE}: expected what a page shows, but {files.reason(error)}.") from None
    return folder / name


def _training(found: Entry) -> list[tuple[str, Html]]:
    """Accuracy and loss over rounds, a line a seed."""
    histories: Mapping[str, Sequence[Entry]] = found["histories"]

    def curve(key: str) -> dict[str, list[Point]]:
        return {
            f"seed {seed}": [(entry["round"], entry[key]) for entry in history if entry.get(key) is not None]
            for seed, history in histories.items()
        }

    accuracy = charts.lines(curve("accuracy"), x="round", y="accuracy", top=1.0)
    loss = charts.lines(curve("train_loss"), x="round", y="loss")
    drawn = [
        sections.drawing(accuracy, "Accuracy on the test split.", charts.legend(list(curve("accuracy")))),
        sections.drawing(loss, "Loss in training."),
        *_privacy(curve("epsilon"), [entry for history in histories.values() for entry in history]),
    ]
    return [("Rounds", charts.side_by_side(*drawn))]


def _privacy(spent: Mapping[str, Sequence[Point]], entries: Sequence[Entry]) -> list[Html]:
    """What DP-SGD has cost, where it ran."""
    known = [entry for entry in entries if "epsilon" in entry]
    if not known:
        return []
    name = f"Epsilon at delta {known[0]['delta']:g}, of the client that spent most."
    words = "Its accountant takes shuffled batches for Poisson samples. Without noise epsilon is infinite. "
    return [sections.drawing(charts.lines(spent, x="round", y="epsilon"), name, words)]


def _leakage(found: Entry) -> list[tuple[str, Html]]:
    """SSIM, PSNR, rate and accuracy over rounds (Bayes, Fig. 2), and SSIM by the norm of the update (IG, Sec. 5.1)."""
    points: Sequence[Entry] = found["points"]
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
    if all("dose" in p for p in points):
        share = over(lambda p: p["dose"]["share"])
        drawn.append(("Dose: dimensions determined.", charts.lines(share, x="round", y="share", top=1.0), names))
    figures = [sections.drawing(figure, name, charts.legend(series)) for name, figure, series in drawn]
    spent = sorted({(p["round"], p["epsilon"]) for p in points if p.get("epsilon") is not None})
    figures += _privacy({"epsilon": spent}, points)
    rows = [[str(p["round"]), p["server"], p["verdict"], tally(p["evidence"])] for p in points]
    verdicts = sections.table(("round", "server", "verdict", "evidence"), rows)
    return [("Over rounds", charts.side_by_side(*figures)), ("Verdicts", verdicts), *_pictures(found)]


def _comparison(found: Entry) -> list[tuple[str, Html]]:
    """Accuracy to the right, what stays hidden upwards; the best defenses are at the top right."""
    points: dict[str, list[Point]] = {}
    for name, accuracy, ssim in found["points"]:  # files in different folders may share their name
        points.setdefault(name, []).append((accuracy, 1 - ssim))
    drawn = charts.scatter(points, x="accuracy", y="1 - SSIM", threshold=1 - found["threshold"])
    words = "Accuracy is that of the lowest validation loss or else of the last round. Above the dashed line the "
    words += "strongest attack's mean SSIM is below the threshold. "
    figure = sections.drawing(drawn, "Accuracy against 1 - SSIM.", words, charts.legend(list(points)))
    return [
        ("The trade-off", charts.side_by_side(figure)),
        ("Costs", sections.table(found["head"], found["rows"])),
        ("Verdicts", sections.table(("defense", "evidence", "what was tried"), found["verdicts"])),
        *_pictures(found),
    ]


def _study(found: Entry) -> list[tuple[str, Html]]:
    """The rows as a table, and as bars where their names tell them apart."""
    parts = [("Rows", sections.table(found["head"], found["rows"]))]
    if found["bars"]:
        drawn = charts.bars(found["bars"], x="mean SSIM", threshold=found["threshold"])
        parts.append(("Mean SSIM", charts.side_by_side(drawn)))
    return [*parts, *_pictures(found)]


def _sweep(found: Entry) -> list[tuple[str, Html]]:
    """The grid in numbers, as bars and in pictures, the most exposed image of one trial a cell."""
    parts = [("Table", sections.table(found["head"], found["rows"]))]
    if found["bars"]:
        parts.append((found["show"], charts.side_by_side(charts.bars(found["bars"], x=f"mean {found['show']}"))))
    return [*parts, *_pictures(found)]


def _pictures(found: Entry) -> list[tuple[str, Html]]:
    """The most exposed image of each trial that is named."""
    cards = []
    for *names, digest in found.get("pictures", ()):
        result = store.read(found["folder"] / "trials" / Path(digest).name)
        if isinstance(result, Result):
            cards.append(tag("div", tag("h3", ", ".join(names)), gallery.most_exposed(result)))
    return [("Pictures", tag("div", *cards, class_="highlights"))] if cards else []


def _tune(found: Entry) -> list[tuple[str, Html]]:
    """The score of every setting and the best so far over image-steps; which settings matter; both attacks."""
    history = found["history"]
    series = {"best so far": [(spent, best) for spent, _, best in history]}
    series["a setting that was not stopped"] = [(spent, score) for spent, score, _ in history]
    name = {"psnr": "PSNR in dB", "ssim": "SSIM"}[found["by"]]
    drawn = charts.scatter(series, x="image-steps", y=name)
    figure = sections.drawing(drawn, "Scores on shadows.", charts.legend(list(series)))
    parts = [("History", charts.side_by_side(figure)), ("Attacks", sections.table(found["head"], found["rows"]))]
    parts.append(("Settings", sections.table(("setting", "chosen", "matters"), found["settings"])))
    if found["matters"]:
        words = "Share of the score's spread"
        parts.append(("Which settings matter", charts.side_by_side(charts.bars(found["matters"], x=words))))
    return parts


def _dose(found: Entry) -> list[tuple[str, Html]]:
    """Figures of every image and tensor, and pictures of what is determined of each and what is not."""
    parts = [("Figures", sections.table(found["head"], found["rows"]))]
    names = {"share": "Share of dimensions determined.", "reader": "PSNR of a linear reader in dB."}
    drawn = [
        sections.drawing(charts.lines({key: points}, x="noise, power of 10", y=key), names[key])
        for key, points in found.get("curves", {}).items()
        if points
    ]
    if drawn:
        parts.append(("Over noise", charts.side_by_side(*drawn)))
    if found["tensors"]:
        parts.append(("Tensors of the most exposed image", sections.table(found["tensor_head"], found["tensors"])))
    cards = []
    for name, shown in found["pictures"].items():
        drawn = [
            tag(
                "figure",
                pictures.embed_file(found["folder"] / "pictures" / Path(file).name, what),
                tag("figcaption", what),
            )
            for what, file in shown.items()
        ]
        cards.append(tag("div", tag("h3", name), tag("div", *drawn, class_="figures")))
    return [*parts, *([("Pictures", tag("div", *cards))] if cards else [])]


KINDS: dict[str, tuple[str, str, Callable[[Entry], list[tuple[str, Html]]]]] = {
    "training": ("training.html", "Federated training", _training),
    "leakage": ("training.html", "Leakage while training", _leakage),
    "compare": ("compare.html", "Utility and privacy", _comparison),
    "study": ("study.html", "Study", _study),
    "sweep": ("sweep.html", "Sweep", _sweep),
    "tune": ("tune.html", "Tuning", _tune),
    "dose": ("dose.html", "Dose", _dose),
}
"""The file, title and sections of each."""
