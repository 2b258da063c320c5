"""`dosimeter study`: the papers' questions as sweeps of audits."""

from dataclasses import replace
from pathlib import Path

from dosimeter import spec, studies
from dosimeter.attacks import AUTO
from dosimeter.cli import console, dose_study, options
from dosimeter.cli.console import command, drawing, err, out
from dosimeter.cli.parts import going_on, live, place, tell_failed
from dosimeter.errors import SettingError, unknown
from dosimeter.reports import charts, kept

DENSITIES, DOSE = "densities", "dose"

TABLES = {
    "ppp": "ppp/table2",
    "cvb": "cvb/table4",
    "fedkl": "fedkl/table6",
    "pruned": "bayes/table2",
    "soteria": "bayes/fig2",
    "balls": "bayes/fig7",
    DENSITIES: "bayes/fig4",
    "ablation": "ig/table1",
    "width": "ig/fig3",
    "pooling": "ig/fig14",
}
"""Studies of which a paper's own table or figure has more."""


def run(asked: options.Study) -> None:
    """Run the rows that are not kept yet, and print and draw all."""
    own = (DENSITIES, DOSE)  # which are no rows of audits
    if asked.name not in (*studies.BY_NAME, *own):
        raise SettingError(unknown("study", asked.name, [*studies.BY_NAME, *own]))
    folder = place(asked, f"study-{asked.name}", apart=("name", "only"), store=asked.name not in own)
    if asked.name == DOSE:
        if asked.metric or asked.threshold is not None or asked.steps == AUTO:
            raise SettingError(f"The study {DOSE!r} has scores of its own; leave --metric, --threshold, --steps auto.")
        models, steps = asked.only or dose_study.MODELS, asked.steps or 300
        dose_study.run(folder, models=models, name=asked.data or "cifar10", victims=asked.victims or 16, steps=steps)
        return
    if asked.name == DENSITIES:
        if asked.only or asked.data or asked.metric or asked.threshold is not None:
            raise SettingError(
                f"The study {DENSITIES!r} has a model, task and score of its own; leave --only, --data, --metric and "
                "--threshold."
            )
        if asked.steps == AUTO:
            raise SettingError(f"The study {DENSITIES!r} compares searches of one length; give --steps a number.")
        _densities(folder, asked.victims or 1000, asked.steps or 400)
        _tell_table(asked.name)
        return
    study = studies.BY_NAME[asked.name]
    rows = tuple(
        row.on(data=asked.data, victims=asked.victims, steps=asked.steps)
        for row in study.rows
        if not asked.only or row.model in asked.only
    )
    if not rows:
        raise SettingError(unknown("model of this study", (asked.only or [""])[0], [row.model for row in study.rows]))
    threshold = study.threshold if asked.threshold is None else asked.threshold
    study = replace(study, rows=rows, threshold=threshold, metrics=tuple(asked.metric or ()))
    with going_on(folder), live() as tell:
        every = studies.run(study, folder, on=asked.on, told=tell)
    found = [(row, outcome) for row, outcome, _ in every if outcome]
    if found:
        _show(study, found, folder, pictures=[[_name(row, o), entry.digest] for row, o, entry in every if o])
    _tell_table(asked.name)
    tell_failed([entry for _, outcome, entry in every if outcome is None], folder)


def _tell_table(name: str) -> None:
    """Which table or figure of a paper has more of this."""
    if name in TABLES:
        note = f"note    the paper's own table, with its numbers beside: dosimeter reproduce {TABLES[name]}"
        err.print(note, highlight=False, soft_wrap=True)


def _show(
    study: studies.Study, found: list[tuple[studies.Row, studies.Outcome]], folder: Path, pictures: list[list[str]]
) -> None:
    question = f"{study.question} An image is read from an SSIM of {study.threshold:g}.\n"
    console.markdown(question)
    console.markdown(studies.as_markdown(study, found))
    if study.summary:
        console.markdown(f"\n{study.summary(found)}")
    bars = named_bars(found)
    with drawing(folder):
        if bars:
            charts.write_svg(folder / "study.svg", charts.bars(bars, x="mean SSIM", threshold=study.threshold))
        table = {"head": study.head, "rows": [study.cells(row, outcome) for row, outcome in found]}
        more = {"threshold": study.threshold, "bars": bars, "pictures": pictures} | table
        where = kept.write(folder, "study", about=study.question, command=command(), **more)
    console.page(where)
    console.hint(f"open the page; dosimeter store list {folder} has every trial")


def _name(row: studies.Row, outcome: studies.Outcome) -> str:
    """What stands above a row's picture."""
    defense, trained = "" if row.defense == "none" else row.defense, row.trained(outcome.rounds)
    words = [row.model, defense, outcome.chosen, f"after {trained}" if trained else ""]
    return ", ".join(spec.shown(each) for each in words if each)


def named_bars(found: list[tuple[studies.Row, studies.Outcome]]) -> dict[str, float]:
    """The rows' mean SSIM by what tells them apart; nothing where defense and attack do not."""
    attacks = _told_apart([row.attack for row, _ in found])
    bars = {}
    for (row, outcome), attack in zip(found, attacks, strict=True):
        bars[", ".join(filter(None, [row.defense, attack, row.trained(outcome.rounds)]))] = outcome.ssim
    return bars if len(bars) == len(found) else {}


def _told_apart(attacks: list[str]) -> list[str]:
    """Names with those of their settings alone that not all of the name have."""
    said = [(name, settings.split(",")) for name, _, settings in (attack.partition(":") for attack in attacks)]
    common = {name: set.intersection(*(set(own) for other, own in said if other == name)) for name, _ in said}
    return [" ".join([name, *(one for one in own if one not in common[name])]) for name, own in said]


def _densities(folder: Path, points: int, steps: int) -> None:
    found = []
    for row in studies.compare_densities(points, steps, folder=folder):
        found.append(row)
        err.print(f"{len(found)}/4 {row.prior} prior, {row.density} density: {row.mean:.4f}", highlight=False)
    out.print(
        "Is the attack with the right prior and density the nearest (Bayes, Fig. 4)?\n", markup=False, highlight=False
    )
    console.markdown(studies.distances_as_markdown(found))
    console.hint("dosimeter study bayes, the same question of images")
