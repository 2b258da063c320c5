"""`dosimeter audit --kept`: every update that a federation's server kept, by client and round."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import typer
from rich.markup import escape
from torch import nn

from dosimeter import data, fingerprint, rng, spec, store, task
from dosimeter.auditing import Audit, Captured, Scoring, Survey, gate, part
from dosimeter.auditing.records import COMPLETE, INTERRUPTED
from dosimeter.cli import options
from dosimeter.cli.captured import BESIDE_TRUTH, shape_of
from dosimeter.cli.config import given, refuse, write_config
from dosimeter.cli.console import command, err
from dosimeter.cli.parts import attack_of, planned, resources_of, scoring_of, told
from dosimeter.clients import LocalTraining
from dosimeter.drafts import reserve
from dosimeter.errors import DataError, SettingError
from dosimeter.federated.facts import EXAMPLE, Trained
from dosimeter.federated.kept import ROUND
from dosimeter.federated.plan import Batches, Beside, Plan, Pool, Which
from dosimeter.federated.survey import Facts, known, run, surveyed
from dosimeter.federated.update import Audited
from dosimeter.reports import pipelines
from dosimeter.reports.survey import cell
from dosimeter.types import Shape

OF_KEPT = ("at", "most", "shape", "shadows", "truth", "pool")
ALONE = (
    "victims",
    "indices",
    "distinct",
    "pick",
    "server",
    "rounds",
    "same_client",
    "weights",
    "quiet",
    "average_orders",
)
"""Options of an audit without a meaning here."""
GUESSED = ("guess_local_steps", "guess_local_lr")


def run_kept(asked: options.Audit, folder: Path) -> None:
    """Audit every kept update, write the run folder, print what was found, and exit by the gate."""
    _check_options(asked)
    limits = None if asked.fail_above is None else gate.limits(asked.fail_above)
    plan = _plan(asked)
    facts = known(folder, plan)
    if limits is not None:
        gate.check(limits, sum(each.images for each in facts.values() if isinstance(each, Trained)))
    if asked.dry_run:
        planned(_planned(plan, facts))
        return
    name = f"kept-{Path(asked.model.partition(':')[0]).stem}-{plan.audit.attack.name}"
    chosen = asked.out or Path("runs") / name
    said = [path.read_bytes() for path in sorted(folder.glob(f"round-*/{ROUND}"))]
    made = fingerprint.of([plan.made, said]) if plan.made else ""
    numbered = asked.out is None
    with reserve(chosen, overwrite=asked.overwrite, numbered=numbered, goes_on=made) as (place, where):
        write_config(place)
        result = _run(folder, plan, facts, place, made)
    result = told(result, where, as_json=asked.json, explain=asked.explain)
    if result.status == INTERRUPTED:
        raise typer.Exit(130)
    if limits is not None:
        passed = gate.judge(result.pooled, limits)
        pipelines.write(where, result, passed, limits)
        err.print(escape(passed.sentence), soft_wrap=True, highlight=False)
        raise typer.Exit(passed.code)


def _run(folder: Path, plan: Plan, facts: Facts, place: Path, made: str) -> Survey | None:
    """All updates, each kept when it is done; None where none was."""
    before, found = store.finished(place, Captured), list[Audited]()

    def whole(status: str) -> Survey:
        result = replace(surveyed(plan, found, status=status), command=command(), made=made)
        store.write_run(result, place)
        return result

    try:
        for each in run(folder, plan, facts, kept=before):
            found.append(each)
            if each.result is not None and each.result.made not in before:
                store.write_run(replace(each.result, command=command()), place / store.update_folder(each.entry.key))
            if not (place / store.RUN).is_file():  # from now on it is a run, though an unfinished one
                store.write_interrupted(place, "stopped before all updates were audited", made=made)
            line = f"round {each.entry.round}, {each.entry.client}: {cell(each.entry)}"
            err.print(escape(line), highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        if found:
            return whole(INTERRUPTED)
        store.write_interrupted(place, "interrupted before anything was attacked", made=made)
        return None
    except Exception:
        if found:  # updates before the one that failed are kept
            whole(INTERRUPTED)
        raise
    return whole(COMPLETE)


def _check_options(asked: options.Audit) -> None:
    """Refuse options that miss another or exclude each other."""
    said = given()
    refuse("A federation's kept updates are all that it sent", *ALONE)
    if guessed := [said[name] for name in GUESSED if name in said]:
        raise SettingError(f"How clients trained is read or said ({EXAMPLE}), not guessed; leave {guessed[0]} out.")
    if asked.attack.partition(":")[0] == "auto":
        raise SettingError("--attack auto ranks attacks by the images they read, which are not known; name one attack.")
    if asked.shape is None and "data" not in said and spec.is_own(asked.model):
        raise SettingError(
            "Expected the form of the images, which weights do not tell; say it, as in --shape 1,28,28, or give images "
            "of your own to compare with (--data)."
        )
    if asked.shape is not None and "data" in said:
        raise SettingError("A --shape stands for data that is not there and excludes --data; choose one.")
    needless = [said[name] for name in BESIDE_TRUTH if name in said and asked.truth is None]
    if needless:
        raise SettingError(f"Without the truth there are no scores and no use for {', '.join(needless)}; give --truth.")


def _plan(asked: options.Audit) -> Plan:
    """What was asked for."""
    said, defense = given(), part("defense", asked.defense)
    step = part("step", asked.step)
    if step is not None and not (isinstance(step, LocalTraining) and "lr=" in asked.step):
        raise SettingError(
            f"Clients of a federation train locally at a rate, as in {EXAMPLE}; got --step {asked.step}."
        )
    if "batch_norm" in said and asked.batch_norm == "sent":
        raise SettingError("Kept clients sent no statistics beside their weights; say --batch-norm running or batch.")
    model, shape, dataset, names = _task(asked)
    with rng.scoped(asked.seed, "defense", "model"):
        model = defense.on_model(model, shape)
    truth = _truth(asked.truth)
    scoring = Scoring(threshold=asked.threshold)
    if truth:
        scoring = scoring_of(asked, dataset, next(iter(truth.values())))
    audit = Audit(
        model=model, attack=attack_of(asked), defense=defense, loss=part("loss", asked.loss), seed=asked.seed,
        resources=resources_of(asked), scoring=scoring, names=names,
    )  # fmt: skip
    which = Which(
        rounds=() if asked.at is None else spec.several("--at", asked.at, int),
        most=asked.most,
        batch=asked.batch if "batch" in said else None,
        batch_norm=asked.batch_norm.value if "batch_norm" in said else None,
    )
    beside = Beside(truth=truth, pool=_pool(asked), dataset=dataset, shadows=asked.shadows, split=asked.split)
    return Plan(audit=audit, shape=shape, said=step, which=which, beside=beside)


def _task(asked: options.Audit) -> tuple[nn.Module, Shape, data.Dataset | None, dict[str, Any]]:
    """The app's model, the form of its images, and images of the auditor's own."""
    if asked.shape is not None:
        model, name = task.load_own_model(asked.model, seed=asked.seed)
        return model, shape_of(asked.shape), None, {"model": name}
    made, dataset, names = task.load_task(
        asked.model, asked.data, seed=asked.seed, size=asked.size, channels=asked.channels
    )
    if "data" not in given():
        return made, dataset.shape, None, {"model": names["model"]}
    return made, dataset.shape, dataset, {"model": names["model"], "shadows": dataset.name, "split": asked.split}


def _truth(folder: Path | None) -> Batches:
    """The batches in files named as those of kept updates are."""
    if folder is None:
        return {}
    found = {}
    for path in sorted(folder.glob("round-*/node-*.npz")):
        numbers = path.parent.name.removeprefix("round-"), path.stem.removeprefix("node-")
        if all(each.isdecimal() for each in numbers):
            found[int(numbers[0]), int(numbers[1])] = data.read_batch(path)
    if not found:
        raise DataError(
            f"Expected round-1/node-123.npz and the like in {str(folder)!r}, found none; name the truth so."
        )
    return found


def _pool(asked: options.Audit) -> Pool | None:
    if asked.pool is None:
        return None
    held = data.load(asked.pool, size=asked.size, channels=asked.channels)
    places = range(held.count(asked.split))
    return Pool(held.images(asked.split, places), torch.from_numpy(held.labels(asked.split)))


def _planned(plan: Plan, facts: Facts) -> dict[str, str]:
    """What would be done to every update."""
    rows = {}
    for (round_, node), each in facts.items():
        if not isinstance(each, Trained):
            rows[f"round {round_}, node {node}"] = f"not audited: {each}"
            continue
        how = plan.audit.attack.name if each.images <= plan.which.most else "labels"
        beware = "".join(f"; beware: {doubt}" for doubt in each.doubts)
        rows[f"round {round_}, node {node}"] = f"{each.images:,} image(s), {each.words}; attacked by {how}{beware}"
    return rows
