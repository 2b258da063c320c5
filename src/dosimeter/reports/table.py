"""A result on a terminal: what it says on one screen, and with `explain` all that it has."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dosimeter.auditing import Captured, Outcome, Result, Survey
from dosimeter.auditing.captured.weighing import weigh_captured
from dosimeter.auditing.evidence import tally
from dosimeter.auditing.verdict import Kind, Verdict, weigh
from dosimeter.lines import Grid, fact, say, shell
from dosimeter.progress import duration
from dosimeter.reports import standing, survey
from dosimeter.reports.words import (
    brief,
    count,
    described,
    grants,
    headline,
    interruption,
    labels_said,
    listed,
    panel,
    rows,
    shares,
    short,
    shown,
    verdict,
)

ONCE = "1 update"
"""What an attacker sees of a batch and of a client at least."""
COLOURS = {Kind.LEAKS: "bold red", Kind.INCONCLUSIVE: "bold yellow", Kind.NOT_SHOWN: "bold green"}
NEXT = {
    Kind.LEAKS: "open the page; dosimeter compare says what defenses hide and cost",
    Kind.INCONCLUSIVE: "open the page, and settle it as was said",
    Kind.NOT_SHOWN: "open the page; dosimeter dose says what the updates hold",
}


def print_result(
    result: Outcome | Survey, console: Console, *, where: Path | None = None, explain: bool = False
) -> None:
    """Print the verdict, scores, rates and threat model; `where` is the report's place.

    Args:
        explain: add reasons, meanings and scores that only some papers use.
    """
    if isinstance(result, Survey):
        kind = _print_survey(result, console, explain=explain)
    elif isinstance(result, Captured):
        kind = _print_captured(result, console, explain=explain)
    else:
        kind = _print_scores(result, console, explain=explain)
    if not isinstance(result, Survey):
        fact(console, "threat model", _threat(result, explain=explain))
    fact(console, "status", f"{result.status} in {duration(result.seconds)}")
    bewares = () if isinstance(result, Survey) else (result.unmeasured, interruption(result))
    for beware in filter(None, bewares):
        say(console, beware, "bold yellow")
    if where is not None:
        fact(console, "report", str(where))
        fact(console, "next", NEXT[kind])


def print_several(results: Sequence[tuple[str, Result]], console: Console) -> None:
    """One line an audit: its verdict, the best attack on it and what that read; `results` are named."""
    table = Grid("audit", "verdict", "best attack", "images read", "SSIM", "evidence")
    for name, result in results:
        scores = result.scores
        read = f"{scores.success.hits:,} of {scores.success.of:,}"
        mean = f"{scores.nearest['ssim'].mean:.3f}"
        table.add_row(name, weigh(result).kind.value, str(result.settings["attack_name"]), read, mean, _found(result))
    table.print(console)


def _found(result: Result) -> str:
    """The evidence, and what leaks where images are not read."""
    found, evidence = weigh(result), tally(result.scores.evidence)
    other = found.kind is Kind.LEAKS and not result.scores.success.hits
    return f"{evidence}; {short(found, len(result.records)).rstrip('.')}" if other else evidence


def print_line(result: Result, console: Console) -> None:
    """A result in one line, or two."""
    scores, defense = result.scores, brief(result.settings.get("defense")) or "no defense"
    said = f"{scores.success.hits:,} of {scores.success.of:,} images read by {result.settings['attack_name']}"
    say(console, f"{defense}: {weigh(result).kind.value}; {said}, in {duration(result.seconds)}", hang=4)


def _print_captured(result: Captured, console: Console, *, explain: bool) -> Kind:
    """What is certain, what shadows say and, where the truth was given, the scores."""
    s, found = result.settings, weigh_captured(result)
    _head(result, f"a captured update of {count(s['batch'], 'image')}, defense {s['defense']}", found, console)
    told = f"{standing.said(result)} {'' if result.judged else standing.UNSEEN}".strip()
    say(console, f"{told}\n")
    _rows(("certain", "how much", "why"), standing.facts(result), console)
    if shares_ := standing.rates(result):
        _rows(("shadows", "with its 95 % interval", "of what"), shares_, console, last=explain)
    if result.judged is not None:
        say(console, f"Beside the truth: {verdict(result.judged)}\n")
        _scores(result.judged, console, explain=explain)
        _rates(result.judged, console, explain=explain)
    return found.kind


def _print_survey(result: Survey, console: Console, *, explain: bool) -> Kind:
    """The verdict, clients by rounds, and what was tried on whom."""
    found = result.verdict
    about = f"{count(len(result.entries), 'update')} of {count(len(result.clients), 'client')}"
    _head(result, about, found, console)
    say(console, f"{survey.worst(result)}\n")
    head, rows_ = survey.grid(result)
    _rows(head, rows_, console)
    tried = [row[:4] for row in survey.tried(result)]
    if explain:
        _rows(("client", "update", "tried", "not tried, or doubtful"), tried, console)
    elif doubtful := sum(bool(row[3]) for row in tried):
        say(console, f"Of {count(doubtful, 'update')} something was not tried or is doubtful; --explain says what.\n")
    if found.doubt and found.kind is Kind.LEAKS:
        say(console, f"If nothing leaked, that would be no evidence: {found.doubt}.", "bold yellow")
    return found.kind


def _print_scores(result: Result, console: Console, *, explain: bool) -> Kind:
    """The verdict, the panel where there is one, scores and rates."""
    s, found = result.settings, weigh(result)
    about = f"{count(s['victims'], 'update')} of {count(s['batch'], 'image')}, defense {s['defense']}"
    about += "" if result.threat.server == "honest" else f", server {result.threat.server}"
    _head(result, about, found, console)
    whole = [result.verdict] if explain and result.verdict else [] if result.verdict else [verdict(result)]
    said = [*whole, labels_said(result), *found.details]
    if told := " ".join(filter(None, said)):
        say(console, told)
    if found.settles:
        say(console, "To settle it:")
        say(console, [f"  {line}" for line in shell(found.settles, console.width - 2)])
    say(console, "")
    if result.panel:
        _panel(result, console, explain=explain)
    _scores(result, console, explain=explain)
    _rates(result, console, explain=explain)
    return found.kind


def _head(result: Outcome | Survey, about: str, found: Verdict, console: Console) -> None:
    say(console, headline(result), "bold")
    say(console, about, "dim")
    say(console, "")
    say(console, found.sentence, COLOURS[found.kind])


def _panel(result: Result, console: Console, *, explain: bool) -> None:
    """All attacks, the strongest first; why others were refused only where that is asked."""
    tried = panel(result)
    head = ("attack", *(("kind",) if explain else ()), "images read", "SSIM", "best", "time")
    done = [one for one in tried if one.time]
    cells = [(one.name, *((one.role,) if explain else ()), one.read, one.ssim, one.worst, one.time) for one in done]
    _rows(head, cells, console)
    refused = [one for one in tried if not one.time]
    if explain:
        for one in refused:
            say(console, f"{one.name} was {one.read}", hang=4)
    elif refused:
        say(console, f"Refused, since they do not fit: {listed([one.name for one in refused])} (--explain says why).")
    if refused:
        say(console, "")


def _scores(result: Result, console: Console, *, explain: bool) -> None:
    """All scores, or those that stand beside pictures, and MSE."""
    wanted = {*shown(result).values(), described(result)["mse"]["label"]}
    found = [row for row in rows(result) if explain or row.name in wanted]
    head = ["score", "mean ± std", "median", "best", "without the update"]
    cells = [[row.name, f"{row.mean} ± {row.std}", row.median, row.worst, row.baseline] for row in found]
    if result.scores.transformed:
        head = ["score", "as trained on", *head[2:], "originals"]
        cells = [[*cell, row.originals] for cell, row in zip(cells, found, strict=True)]
    _rows(head, cells, console)


def _rates(result: Result, console: Console, *, explain: bool) -> None:
    _rows(("rate", "with its 95 % interval", "of what"), shares(result), console, last=explain)


def _threat(result: Outcome, *, explain: bool) -> str:
    """What was granted and what was not, or all of it."""
    lines = grants(result.threat)
    if explain:  # all
        return "; ".join(f"{grant.what.lower()} {grant.value}" for grant in lines)
    usual = ("granted", "not granted")
    parts = [(value, [line.what.lower() for line in lines if line.value == value]) for value in usual]
    said = [f"{value}: {', '.join(names)}" for value, names in parts if names]
    return "; ".join(said + [f"{line.what.lower()} {line.value}" for line in lines if line.value not in (*usual, ONCE)])


def _rows(head: Sequence[str], rows_: Sequence[Sequence[str]], console: Console, *, last: bool = True) -> None:
    """A table with a blank line beneath it, with or without its last column, of what things mean."""
    table = Grid(*(head if last else head[:-1]))
    for row in rows_:
        table.add_row(*(row if last else row[:-1]))
    table.print(console)
    say(console, "")
