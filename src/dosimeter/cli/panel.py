"""A panel of attacks on the command line: each is kept when it is done, and one that was stopped goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dosimeter import lines, store
from dosimeter.attacks import Steps
from dosimeter.auditing import Audit, Result, Trial, audit_panel, conclude
from dosimeter.auditing.records import INTERRUPTED
from dosimeter.cli.console import command, err


def run_panel(
    audit: Audit,
    place: Path,
    *,
    steps: Steps,
    made: str,
    beside: Callable[[Result], Result] | None = None,
    explain: bool = False,
    quiet: bool = False,
) -> Result | None:
    """All attacks of the defense's panel, written below the strongest one's; None where none had anything to keep.

    Args:
        beside: what is measured beside the attacks once all are done.
        explain: say why attacks were refused.
        quiet: say nothing of each attack when it is done.
    """
    kept, trials = store.finished(place, Result), list[Trial]()

    def whole(status: str) -> Result:
        result = conclude(trials)
        result = replace(result, command=command(), made=made, status=result.status if status == "" else status)
        result = beside(result) if beside and not status else result
        store.write_run(result, place)
        return result

    try:
        for trial in audit_panel(audit, steps=steps, kept=kept):
            trials.append(trial)
            if trial.result is None:
                if not quiet:
                    lines.say(err, f"{trial.attack}: refused{f'. {trial.refused}' if explain else ''}", hang=4)
                continue
            known, found = trial.result.made in kept, replace(trial.result, command=command())
            trials[-1] = replace(trial, result=found)
            if not known:
                store.write_run(found, place / store.attack_folder(len(trials), trial.attack))
            if not (place / store.RUN).is_file():  # from now on it is a run, though an unfinished one
                store.write_interrupted(place, "stopped before all its attacks were done", made=made)
            if not quiet:
                lines.say(err, _said(trial.attack, found, known), hang=4)
    except KeyboardInterrupt:
        if any(each.result for each in trials):
            return whole(INTERRUPTED)
        store.write_interrupted(place, "interrupted before anything was attacked", made=made)
        return None
    except Exception:
        if any(each.result for each in trials):  # the attacks before the one that failed are kept
            whole(INTERRUPTED)
        raise
    return whole("")


def _said(name: str, result: Result, known: bool) -> str:
    """One line of an attack among others."""
    read, mean = result.scores.success.text, result.scores.nearest["ssim"].mean
    before = "kept from before, " if known else ""
    return f"{name}: {before}{read} read, SSIM {mean:.3f}. {result.unmeasured}".strip()
