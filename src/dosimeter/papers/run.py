"""Items as sweeps: what is kept costs nothing, and items share what they have in common."""

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter.auditing import Result
from dosimeter.auditing.evidence import tally
from dosimeter.auditing.verdict import weigh
from dosimeter.errors import DataError
from dosimeter.metrics import Rate
from dosimeter.papers.item import QUANTITIES, Case, Item, Scale, Value
from dosimeter.sweeps import Course, Entry, Status, Store, Trial, run_all
from dosimeter.sweeps.places import HERE
from dosimeter.sweeps.run import Told
from dosimeter.sweeps.trial import forget

NOT_RUN = "it was not run at this scale"

SHADOWS = 8
"""Images of the attacker's own on which settings are chosen."""


class Measured(NamedTuple):
    """A row as it was run, in the paper's units."""

    name: tuple[str, ...]
    values: Mapping[str, Value]
    read: Rate | None = None  # images, by the paper's own attack
    strongest: Value | None = None  # SSIM of the strongest attack
    by: str = ""  # which that is
    read_by: Rate | None = None  # images that it reads
    verdict: str = ""
    evidence: str = ""
    why_not: str = ""  # it was not run
    digest: str = ""  # of the paper's attack in the store


def reproduce(
    item: Item, folder: str | Path, *, scale: Scale = "laptop", ours: bool = True, on: str = HERE,
    told: Told | None = None,
) -> list[Measured]:  # fmt: skip
    """Run what the store does not have of an item at a scale, and give its rows.

    Args:
        folder: a store of trials, which items share.
        ours: also set every attack made for the defense on the same victims.
        on, told: as in `dosimeter.sweep`.
    """
    forget()
    small = item.at(scale)
    cases = [_ready(case, ours) for case in small.cases]
    with Store(folder) as store:

        def ran(trials: Sequence[Trial | Course]) -> list[Entry]:
            return run_all(trials, store, on=on, retry_failed=True, told=told) if trials else []

        cases = _chosen(cases, ran)
        wanted = [trial for case, why in cases if not why for trial in _trials(case, small.seeds, ours)]
        entries = iter(ran(wanted))
        return [
            Measured(case.name, {}, why_not=why)
            if why
            else _measured(small, case, [next(entries) for _ in _trials(case, small.seeds, ours)], store)
            for case, why in cases
        ]


def recall(item: Item, folder: str | Path, *, scale: Scale = "laptop") -> list[Measured]:
    """The rows of an item that the store has; nothing is run."""
    forget()
    small = item.at(scale)
    with Store(folder) as store:
        asked = [each.words for each in store.entries(Status.DONE)]
        return [
            _recalled(small, case, store)
            if any(each.words in asked for each in [*_trials(case, small.seeds, True), *_on_shadows(case)])
            else Measured(case.name, {}, why_not=case.needs or NOT_RUN)
            for case in small.cases
        ]


def _recalled(item: Item, case: Case, store: Store) -> Measured:
    """A row by those of its trials that are done."""
    _, why = _ready(case, True)
    if not why:
        ((case, why),) = _chosen([(case, "")], lambda trials: [_kept(each, store) for each in trials])
    if why:
        return Measured(case.name, {}, why_not=why)
    kept = [store.entry(each.prepare().digest) for each in _trials(case, item.seeds, True)]
    attacks = kept[: 0 if case.trial is None else 2]
    if attacks and (attacks[0] is None or attacks[0].status is not Status.DONE):
        return Measured(case.name, {}, why_not=NOT_RUN)
    done = [each for each in kept if each is not None and each.status is Status.DONE]
    return _measured(item, case, done, store) if done else Measured(case.name, {}, why_not=NOT_RUN)


def _kept(trial: Trial | Course, store: Store) -> Entry:
    """What the store has of a trial, or that it has nothing."""
    made = trial.prepare()
    nothing = Entry(digest=made.digest, kind=made.kind, words=made.words, status=Status.FAILED, why=NOT_RUN)
    return store.entry(made.digest) or nothing


def _ready(case: Case, ours: bool) -> tuple[Case, str]:
    """A case, and what it needs that is not at hand."""
    if case.needs:
        return case, case.needs
    try:
        for each in _trials(case, 1, ours):
            each.prepare()
    except DataError as error:
        return case, str(error)
    return case, ""


def _chosen(
    cases: Sequence[tuple[Case, str]], ran: Callable[[Sequence[Trial | Course]], list[Entry]]
) -> list[tuple[Case, str]]:
    """Cases whose attack is the best of several on images of the attacker's own, never on victims."""
    tried = {at: _on_shadows(case) for at, (case, why) in enumerate(cases) if case.tries and not why}
    entries = iter(ran([trial for trials in tried.values() for trial in trials]))
    found = list(cases)
    for at, trials in tried.items():
        case, _ = cases[at]
        reached = [(each, next(entries)) for each in trials]
        done = [(entry.found["psnr"], trial.attack) for trial, entry in reached if entry.found]
        if not done:
            found[at] = (case, reached[0][1].reason)
            continue
        assert case.trial is not None
        found[at] = (replace(case, trial=replace(case.trial, attack=max(done)[1])), "")
    return found


def _on_shadows(case: Case) -> list[Trial]:
    if case.trial is None:
        return []
    return [replace(case.trial, attack=words, shadows=SHADOWS, decoys=0) for words in case.tries]


def _trials(case: Case, seeds: int, ours: bool) -> list[Trial | Course]:
    """The paper's attack, the strongest of ours, and trainings."""
    attacks = [case.trial, case.strongest if ours else None]
    courses = [replace(case.course, seed=case.course.seed + k) for k in range(seeds)] if case.course else []
    return [*(each for each in attacks if each is not None), *courses]


def _measured(item: Item, case: Case, entries: Sequence[Entry], store: Store) -> Measured:
    failed = next((each for each in entries if each.status is not Status.DONE), None)
    if failed is not None:
        return Measured(case.name, {}, why_not=failed.reason or f"it is {failed.status}")
    audits = [each for each in entries if each.kind == "audit"]
    accuracies = [each.found["accuracy"] for each in entries if each.kind == "training" and each.found]
    values: dict[str, Value] = {}
    if "parameters" in item.quantities:
        values["parameters"] = Value(float(_parameters(case)))
    if accuracies:
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
        values["accuracy"] = _in_units("accuracy", statistics.mean(accuracies), spread)
    if not audits:
        return Measured(case.name, values)
    own = store.result(audits[0].digest)
    best = store.result(audits[1].digest) if len(audits) > 1 else None
    row = Measured(case.name, values | _scores(item, own), own.scores.success, digest=audits[0].digest)
    return row if best is None else row._replace(**_beside(max(own, best, key=_strength)))


def _strength(result: Result) -> tuple[int, float]:
    """By which attacks are ordered: images read, then how well."""
    return result.scores.success.hits, result.scores.nearest["ssim"].mean


def _spread(many: int, value: float) -> float | None:
    """Of one number there is none."""
    return value if many > 1 else None


def _scores(item: Item, result: Result) -> dict[str, Value]:
    """All that the paper's attack has in tables, over victims."""
    near, many = result.scores.nearest.scores, len(result.records)
    found = {key: _in_units(key, near[key].mean, _spread(many, near[key].std)) for key in near if key in QUANTITIES}
    steps = [record.steps for record in result.records]
    found["steps"] = Value(statistics.mean(steps), statistics.stdev(steps) if len(steps) > 1 else None)
    read = [record.nearest[item.judged] >= item.threshold for record in result.records]
    found["asr"] = _in_units("asr", statistics.mean(read), None)
    return found


def _parameters(case: Case) -> int:
    """Of the model with its defense."""
    assert case.trial is not None
    audit = case.trial.prepare().audit
    assert audit.victims is not None
    _, _, channels, height, width = audit.victims.images.shape
    made = audit.defense.trained(copy.deepcopy(audit.model), (channels, height, width))
    return sum(each.numel() for each in made.parameters())


def _beside(best: Result) -> dict[str, Any]:
    one = best.scores.nearest["ssim"]
    return {
        "strongest": Value(one.mean, _spread(len(best.records), one.std)),
        "by": best.settings["attack_name"],
        "read_by": best.scores.success,
        "verdict": weigh(best).kind.value,
        "evidence": tally(best.scores.evidence),
    }


def _in_units(name: str, mean: float, spread: float | None) -> Value:
    times = QUANTITIES[name].times
    return Value(times * mean, None if spread is None else times * spread)
