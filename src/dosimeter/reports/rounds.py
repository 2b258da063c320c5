"""Pages over rounds: a federated training, and what it leaks on its way."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from dosimeter.auditing.evidence import tally
from dosimeter.reports import charts, sections
from dosimeter.reports.charts import Point
from dosimeter.reports.drawn import Drawn, Entry, pictures_of
from dosimeter.reports.markup import Html
from dosimeter.reports.sections import Part
from dosimeter.reports.words import count


def training(found: Entry) -> Drawn:
    """Accuracy and loss over rounds, a line a seed."""
    histories: Mapping[str, Sequence[Entry]] = found["histories"]

    def curve(key: str) -> dict[str, list[Point]]:
        return {
            f"seed {seed}": [(entry["round"], entry[key]) for entry in history if entry.get(key) is not None]
            for seed, history in histories.items()
        }

    accuracy = curve("accuracy")
    last = [points[-1] for points in accuracy.values() if points]
    first = sections.drawing(
        charts.lines(accuracy, x="round", y="accuracy", top=1.0),
        "Accuracy on the test split.",
        charts.legend(list(accuracy)),
    )
    drawn = [
        sections.drawing(charts.lines(curve("train_loss"), x="round", y="loss"), "Loss in training."),
        *_privacy(curve("epsilon"), [entry for history in histories.values() for entry in history]),
    ]
    said = "Nothing was trained." if not last else _trained(last)
    return Drawn(said, found["about"], [Part("rounds", "Rounds", charts.side_by_side(*drawn))], first)


def _trained(last: Sequence[Point]) -> str:
    accuracy, rounds = mean(p[1] for p in last), max(int(p[0]) for p in last)
    return f"{100 * accuracy:.1f} % accuracy after {count(rounds, 'round')}."


def _privacy(spent: Mapping[str, Sequence[Point]], entries: Sequence[Entry]) -> list[Html]:
    """What DP-SGD has cost, where it ran."""
    known = [entry for entry in entries if "epsilon" in entry]
    if not known:
        return []
    name = f"Epsilon at delta {known[0]['delta']:g}, of the client that spent most."
    words = "Its accountant takes shuffled batches for Poisson samples. Without noise epsilon is infinite. "
    return [sections.drawing(charts.lines(spent, x="round", y="epsilon"), name, words)]


def leakage(found: Entry) -> Drawn:
    """SSIM, PSNR, rate and accuracy over rounds (Bayes, Fig. 2), and SSIM by the norm of the update (IG, Sec. 5.1)."""
    points: Sequence[Entry] = found["points"]
    names = list(dict.fromkeys(point["server"] for point in points))

    def over(value: Callable[[Entry], float], servers: Sequence[str] = names) -> dict[str, list[Point]]:
        return {name: [(p["round"], value(p)) for p in points if p["server"] == name] for name in servers}

    def by_norm(point: Entry) -> list[Point]:
        return [(image["norm"], image["ssim"]) for image in point["images"]]

    blind = over(lambda p: p["blind_ssim"], names[:1])
    floor = {charts.WITHOUT: next(iter(blind.values()))}
    norms = {f"round {p['round']}, {p['server']}": by_norm(p) for p in points}
    rate, accuracy = over(lambda p: p["success"]["rate"]), over(lambda p: p["accuracy"], names[:1])
    drawn = [
        ("SSIM.", charts.lines(over(lambda p: p["ssim"]) | floor, x="round", y="SSIM", top=1.0), [*names, *floor]),
        ("PSNR.", charts.lines(over(lambda p: p["psnr"]), x="round", y="PSNR in dB"), names),
        ("Accuracy.", charts.lines(accuracy, x="round", y="accuracy", top=1.0), names[:1]),
        ("SSIM by the norm of the update.", charts.scatter(norms, x="norm", y="SSIM"), list(norms)),
    ]
    if all("dose" in p for p in points):
        share = over(lambda p: p["dose"]["share"])
        drawn.append(("Dose: dimensions determined.", charts.lines(share, x="round", y="share", top=1.0), names))
    shown = [sections.drawing(figure, name, charts.legend(series)) for name, figure, series in drawn]
    spent = sorted({(p["round"], p["epsilon"]) for p in points if p.get("epsilon") is not None})
    shown += _privacy({"epsilon": spent}, points)
    rows = [[str(p["round"]), p["server"], p["verdict"], tally(p["evidence"])] for p in points]
    read = charts.lines(rate, x="round", y="images read", top=1.0)
    parts = [
        Part("rounds", "Over rounds", charts.side_by_side(*shown)),
        Part("verdicts", "Verdicts", sections.table(("round", "server", "verdict", "evidence"), rows)),
        *pictures_of(found),
    ]
    proof = sections.drawing(read, "Share of images read.", charts.legend(names))
    loud = any(p["success"]["rate"] > 0 for p in points)
    lead = " ".join(f"Round {p['round']}, {p['server']}: {p['verdict']}." for p in points[:: max(1, len(points) - 1)])
    return Drawn(_while_training(points), lead, parts, proof, tone="loud" if loud else "calm")


def _while_training(points: Sequence[Entry]) -> str:
    first, last = (pick(points, key=lambda p: p["round"]) for pick in (min, max))
    told = [
        f"{p['success']['hits']:,} of {p['success']['of']:,} images are read in round {p['round']}"
        for p in (first, last)
    ]
    return (
        f"{told[0]}." if first["round"] == last["round"] else f"{told[0]}, {told[1].replace(' images are read', '')}."
    )
