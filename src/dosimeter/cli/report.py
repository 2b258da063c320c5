"""`dosimeter report` and `dosimeter score`: look at a stored run again, without attacking anything."""

from dataclasses import replace
from pathlib import Path

from dosimeter import files, store
from dosimeter.auditing import Captured, Outcome, Result, Scoring, Survey, conclude, rescore
from dosimeter.cli import options
from dosimeter.cli.console import command, hint, out, page
from dosimeter.cli.parts import load_lpips, load_metrics, print_json
from dosimeter.drafts import reserve
from dosimeter.errors import SettingError, looking
from dosimeter.reports import kept, pdf, print_result, print_several, write_comparison, write_pages
from dosimeter.reports.several import apart


def run(asked: options.Report) -> None:
    """Draw the page and say where it is."""
    if asked.out is not None and asked.out.suffix not in (".html", ".pdf"):
        raise SettingError(f"Expected a file that ends in .html or .pdf (--out), got {str(asked.out)!r}.")
    if asked.format is options.Format.pdf:
        pdf.browser()  # which refuses a machine that has none before anything is drawn
    with looking(asked.runs[0] if len(asked.runs) == 1 else "One of the runs"):
        where = _drawn(asked)
    if asked.format is options.Format.pdf:
        where = pdf.print_page(where, (asked.out or where).with_suffix(".pdf"))
    if len(asked.runs) > 1:
        found = [(name, store.read(folder)) for name, folder in zip(apart(asked.runs), asked.runs, strict=True)]
        print_several([(name, each) for name, each in found if isinstance(each, Result)], out)
        out.print()
    page(where)
    hint("open the page" + ("; every audit has one of its own, which it links" if len(asked.runs) > 1 else ""))


def _drawn(asked: options.Report) -> Path:
    """Where the page is; a file of its own if one was named."""
    only = asked.runs[0]
    if len(asked.runs) > 1:
        place = asked.out or Path("comparison.html")
        return write_comparison(asked.runs, place.with_suffix(".html"), redact=asked.redact)
    drawn = (
        kept.draw(only, redact=asked.redact)
        if kept.is_kept(only)
        else write_pages(store.read(only), only, redact=asked.redact)
    )
    if asked.out is None or asked.format is options.Format.pdf:
        return drawn
    files.replace(asked.out, drawn.read_bytes())
    return asked.out


def run_score(asked: options.Score) -> None:
    """Score, write a run folder of its own and print what it says."""
    found = store.read(asked.run)
    if isinstance(found, Survey):
        raise SettingError(
            f"{asked.run}: expected the run of one audit, got a federation's; score one of its updates/."
        )
    before = found.judged if isinstance(found, Captured) else found
    if before is None:
        raise SettingError(f"{asked.run}: expected a run with the truth to score beside, got an update without.")
    scores = before.scores
    scoring = Scoring(
        threshold=scores.success.threshold if asked.threshold is None else asked.threshold,
        lpips=load_lpips(asked.lpips) if asked.lpips else None,
        delta=scores.risk.delta if asked.delta is None and scores.risk else asked.delta,
        metrics=load_metrics(asked.metric),
    )
    with looking(asked.run):
        result = replace(_scored(found, before, scoring), command="\n".join(filter(None, (found.command, command()))))
    place = asked.run.resolve()
    chosen, numbered = asked.out or place.with_name(f"{place.name}-scored"), asked.out is None
    with reserve(chosen, overwrite=asked.overwrite, numbered=numbered) as (draft, folder):
        store.write_run(result, draft)
    where = write_pages(result, folder)
    if asked.json:
        print_json(result.document())
    else:
        print_result(result, out, where=where, explain=asked.explain)


def _scored(found: Outcome, before: Result, scoring: Scoring) -> Outcome:
    """With every attack of a panel, of which another may be the strongest now."""
    if isinstance(found, Captured):
        judged = rescore(before, scoring)
        told = {"settings": judged.settings, "records": judged.records, "judged": judged}
        return replace(found, **told, scores=replace(found.scores, judged=judged.scores))  # type: ignore[arg-type]
    if not found.panel:
        return rescore(found, scoring)
    trials = [replace(each, result=each.result and rescore(each.result, scoring)) for each in found.panel]
    return replace(conclude(trials), status=found.status)
