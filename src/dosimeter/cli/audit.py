"""`dosimeter audit`: attack a model's updates and report what could be read out of them."""

import json
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

from dosimeter import checks, data, store
from dosimeter.attacks import AverageRounds
from dosimeter.auditing import (
    AUTO,
    STEPS,
    Audit,
    Interrupted,
    Resources,
    Result,
    Scoring,
    Trial,
    Updates,
    audit_panel,
    conclude,
    estimate,
    estimate_panel,
    part,
    perform,
)
from dosimeter.auditing import explain as explain_audit
from dosimeter.cli import captured
from dosimeter.cli.console import drawing, err, out, refusals
from dosimeter.cli.parts import gibibytes, guessing, load_lpips, load_metrics
from dosimeter.drafts import reserve
from dosimeter.errors import SettingError
from dosimeter.progress import duration
from dosimeter.reports import PAGE, print_result, write_page
from dosimeter.task import Task, load_task

INCONCLUSIVE = 3
"""The exit code of a gate that did not measure all victims and cannot pass."""

CAPTURED = "A captured update"
"""The heading of options that `captured.py` takes."""


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


class Norm(StrEnum):
    running = "running"
    batch = "batch"
    sent = "sent"


def audit_command(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Option(help="A model, with settings: convnet:width=32. Or path/to/file.py:function, yours.")
    ] = "cnn",
    weights: Annotated[
        Path | None, typer.Option(help="The model's weights: a state_dict as .safetensors, .npz, .pt or .pth.")
    ] = None,
    data_: Annotated[str, typer.Option("--data", help="A data set's name, or an .npz file.")] = "mnist-5k",
    attack: Annotated[
        str, typer.Option(help="An attack, with settings: ig:tv=0.01,restarts=2. Or auto: all for the defense.")
    ] = "ig",
    defense: Annotated[
        str, typer.Option(help="A defense, with settings: noise:sigma=0.01. Several are joined by |.")
    ] = "none",
    step: Annotated[
        str, typer.Option(help="What clients send: gradient, local:steps=5,lr=1e-4 (FedAvg), clipped:bound=1.")
    ] = "gradient",
    guess_local_steps: Annotated[
        str | None, typer.Option(help="Do not tell the attacker the local steps; it tries these: 1+2+5+10.")
    ] = None,
    guess_local_lr: Annotated[
        str | None, typer.Option(help="Do not tell it the local learning rate; it tries these: 1e-4+1e-3.")
    ] = None,
    average_orders: Annotated[
        int | None, typer.Option(help="Simulate clients that shuffle by the mean over so many orders.")
    ] = None,
    server: Annotated[
        str,
        typer.Option(help="A server that changes the model: permuted-rows, first-layer+separate-weights."),
    ] = "honest",
    victims: Annotated[int, typer.Option(help="How many updates to attack.")] = 8,
    batch: Annotated[int, typer.Option(help="Images in every update.")] = 1,
    rounds: Annotated[int, typer.Option(help="Updates of the same batch that the server sees.")] = 1,
    same_client: Annotated[int, typer.Option(help="Victims in a row that are updates of one client.")] = 1,
    distinct: Annotated[bool, typer.Option("--distinct", help="Only different classes in every update.")] = False,
    steps: Annotated[int | None, typer.Option(help="Steps of the attack; its own default otherwise.")] = None,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
    split: Annotated[str, typer.Option(help="The split that victims come from: train or test.")] = "train",
    size: Annotated[int | None, typer.Option(help="Resize images to this height and width.")] = None,
    channels: Annotated[int | None, typer.Option(help="Repeat grey images to 3 channels.")] = None,
    loss: Annotated[str | None, typer.Option(help="path/to/file.py:function (output, labels) -> number.")] = None,
    batch_norm: Annotated[
        Norm, typer.Option(help="Statistics: running ones, those of the private batch, or these sent with the update.")
    ] = Norm.running,
    fail_above: Annotated[
        float | None,
        typer.Option(
            help="Exit with 1 when the success rate's interval reaches above this share, 3 when inconclusive."
        ),
    ] = None,
    threshold: Annotated[float, typer.Option(help="SSIM from which an image counts as read.")] = 0.5,
    delta: Annotated[
        float | None, typer.Option(help="Distance (L2) beyond which an image was missed; adds the risk R(f).")
    ] = None,
    decoys: Annotated[int, typer.Option(help="Other images in the identification test.")] = 99,
    lpips: Annotated[
        Path | None, typer.Option(help="LPIPS weights; lpips_alex.pth in DOSIMETER_DATA is found.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="A score of your own: path/to/file.py:NAME. May be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[Precision, typer.Option(help="Precision of the attack.")] = Precision.float32,
    budget: Annotated[float, typer.Option(help="GiB that the victims attacked at once may take.")] = 4.0,
    workers: Annotated[int | None, typer.Option(help="Threads; one a core otherwise.")] = None,
    explain: Annotated[bool, typer.Option(help="Say which tensor is compared in which way and why.")] = False,
    out_: Annotated[Path | None, typer.Option("--out", help="Run folder; a new one under runs/ otherwise.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an older run in the run folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records, and nothing else.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Say what would run, how long and in what memory.")] = False,
    update: Annotated[
        Path | None,
        typer.Option(help="Audit this captured update: .safetensors, .npz, .pt or .pth.", rich_help_panel=CAPTURED),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(help="Or the weights after training; the update is before minus after.", rich_help_panel=CAPTURED),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Grant the attacker the labels: 3,5.", rich_help_panel=CAPTURED)
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="An .npz file with images and labels, for scores alone.", rich_help_panel=CAPTURED),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Instead of --data: channels, height, width, as 3,32,32.", rich_help_panel=CAPTURED),
    ] = None,
    shadows: Annotated[
        int, typer.Option(help="Updates of images of --data to compare with.", rich_help_panel=CAPTURED)
    ] = 8,
    perturbed: Annotated[
        str,
        typer.Option(
            help="What its defense acts on: update (the change of weights) or steps (the gradient).",
            rich_help_panel=CAPTURED,
        ),
    ] = "update",
) -> None:
    """Attack a model's updates and report what could be read out of them."""
    if captured.is_asked(ctx):
        captured.captured_command(ctx)
        return
    with refusals():
        checks.share("A gate", "a share of images (--fail-above)", fail_above)
        whole = attack == AUTO
        given = {
            "--rounds": rounds > 1,
            "--guess-local-steps": guess_local_steps is not None,
            "--guess-local-lr": guess_local_lr is not None,
            "--average-orders": average_orders is not None,
            "--explain": explain,
        }
        if whole and any(given.values()):
            named = ", ".join(option for option, there in given.items() if there)
            raise SettingError(f"--attack auto chooses its attacks itself and takes no {named}; leave that out.")
        chosen = part("attack", "ig" if whole else attack, steps=steps)
        chosen = guessing(chosen, guess_local_steps, guess_local_lr, average_orders)
        if fail_above is not None and not chosen.reads_images:
            raise SettingError(
                f"--fail-above is about images, and the attack {chosen.name!r} reads no images; leave it out."
            )
        if rounds > 1 and not whole:
            chosen = AverageRounds(attack=chosen)
        parts = {"defense": part("defense", defense), "step": part("step", step), "server": part("server", server)}
        parts |= {"loss": part("loss", loss)}
        task = load_task(
            model,
            data_,
            victims,
            seed=seed,
            batch=batch,
            split=split,
            size=size,
            channels=channels,
            weights=weights,
            distinct=distinct,
        )
        setting = Audit(
            model=task.model,
            victims=task.victims,
            attack=chosen,
            **parts,
            seed=seed,
            updates=Updates(batch_norm=batch_norm.value, rounds=rounds, same_client=same_client),
            resources=Resources(
                device=device, dtype=getattr(torch, dtype.value), budget=gibibytes(budget), workers=workers
            ),
            names=task.names,
        )
        if dry_run:
            out.print(_plan_panel(task, setting, steps or STEPS) if whole else _plan(task, setting))
            return
        others = data.pick_decoys(task.dataset, task.victims, decoys, seed=seed, split=split)
        scoring = Scoring(
            threshold=threshold, decoys=others, lpips=load_lpips(lpips), delta=delta, metrics=load_metrics(metric)
        )
        setting = replace(setting, scoring=scoring)
        name = f"{task.dataset.name}-{Path(model.partition(':')[0]).stem}-{AUTO if whole else chosen.name}"
        with reserve(out_ or Path("runs") / name, overwrite=overwrite, numbered=out_ is None) as (place, folder):
            found = _run_panel(setting, place, steps=steps or STEPS) if whole else _run(setting, place)
        with drawing(folder):
            for below, each in found.items():
                write_page(each, folder / below / PAGE)
        result = found.get("")
    if result is None:
        err.print("Interrupted before anything was attacked; the run folder says so.")
        raise typer.Exit(130)
    if as_json:
        sys.stdout.write(json.dumps(result.document(), indent=1, allow_nan=False) + "\n")
    else:
        print_result(result, out, where=folder / PAGE)
        if explain:
            out.print(_tensors(setting))
    if result.status == "interrupted":
        raise typer.Exit(130)
    if fail_above is not None:
        _gate(result, fail_above)


def _gate(result: Result, allowed: float) -> None:
    """Exit where more may be read than is allowed, or where too little was measured to tell."""
    rate = result.scores.success
    if result.unmeasured and rate.low <= allowed:
        err.print(f"Inconclusive: {escape(result.unmeasured)}", soft_wrap=True, highlight=False)
        raise typer.Exit(INCONCLUSIVE)
    if rate.high > allowed:
        err.print(f"Fails: up to {rate.high:.1%} of images may be read, more than the {allowed:.1%} that were allowed.")
        raise typer.Exit(1)


def _run(audit: Audit, place: Path) -> dict[str, Result]:
    """The audit, written to the run folder; nothing when Ctrl-C came before anything was attacked."""
    try:
        result = perform(audit)
    except Interrupted as interrupted:
        result = interrupted.result
    except KeyboardInterrupt:
        store.write_interrupted(place, "interrupted before anything was attacked")
        return {}
    store.write_run(result, place)
    return {"": result}


def _run_panel(audit: Audit, place: Path, *, steps: int) -> dict[str, Result]:
    """All attacks of the defense's panel by their folders, which lie below the strongest one's."""
    trials: list[Trial] = []
    done: dict[str, Result] = {}
    try:
        for trial in audit_panel(audit, steps=steps):
            trials.append(trial)
            if trial.result is None:
                err.print(escape(f"{trial.attack}: refused. {trial.refused}"), highlight=False)
                continue
            below = f"attacks/{len(trials):02d}-{trial.attack.replace(' ', '-')}"
            store.write_run(trial.result, place / below)
            done[below] = trial.result
            err.print(escape(_said(trial.attack, trial.result)), highlight=False)
        result = conclude(trials)
    except KeyboardInterrupt:
        if not done:
            store.write_interrupted(place, "interrupted before any attack was done")
            return {}
        result = replace(conclude(trials), status="interrupted")
    except Exception:
        if done:  # the attacks before the one that failed are kept
            store.write_run(replace(conclude(trials), status="interrupted"), place)
        raise
    store.write_run(result, place)
    return done | {"": result}


def _said(name: str, result: Result) -> str:
    """One line of an attack among others."""
    read, mean = result.scores.success.text, result.scores["ssim"].mean
    return f"{name}: {read} read, SSIM {mean:.3f}. {result.unmeasured}".strip()


def _plan(task: Task, setting: Audit) -> Table:
    """What would run, with an estimate from a few steps actually taken."""
    guess = estimate(setting)
    table = _dry(task, setting, repr(setting.attack))
    for what, value in (("work", _work(guess)), ("time", _time(guess)), ("memory", _memory(guess["bytes"]))):
        table.add_row(what, escape(value))
    return table


def _plan_panel(task: Task, setting: Audit, steps: int) -> Table:
    """The same of every attack of the panel, and of all of them."""
    table = _dry(task, setting, "every attack made for the defense")
    seconds, most, sure = 0.0, 0, True
    for name, guess in estimate_panel(setting, steps=steps):
        if isinstance(guess, str):
            table.add_row(escape(name), escape(f"refused. {guess}"))
            continue
        seconds, most = seconds + guess["seconds"], max(most, guess["bytes"])
        sure &= guess["done"] > 0
        table.add_row(escape(name), escape(f"{_work(guess)}; {_time(guess)}; {_memory(guess['bytes'])}"))
    bound = "at most" if sure else "more than"
    table.add_row("all of them", f"{bound} {duration(seconds)}, one after another; {_memory(most)}")
    return table


def _dry(task: Task, setting: Audit, attack: str) -> Table:
    table = Table("what", "value", title="Dry run: nothing was attacked, nothing was written")
    rows = {
        "model": f"{type(task.model).__name__}, {sum(p.numel() for p in task.model.parameters()):,} parameters",
        "data": f"{task.dataset.name}, {'x'.join(map(str, task.dataset.shape))}",
        "victims": f"{len(task.victims.ids)} updates of {task.victims.batch} image(s)",
        "attack": attack,
        "defense": repr(setting.defense),
        "step": "gradient" if setting.step is None else repr(setting.step),
        "server": setting.server.name,
    }
    for what, value in rows.items():
        table.add_row(what, escape(value))
    return table


def _work(guess: dict[str, Any]) -> str:
    """Tiles, steps, trials and restarts of an estimate."""
    said = f"{guess['tiles']} tile(s) of {guess['tile']} victim(s), {guess['total']:,} {guess['unit']} each"
    if guess["tried"]:
        said += f", {guess['tried']:,} of them trials"
    if guess["side_by_side"] < guess["restarts"]:
        said += f", {guess['side_by_side']} of {guess['restarts']} restarts at a time"
    return said


def _time(guess: dict[str, Any]) -> str:
    basis = f"from the first {guess['done']} of {guess['total']:,} {guess['unit']} of a tile"
    return f"{'at most' if guess['done'] else 'more than'} {duration(guess['seconds'])} ({basis})"


def _memory(size: float) -> str:
    return f"about {size / 2**20:,.0f} MiB"


def _tensors(audit: Audit) -> Table:
    table = Table("tensor", "form", "why")
    for row in explain_audit(audit):
        table.add_row(*map(escape, row))
    return table
