"""What the page of each kind shows of several results: a sentence first, the figure that shows it, and the rest."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from dosimeter import store
from dosimeter.auditing import Result
from dosimeter.auditing.evidence import tally
from dosimeter.auditing.verdict import Kind
from dosimeter.reports import charts, dosed, figures, gallery, pictures, sections
from dosimeter.reports.charts import Point
from dosimeter.reports.markup import Html, tag
from dosimeter.reports.sections import Part
from dosimeter.reports.words import count, listed

Entry = Mapping[str, Any]
"""Plain values: a round's figures, an audit's on the way, or all that a page shows."""

PRIVATE = {1 - ssim: f"above: private, {name}" for ssim, name in figures.PAPERS.items()}
"""The heights of papers' thresholds where 1 - SSIM goes up."""


MANY = 4
"""Pictures in a card from which they stand in several lines."""


class Drawn(NamedTuple):
    """A page: what it says first, in how loud a tone, the figure that shows it, and its parts."""

    said: str
    lead: str
    parts: list[Part]
    proof: Html | None = None
    wide: bool = False  # the figure stands below what is said, not beside it
    tone: str = "calm"
    word: str = ""


def _training(found: Entry) -> Drawn:
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


def _leakage(found: Entry) -> Drawn:
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
        *_pictures(found),
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


def _comparison(found: Entry) -> Drawn:
    """Accuracy to the right, what stays hidden upwards; the best defenses are at the top right."""
    points: dict[str, list[Point]] = {}
    for name, accuracy, ssim in found["points"]:  # files in different folders may share their name
        points.setdefault(name, []).append((accuracy, 1 - ssim))
    cards = {", ".join(names): f"picture-{at}" for at, (*names, _) in enumerate(found.get("pictures", ()))}
    links = {name: cards[bare] for name in points if (bare := name.removesuffix(" (cannot tell)")) in cards}
    drawn = charts.scatter(points, x="accuracy", y="1 - SSIM", marks=PRIVATE, named=True, links=links)
    words = "Best is at the top right. Accuracy is that of the lowest validation loss or else of the last round; SSIM "
    words += "is the strongest attack's mean. Dashed: from where papers call a defense private. Choose a point to see "
    words += "its pictures."
    head, rows = found["head"], found["rows"]
    at = {name: place for place, name in enumerate(head)}
    kinds = {row[0]: row[at["verdict"]] for row in rows} if "verdict" in at else {}
    said, lead = _judged(kinds, {row[0]: row[at["accuracy"]] for row in rows} if "accuracy" in at else {})
    parts = [
        Part("costs", "Costs", sections.table(head, rows, "sorts")),
        Part("verdicts", "Verdicts", sections.table(("defense", "evidence", "what was tried"), found["verdicts"])),
        *_pictures(found),
    ]
    tone = "loud" if Kind.LEAKS in kinds.values() else "warm" if Kind.INCONCLUSIVE in kinds.values() else "calm"
    return Drawn(said, lead, parts, sections.drawing(drawn, "Accuracy against privacy.", words), tone=tone)


def _judged(kinds: Mapping[str, str], accuracies: Mapping[str, str]) -> tuple[str, str]:
    """Which defenses hold, leak or cannot be told."""
    by = {kind: [name for name, own in kinds.items() if own == kind] for kind in Kind}
    holds, leaks, open_ = by[Kind.NOT_SHOWN], by[Kind.LEAKS], by[Kind.INCONCLUSIVE]
    said = f"{len(leaks)} of {count(len(kinds), 'defense')} leak" + (
        f"; no leak was shown of {listed(holds)}." if holds else "; none was shown to hold."
    )
    told = [f"It leaks with {listed(leaks)}."] if leaks else []
    told += [f"Of {listed(open_)} the audit cannot tell."] if open_ else []
    told += [f"Accuracy: {', '.join(f'{name} {value}' for name, value in accuracies.items())}."] if accuracies else []
    return said, " ".join(told)


def _study(found: Entry) -> Drawn:
    """The rows as a table, and as bars where their names tell them apart."""
    parts = [Part("rows", "Rows", sections.table(found["head"], found["rows"], "sorts")), *_pictures(found)]
    bars, threshold = found["bars"], found["threshold"]
    if not bars:
        return Drawn(found["about"], "", parts)
    drawn = sections.drawing(
        charts.bars(bars, x="mean SSIM", threshold=threshold), "Mean SSIM.", f"The dashed line is {threshold:g}."
    )
    above = [name for name, value in bars.items() if value >= threshold]
    lead = f"{len(above)} of {count(len(bars), 'row')} have a mean SSIM of {threshold:g} or more."
    return Drawn(found["about"], lead, parts, drawn, tone="loud" if above else "calm")


def _reproduction(found: Entry) -> Drawn:
    """Measured beside published, row by row, and how many of the numbers agree."""
    beside: Sequence[Entry] = found["beside"]
    compared = [each for each in beside if each["measured"] is not None and each["published"] is not None]
    agree = [each for each in compared if not each["apart"]]
    what = found["quantity"]
    said = (
        f"{len(agree)} of {count(len(compared), 'number')} agree with the paper's."
        if compared
        else "Nothing to compare."
    )
    if not found["marked"]:
        said = "It runs; at this scale its numbers say nothing."
    pairs = [each for each in compared if each["quantity"] == what]
    drawn = None
    if pairs:
        rows = [(each["row"], each["measured"], each["published"]) for each in pairs]
        words = "A dot is what was measured here, a ring what the paper prints; bars are one deviation each way. "
        drawn = sections.drawing(charts.pairs(rows, x=found["label"]), "Measured beside published.", words)
    notes = [f"Cut at this scale: {listed(found['cut'])}."] if found["cut"] else []
    notes += [found["differs"]] if found["differs"] and found["marked"] else []
    parts = [
        Part("rows", "Rows", sections.table(found["head"], found["rows"], "sorts")),
        Part("notes", "What differs", tag("div", *(tag("p", note) for note in notes))) if notes else None,
        *_pictures(found),
    ]
    return Drawn(said, found["item"], [part for part in parts if part], drawn)


def _sweep(found: Entry) -> Drawn:
    """The grid in numbers, as bars and in pictures, the most exposed image of one trial a cell."""
    table, bars, show = sections.table(found["head"], found["rows"], "sorts"), found["bars"], found["show"]
    kinds: Mapping[str, int] = found.get("kinds", {})
    said, trials = found["about"], sum(kinds.values())
    if trials:
        said = f"{kinds.get(Kind.LEAKS, 0):,} of {count(trials, 'trial')} leak"
        said += f", {n:,} cannot tell." if (n := kinds.get(Kind.INCONCLUSIVE, 0)) else "."
    tone = "loud" if kinds.get(Kind.LEAKS) else "warm" if kinds.get(Kind.INCONCLUSIVE) else "calm"
    if not bars:
        return Drawn(said, "", _pictures(found), table, wide=True, tone=tone)
    name = show.upper() if show in ("ssim", "psnr", "mse", "lpips") else show
    most, least = (pick(bars.items(), key=lambda each: each[1]) for pick in (max, min))
    lead = f"{name} is highest for {most[0]} ({most[1]:.3f}) and lowest for {least[0]} ({least[1]:.3f})."
    threshold = 0.5 if show == "ssim" else None
    drawn = charts.bars(bars, x=f"mean {name}", threshold=threshold) if max(bars.values()) <= 1 else None
    return Drawn(said, lead, [Part("table", name, table), *_pictures(found)], drawn, tone=tone)


def _pictures(found: Entry) -> list[Part]:
    """The most exposed image of each trial that is named."""
    cards = []
    for at, (*names, digest) in enumerate(found.get("pictures", ())):
        result = store.read(found["folder"] / "trials" / Path(digest).name)
        if isinstance(result, Result):
            cards.append(
                gallery.most_exposed(result, ", ".join(names), id_=f"picture-{at}", redact=found.get("redact", False))
            )
    return [Part("pictures", "Pictures", tag("div", *cards, class_="cards"))] if cards else []


def _tune(found: Entry) -> Drawn:
    """The score of every setting and the best so far over image-steps; which settings matter; both attacks."""
    history = found["history"]
    series = {"best so far": [(spent, best) for spent, _, best in history]}
    series["a setting that was not stopped"] = [(spent, score) for spent, score, _ in history]
    name = {"psnr": "PSNR in dB", "ssim": "SSIM"}[found["by"]]
    drawn = charts.scatter(series, x="image-steps", y=name)
    figure = sections.drawing(drawn, "Scores on shadows.", charts.legend(list(series)))
    parts = [
        Part("attacks", "Attacks", sections.table(found["head"], found["rows"])),
        Part("settings", "Settings", sections.table(("setting", "chosen", "matters"), found["settings"], "sorts")),
    ]
    if found["matters"]:
        words = "Share of the score's spread"
        drawn = charts.side_by_side(charts.bars(found["matters"], x=words))
        parts.append(Part("matters", "Which settings matter", drawn))
    said = (
        f"The best setting comes to a {name.partition(' ')[0]} of {history[-1][2]:.2f} on shadows." if history else ""
    )
    return Drawn(said or "No setting was tried to its end.", found["about"], parts, figure)


def _dose(found: Entry) -> Drawn:
    """Figures of every image and tensor, and pictures of what is determined of each and what is not."""
    names = {"share": "Share of dimensions determined.", "reader": "PSNR of a linear reader in dB."}
    drawn = [
        sections.drawing(charts.lines({key: points}, x="noise, power of 10", y=key), names[key])
        for key, points in found.get("curves", {}).items()
        if points
    ]
    parts = [Part("noise", "Over noise", charts.side_by_side(*drawn))] if drawn else []
    kept = dosed.read(found["folder"])
    by_tensor = dosed.by_tensor(kept["images"]) if kept else []
    if by_tensor:
        parts.append(Part("tensors", "By tensor", charts.side_by_side(*by_tensor)))
    elif found["tensors"]:
        table = sections.table(found["tensor_head"], found["tensors"], "sorts")
        parts.append(Part("tensors", "Tensors of the most exposed image", table))
    parts += _dose_pictures(found)
    parts.append(Part("figures", "Figures", sections.table(found["head"], found["rows"], "sorts")))
    if kept is None:
        return Drawn("What updates determine under noise.", found["about"], parts, drawn[0] if drawn else None)
    said = f"An update determines {100 * kept['mean']['share']:.0f} % of an image's dimensions."
    bars = dosed.by_image(kept["images"])
    worst = max(kept["images"], key=lambda each: (each["determined"], each["bits"] or 0.0))
    first = _dose_strip(found, f"{worst['id']}/{worst['place']}", most=3)
    proof = tag("div", tag("figure", first, data_name="The most exposed image") if first else None, bars)
    return Drawn(said, kept["sentence"], parts, proof)


def _dose_pictures(found: Entry) -> list[Part]:
    """What is determined of each image and what is not."""
    strips = {name: _dose_strip(found, name) for name in found["pictures"]}
    cards = [
        tag("figure", tag("h3", name), strip, class_="card", data_name=name) for name, strip in strips.items() if strip
    ]
    return [Part("pictures", "Pictures", tag("div", *cards, class_="cards"))] if cards else []


def _dose_strip(found: Entry, name: str, most: int | None = None) -> Html | None:
    """The pictures of one image, or the first of them."""
    shown = list(found["pictures"].get(name, {}).items())[:most]
    if not shown or found.get("redact"):
        return None
    cells = [
        tag(
            "span",
            pictures.embed_file(found["folder"] / "pictures" / Path(file).name, f"{name}: {what}"),
            tag("small", what),
        )
        for what, file in shown
    ]
    return tag("button", *cells, class_="strip many" if len(cells) > MANY else "strip", type="button")


KINDS: dict[str, tuple[str, str, Callable[[Entry], Drawn]]] = {
    "training": ("training.html", "Federated training", _training),
    "leakage": ("training.html", "Leakage while training", _leakage),
    "compare": ("compare.html", "Utility and privacy", _comparison),
    "study": ("study.html", "Study", _study),
    "reproduction": ("study.html", "Reproduction", _reproduction),
    "sweep": ("sweep.html", "Sweep", _sweep),
    "tune": ("tune.html", "Tuning", _tune),
    "dose": ("dose.html", "Dose", _dose),
}
"""The file, title and content of each."""
