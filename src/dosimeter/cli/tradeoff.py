"""`dosimeter compare` and `dosimeter calibrate`: what defenses hide, and what they cost."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dosimeter import spec
from dosimeter.attacks import AUTO, presets
from dosimeter.auditing import Audit, estimate, part
from dosimeter.auditing.evidence import tally
from dosimeter.auditing.verdict import Kind
from dosimeter.cli import options
from dosimeter.cli.config import write_config
from dosimeter.cli.console import err, hint, out
from dosimeter.cli.parts import finish, going_on, live, place, planned, print_json, taking, tell_failed, trial_of
from dosimeter.cli.train import about
from dosimeter.doses import Wanted, strength_enough, wanted_of
from dosimeter.doses.priors import WHITE
from dosimeter.errors import DosimeterError, SettingError
from dosimeter.federated.accounting import privacy_words
from dosimeter.federated.training import estimate_training
from dosimeter.lines import Grid, say
from dosimeter.progress import duration
from dosimeter.sweeps import Course, Entry, Status, Store, Trial, run_all
from dosimeter.sweeps.tradeoff import Balance, Calibration, Comparison, Tried, calibrate, strength_of, strongest

PLANNED = 4
"""Victims by whose dose a calibration begins."""
HEAD = ("defense", "accuracy", "verdict", "SSIM", "read", "best attack", "weights", "sent", "a round")


def run_compare(asked: options.Compare) -> None:
    """Train with each defense, attack it, and write and print both sides."""
    folder = place(asked, "compare", apart=("defense",), store=True)
    comparison = Comparison(trial=_trial(asked), seeds=asked.seeds, trained=asked.trained)
    trials = {words: comparison.trials(words) for words in dict.fromkeys(asked.defense)}
    for each in trials.values():
        _ = [trial.prepare() for trial in each]  # which refuses what cannot work before anything is written
    if asked.dry_run:
        _plan(comparison, trials)
        return
    write_config(folder)
    found, failed, pictures = list[Balance](), list[Entry](), list[list[str]]()
    with going_on(folder), live() as tell, Store(folder) as store:
        every = [trial for each in trials.values() for trial in each]
        left = iter(run_all(every, store, on=asked.on, retry_failed=True, told=tell))
        for words, each in trials.items():
            entries = [next(left) for _ in each]
            wrong = [entry for entry in entries if entry.status is Status.FAILED]
            failed += wrong
            if not wrong:
                found.append(comparison.balance(words, entries, store))
                pictures.append([spec.shown(words), entries[0].digest])
    for balance in found if asked.explain else ():
        say(err, f"{balance.defense}: {balance.verdict}", hang=4)
    if found:
        _show(asked, folder, found, pictures)
    tell_failed(failed, folder)


def _show(asked: options.Compare, folder: Path, found: list[Balance], pictures: list[list[str]]) -> None:
    head, cells = _table(found)
    table = Grid(*head)
    for row in cells:
        table.add_row(*row)
    said = f"{about(asked, 'of each row')}, {asked.victims} victims, steps {asked.steps}, {asked.seeds} seeds from "
    said += f"{asked.seed}, {'trained' if asked.trained else 'untrained'}"
    page = {
        "threshold": asked.threshold,
        "points": [(_shown(each), each.accuracy, each.ssim) for each in found],
        "head": head,
        "rows": [[spec.shown(row[0]), *row[1:]] for row in cells],
        "verdicts": [[spec.shown(each.defense), tally(each.evidence), each.verdict] for each in found],
        "pictures": pictures,
    }
    document = {"command": "compare", "balances": [balance._asdict() for balance in found]}
    then = "dosimeter calibrate finds the weakest that holds"
    finish(asked, folder, document, table, "compare", about=said, then=then, **page)


def run_calibrate(asked: options.Calibrate) -> None:
    """Try strengths of a defense until the weakest that holds is found, then train with it."""
    strength_of(part("defense", asked.defense), asked.vary)  # which refuses a defense without one
    wanted = None if asked.plan == "none" else wanted_of(asked.plan)
    folder = place(asked, "calibrate", apart=("allow", "plan"), store=True)
    comparison = Comparison(trial=_trial(asked))
    trials = comparison.trials(asked.defense)
    _ = [trial.prepare() for trial in trials]
    if asked.dry_run:
        _plan(comparison, [asked.defense])
        return
    write_config(folder)
    with going_on(folder), Store(folder) as store:

        def run(trials: Sequence[Trial | Course]) -> list[Entry]:
            entries = run_all(trials, store, retry_failed=True)
            tell_failed([each for each in entries if each.status is Status.FAILED], folder)
            return entries

        def attacked(words: str) -> dict[str, Any]:
            return strongest(run([comparison.audit(words)])[0], store)

        start = None if wanted is None else _begin(asked, comparison.audit(asked.defense).prepare().audit, wanted)
        found = calibrate(attacked, asked.defense, allowed=asked.allow, vary=asked.vary, start=start, told=_tell)
        if found.defense is None:
            raise SettingError(_never(found, asked.allow))
        words = found.defense
        balance = comparison.balance(words, run(comparison.trials(words)), store)
    if asked.json:
        tried = [each._asdict() for each in found.tried]
        print_json({"command": "calibrate", "weakest": words, "tried": tried, "balance": balance._asdict()})
        return
    hit = balance.success
    say(
        out,
        f"The weakest that stops all attacks is {words}: {hit['hits']} of {hit['of']} images are read by the best of "
        f"them ({balance.attack}; at most {hit['high']:.1%} with 95 % confidence), SSIM {balance.ssim:.3f}. Trained "
        f"with it the model has an accuracy of {balance.accuracy:.2%}.",
    )
    hint(f"dosimeter audit --defense {shlex.quote(words)} --attack auto --victims 80, for surer figures")


def _begin(asked: options.Calibrate, audit: Audit, wanted: Wanted) -> float | None:
    """The strength by the dose of the first victims; None, with the reason, where it does not plan this defense."""
    strength = strength_of(audit.defense, asked.vary)
    assert audit.victims is not None
    try:
        start = strength_enough(
            audit.model, audit.victims.take(slice(PLANNED)), make=partial(strength.of, audit.defense),
            strengths=strength.grid, share=wanted.share, server=audit.server, loss=audit.loss, step=audit.step,
            prior=WHITE, seed=audit.seed, updates=audit.updates,
        )  # fmt: skip
    except DosimeterError as reason:
        say(err, f"No plan: {reason}")
        return None
    said = f"By the dose {strength.setting}={start:.3g} leaves less than {wanted.share:.1%} of an image determined."
    say(err, f"{said} Attacks are to confirm it.")
    return start


def _trial(asked: options.Compare | options.Calibrate) -> Trial:
    return trial_of(asked, defense="none", attack=AUTO, decoys=0)


def _plan(comparison: Comparison, defenses: Iterable[str]) -> None:
    """What would be trained and attacked with each defense; a panel has more attacks than the one that is timed."""
    rows = {}
    for words in defenses:
        audit, course = comparison.audit(words).prepare(), comparison.training(words)
        plain = replace(audit.audit, attack=presets.inverting_gradients(steps=audit.steps or AUTO))
        training = duration(estimate_training(course.prepare().federation) * comparison.seeds)
        attack = taking(estimate(plain))
        rows[words] = (
            f"{comparison.seeds} training(s), about {training}; the plain attack {attack}, all others beside it"
        )
    planned(rows)


def _tell(setting: str, tried: Tried) -> None:
    hit = tried.success
    if tried.stopped:
        verb = "stops all attacks"
    elif hit["hits"] and not hit["doubt"]:
        verb = f"is read by {hit['attack']}"
    else:
        verb = f"cannot be told, for {hit['doubt']}"
    told = f"{hit['hits']} of {hit['of']} images, SSIM {hit['ssim']:.3f}"
    say(err, f"{setting}={tried.value:g} {verb}: {told} ({tally(hit['evidence'])})", hang=4)


def _never(found: Calibration, allowed: float) -> str:
    """Why no strength was found that stops all attacks."""
    _, setting, grid = found.strength
    last = max(found.tried, key=lambda tried: tried.value if grid[-1] > grid[0] else -tried.value)
    if last.success["rate"] <= allowed:
        why = f"it cannot be told whether attacks are stopped, for {last.success['doubt']}"
        return f"Up to {setting}={grid[-1]:g} {why}."
    return (
        f"Up to {setting}={grid[-1]:g} some attack reads more than {allowed:.0%} of the images; "
        "join the defense with another one (|) or allow more (--allow)."
    )


def _shown(balance: Balance) -> str:
    """The defense, with a word where what stays hidden of it is no evidence."""
    return spec.shown(balance.defense) + (" (cannot tell)" if balance.kind == Kind.INCONCLUSIVE else "")


def _table(found: list[Balance]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Head and rows; what DP-SGD costs in epsilon only where it is among them."""
    rows = [_cells(balance) for balance in found]
    spent = [privacy_words(balance.privacy or {}) for balance in found]
    if not any(spent):
        return HEAD, rows
    return (*HEAD, "epsilon"), [[*row, each] for row, each in zip(rows, spent, strict=True)]


def _cells(balance: Balance) -> list[str]:
    spread = f" ± {100 * balance.accuracy_spread:.2f}" if balance.accuracy_spread else ""
    return [
        balance.defense,
        f"{100 * balance.accuracy:.2f}{spread} %",
        balance.kind,
        f"{balance.ssim:.3f}" + ("" if balance.originals is None else f" ({balance.originals:.3f} originals)"),
        f"{balance.success['hits']} of {balance.success['of']}",
        balance.attack,
        f"+{balance.added:.1%}",
        f"{balance.bytes / 1024:,.0f} KiB",
        f"{balance.seconds:.1f} s",
    ]
