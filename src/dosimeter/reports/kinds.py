"""What the page of each kind shows of several results: a sentence first, the figure that shows it, and the rest."""

from collections.abc import Callable, Mapping, Sequence

from dosimeter.auditing.verdict import Kind
from dosimeter.reports import charts, dosed, figures, rounds, sections
from dosimeter.reports.charts import Point
from dosimeter.reports.drawn import Drawn, Entry, pictures_of
from dosimeter.reports.markup import tag
from dosimeter.reports.sections import Part
from dosimeter.reports.words import count, listed

PRIVATE = {1 - ssim: f"above: private, {name}" for ssim, name in figures.PAPERS.items()}
"""The heights of papers' thresholds where 1 - SSIM goes up."""


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
        *pictures_of(found),
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
    parts = [Part("rows", "Rows", sections.table(found["head"], found["rows"], "sorts")), *pictures_of(found)]
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
        *pictures_of(found),
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
        return Drawn(said, "", pictures_of(found), table, wide=True, tone=tone)
    name = show.upper() if show in ("ssim", "psnr", "mse", "lpips") else show
    most, least = (pick(bars.items(), key=lambda each: each[1]) for pick in (max, min))
    lead = f"{name} is highest for {most[0]} ({most[1]:.3f}) and lowest for {least[0]} ({least[1]:.3f})."
    threshold = 0.5 if show == "ssim" else None
    drawn = charts.bars(bars, x=f"mean {name}", threshold=threshold) if max(bars.values()) <= 1 else None
    return Drawn(said, lead, [Part("table", name, table), *pictures_of(found)], drawn, tone=tone)


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


KINDS: dict[str, tuple[str, str, Callable[[Entry], Drawn]]] = {
    "training": ("training.html", "Federated training", rounds.training),
    "leakage": ("training.html", "Leakage while training", rounds.leakage),
    "compare": ("compare.html", "Utility and privacy", _comparison),
    "study": ("study.html", "Study", _study),
    "reproduction": ("study.html", "Reproduction", _reproduction),
    "sweep": ("sweep.html", "Sweep", _sweep),
    "tune": ("tune.html", "Tuning", _tune),
    "dose": ("dose.html", "Dose", dosed.page),
}
"""The file, title and content of each."""
