"""`dosimeter audit`: attack a model's updates and report what could be read out of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape

from dosimeter import auditing, checks
from dosimeter.attacks import AverageRounds, Steps
from dosimeter.auditing import (
    AUTO,
    Audit,
    Result,
    Scoring,
    Updates,
    auto,
    estimate,
    estimate_panel,
    gate,
    made_by,
    part,
    perform,
)
from dosimeter.auditing.choosing import POOL, by_gradient
from dosimeter.cli import options
from dosimeter.cli.config import given, write_config
from dosimeter.cli.console import err, out
from dosimeter.cli.dose import beside_attacks
from dosimeter.cli.kept import OF_KEPT, run_kept
from dosimeter.cli.panel import run_panel
from dosimeter.cli.parts import (
    attack_of,
    load_lpips,
    load_metrics,
    pick,
    planned,
    resources_of,
    scoring_of,
    taking,
    told,
    written,
)
from dosimeter.drafts import reserve
from dosimeter.errors import SettingError
from dosimeter.lines import Grid
from dosimeter.reports import pipelines
from dosimeter.task import Task, load_task

ALONE = ("rounds", "guess_local_steps", "guess_local_lr", "average_orders")
"""Options of one attack, which a panel has no use for."""


def run(asked: options.Audit) -> None:
    """Attack, write the run folder, print what was found, and exit by the gate."""
    if asked.update or asked.after:
        raise SettingError("A captured update has a command of its own; write dosimeter captured instead of audit.")
    if asked.kept is not None:
        run_kept(asked, asked.kept)
        return
    if needless := [option for name, option in given().items() if name in OF_KEPT]:
        raise SettingError(f"{', '.join(needless)} are of a federation's kept updates; name their folder with --kept.")
    limits = None if asked.fail_above is None else gate.limits(asked.fail_above)
    _check_scores(asked)
    steps = auto(asked.attack, asked.steps)
    task, audit = _audit(asked, whole=steps is not None)
    if limits is not None:
        gate.check(limits, audit.victims.indices.numel())  # type: ignore[union-attr]
    if asked.dry_run:
        if steps:
            _plan_panel(task, audit, steps)
        else:
            _plan(task, audit)
        return
    audit = replace(audit, scoring=scoring_of(asked, task.dataset, audit.victims))  # type: ignore[arg-type]
    name = f"{task.dataset.name}-{Path(asked.model.partition(':')[0]).stem}-{AUTO if steps else audit.attack.name}"
    chosen = asked.out or Path("runs") / name
    made, numbered = made_by(audit, steps=steps) if steps else "", asked.out is None
    with reserve(chosen, overwrite=asked.overwrite, numbered=numbered, goes_on=made) as (place, folder):
        write_config(place)

        def beside(result: Result) -> Result:
            return beside_attacks(asked, task, audit, result, place) if asked.dose else result

        if steps:
            how = {"explain": asked.explain, "quiet": asked.quiet}
            result = run_panel(audit, place, steps=steps, made=made, beside=beside, **how)
        else:
            result = written(place, lambda: beside(perform(audit)))
    if asked.explain and not asked.json and not steps:
        _tensors(audit).print(out)
        out.print()
    result = told(result, folder, as_json=asked.json, explain=asked.explain, quiet=asked.quiet)
    if result.status == "interrupted":
        raise typer.Exit(130)
    if limits is not None:
        passed = gate.judge(result, limits)
        pipelines.write(folder, result, passed, limits)
        err.print(escape(passed.sentence), soft_wrap=True, highlight=False)
        raise typer.Exit(passed.code)


def _check_scores(asked: options.Audit) -> None:
    """Refuse before any work, and in dry runs, what images cannot be judged by."""
    Scoring(threshold=asked.threshold, delta=asked.delta, metrics=load_metrics(asked.metric))
    checks.count("An audit", "decoys", asked.decoys, least=0, most=1_000_000)
    if asked.lpips:
        load_lpips(asked.lpips)


def _audit(asked: options.Audit, *, whole: bool) -> tuple[Task, Audit]:
    """What was asked for, without its scores."""
    named = [option for name, option in given().items() if name in ALONE]
    if whole and named:
        raise SettingError(f"--attack auto chooses its attacks itself and takes no {', '.join(named)}; leave that out.")
    attack = part("attack", "ig") if whole else attack_of(asked)
    if asked.rounds > 1:
        attack = AverageRounds(attack=attack)
    parts = {kind: part(kind, getattr(asked, kind)) for kind in ("defense", "step", "server", "loss")}
    task = load_task(
        asked.model, asked.data, seed=asked.seed, size=asked.size, channels=asked.channels, weights=asked.weights
    )
    audit = Audit(
        model=task.model,
        victims=pick(asked, task.dataset),
        attack=attack,
        **parts,
        seed=asked.seed,
        updates=Updates(batch_norm=asked.batch_norm.value, rounds=asked.rounds, same_client=asked.same_client),
        resources=resources_of(asked),
        names=task.names | {"split": asked.split},
    )
    return task, audit if asked.pick is options.Pick.random else _chosen(asked, task, audit)


def _chosen(asked: options.Audit, task: Task, audit: Audit) -> Audit:
    """The audit with victims whose gradients are largest or smallest, by the auditor's choice, which records say."""
    if asked.indices is not None:
        raise SettingError(f"--indices says which images, and --pick {asked.pick.value} chooses them; leave one out.")
    most = max(asked.victims, min(POOL, task.dataset.count(asked.split) // asked.batch))
    pool = pick(replace(asked, victims=most), task.dataset)
    largest = asked.pick is options.Pick.largest
    victims = by_gradient(replace(audit, victims=pool), asked.victims, largest=largest)
    return replace(audit, victims=victims, names={**audit.names, "pick": f"{asked.pick.value} of {most}"})


def _plan(task: Task, audit: Audit) -> None:
    """What would run, with an estimate from a few steps actually taken."""
    guess = estimate(audit)
    rows = {"work": _work(guess), "time": _time(guess), "memory": _memory(guess["bytes"])}
    picked = {"picked": guess["picked"]} if guess["picked"] else {}
    planned(_what(task, audit, repr(audit.attack)) | picked | rows)


def _plan_panel(task: Task, audit: Audit, steps: Steps) -> None:
    """The same of every attack of the panel, and of all of them."""
    rows = _what(task, audit, "every attack made for the defense")
    whole: dict[str, float] = {"least": 0.0, "seconds": 0.0, "done": 1}
    most = 0
    for name, guess in estimate_panel(audit, steps=steps):
        if isinstance(guess, str):
            rows[name] = f"refused. {guess}"
            continue
        most = max(most, guess["bytes"])
        whole |= {key: whole[key] + guess[key] for key in ("least", "seconds")}
        whole["done"] = min(whole["done"], guess["done"])
        rows[name] = f"{_work(guess)}; {_time(guess)}; {_memory(guess['bytes'])}"
    whole["seconds"] = min(whole["seconds"], audit.resources.seconds)
    rows["all of them"] = f"{taking(whole)}, one after another; {_memory(most)}"
    planned(rows)


def _what(task: Task, audit: Audit, attack: str) -> dict[str, str]:
    assert audit.victims is not None
    return {
        "model": f"{type(task.model).__name__}, {sum(p.numel() for p in task.model.parameters()):,} parameters",
        "data": f"{task.dataset.name}, {'x'.join(map(str, task.dataset.shape))}",
        "victims": f"{len(audit.victims.ids)} updates of {audit.victims.batch} image(s)",
        "attack": attack,
        "defense": repr(audit.defense),
        "step": "gradient" if audit.step is None else repr(audit.step),
        "server": audit.server.name,
    }


def _work(guess: dict[str, Any]) -> str:
    """Tiles, steps, trials and restarts of an estimate."""
    few, most = guess["fewest"], guess["total"]
    many = f"{few:,} to {most:,}" if few < most else f"{most:,}"
    said = f"{guess['tiles']} tile(s) of {guess['tile']} victim(s), {many} {guess['unit']} each"
    if guess["tried"]:
        said += f", {guess['tried']:,} of them trials"
    if guess["again"]:
        said += f", and as many again up to {guess['again']} times where it falls short"
    if guess["side_by_side"] < guess["restarts"]:
        said += f", {guess['side_by_side']} of {guess['restarts']} restarts at a time"
    return said


def _time(guess: dict[str, Any]) -> str:
    basis = f"from the first {guess['done']} of {guess['total']:,} {guess['unit']} of a tile"
    return f"{taking(guess)} ({basis})"


def _memory(size: float) -> str:
    return f"about {size / 2**20:,.0f} MiB"


def _tensors(audit: Audit) -> Grid:
    table = Grid("tensor", "form", "why")
    for row in auditing.explain(audit):
        table.add_row(*row)
    return table
