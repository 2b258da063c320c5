"""Items as sweeps: what is kept costs nothing, and items share what they have in common."""

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dosimeter.auditing import Result
from dosimeter.auditing.evidence import Evidence, tally
from dosimeter.auditing.verdict import weigh
from dosimeter.errors import DataError
from dosimeter.metrics import Rate
from dosimeter.papers.item import Case, Item, Scale
from dosimeter.papers.looks import accuracy_of, behind, distances_of, kept_distances, of_lock, traced
from dosimeter.papers.measured import Measured, in_units
from dosimeter.papers.quantities import QUANTITIES, Value
from dosimeter.sweeps import Course, Entry, Status, Store, Trial, run_all
from dosimeter.sweeps.places import HERE
from dosimeter.sweeps.run import Told
from dosimeter.sweeps.trial import forget

NOT_RUN = "it was not run at this scale"

SHADOWS = 8
"""Images of the attacker's own on which settings are chosen."""


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
    cases = [ready(case, ours) for case in small.cases]
    with Store(folder) as store:

        def ran(trials: Sequence[Trial | Course]) -> list[Entry]:
            return run_all(trials, store, on=on, retry_failed=True, told=told) if trials else []

        cases = _chosen(cases, ran)
        made = {case.name: distances_of(case, folder) for case, why in cases if case.pair and not why}
        wanted = [trial for case, why in cases if not why for trial in trials_of(case, small.seeds, ours)]
        entries = iter(ran(wanted))
        return [
            Measured(case.name, {}, why_not=why)
            if why
            else made[case.name]
            if case.pair
            else _measured(small, case, [next(entries) for _ in trials_of(case, small.seeds, ours)], store)
            for case, why in cases
        ]


def recall(item: Item, folder: str | Path, *, scale: Scale = "laptop") -> list[Measured]:
    """The rows of an item that the store has; nothing is run."""
    forget()
    small = item.at(scale)
    with Store(folder) as store:
        asked = [each.words for each in store.entries(Status.DONE)]
        return [
            made
            if (made := kept_distances(case, folder))
            else _recalled(small, case, store)
            if any(each.words in asked for each in [*trials_of(case, small.seeds, True), *on_shadows(case)])
            else Measured(case.name, {}, why_not=f"needs {case.needs}" if case.needs else NOT_RUN)
            for case in small.cases
        ]


def _recalled(item: Item, case: Case, store: Store) -> Measured:
    """A row by those of its trials that are done."""
    _, why = ready(case, True)
    if not why:
        ((case, why),) = _chosen([(case, "")], lambda trials: [_kept(each, store) for each in trials])
    if why:
        return Measured(case.name, {}, why_not=why)
    kept = [store.entry(each.prepare().digest) for each in trials_of(case, item.seeds, True)]
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


def ready(case: Case, ours: bool) -> tuple[Case, str]:
    """A case, and what it needs that is not at hand."""
    if case.needs:
        return case, f"needs {case.needs}"
    try:
        for each in trials_of(case, 1, ours):
            each.prepare()
    except DataError as error:
        return case, f"needs data: {error}"
    return case, ""


def _chosen(
    cases: Sequence[tuple[Case, str]], ran: Callable[[Sequence[Trial | Course]], list[Entry]]
) -> list[tuple[Case, str]]:
    """Cases whose attack is the best of several on images of the attacker's own, never on victims."""
    tried = {at: on_shadows(case) for at, (case, why) in enumerate(cases) if case.tries and not why}
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


def on_shadows(case: Case) -> list[Trial]:
    if case.trial is None:
        return []
    return [replace(case.trial, attack=words, shadows=SHADOWS, decoys=0) for words in case.tries]


def trials_of(case: Case, seeds: int, ours: bool) -> list[Trial | Course]:
    """The paper's attack, the strongest of ours, and trainings."""
    attacks = [case.trial, case.strongest if ours else None]
    courses = [replace(case.course, seed=case.course.seed + k) for k in range(seeds)] if case.course else []
    return [*(each for each in attacks if each is not None), *courses]


def _measured(item: Item, case: Case, entries: Sequence[Entry], store: Store) -> Measured:
    failed = next((each for each in entries if each.status is not Status.DONE), None)
    if failed is not None:
        return Measured(case.name, {}, why_not=failed.reason or f"it is {failed.status}")
    audits = [each for each in entries if each.kind == "audit"]
    trainings = [each.found for each in entries if each.kind == "training" and each.found]
    accuracies = [accuracy_of(case, each) for each in trainings]
    values: dict[str, Value] = {}
    if "parameters" in item.quantities:
        values["parameters"] = Value(float(parameters_of(case)))
    if accuracies:
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else None
        values["accuracy"] = in_units("accuracy", statistics.mean(accuracies), spread)
    seconds = sum(each.seconds or 0.0 for each in entries)
    if case.course is not None and "gap" in item.quantities:
        values |= {key: in_units(key, *value) for key, value in of_lock(case, trainings).items()}
    if case.behind and case.course is not None:
        return behind(Measured(case.name, values, seconds=seconds), case.course, store)
    if not audits:
        return Measured(case.name, values, seconds=seconds)
    own = store.result(audits[0].digest)
    best = store.result(audits[1].digest) if len(audits) > 1 else None
    row = Measured(
        case.name,
        values | _scores(item, own),
        own.scores.success,
        digest=audits[0].digest,
        short=_short(own),
        seconds=seconds,
        series=traced(own),
    )
    return row if best is None else row._replace(**_beside(max(own, best, key=_strength)))


def _short(result: Result) -> Rate:
    """Images on whom the search ended before it explained the update as well as the truth does."""
    told = [record.evidence for record in result.records]
    return Rate(sum(each == Evidence.FELL_SHORT for each in told), len(told))


def _strength(result: Result) -> tuple[int, float]:
    """By which attacks are ordered: images read, then how well."""
    return result.scores.success.hits, result.scores.nearest["ssim"].mean


def _spread(many: int, value: float) -> float | None:
    """Of one number there is none."""
    return value if many > 1 else None


def _scores(item: Item, result: Result) -> dict[str, Value]:
    """All that the paper's attack has in tables, over victims."""
    near, many = result.scores.nearest.scores, len(result.records)
    found = {key: in_units(key, near[key].mean, _spread(many, near[key].std)) for key in near if key in QUANTITIES}
    steps = [record.steps for record in result.records]
    found["steps"] = Value(statistics.mean(steps), statistics.stdev(steps) if len(steps) > 1 else None)
    read = [record.nearest[item.judged] >= item.threshold for record in result.records]
    found["asr"] = share(Rate(sum(read), many))
    return found


def share(rate: Rate) -> Value:
    """Images read, in percent, with its interval."""
    return Value(100 * rate.rate, None, 100 * rate.low, 100 * rate.high)


def parameters_of(case: Case) -> int:
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
        "short_by": _short(best),
    }
