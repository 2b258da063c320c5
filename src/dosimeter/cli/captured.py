"""`dosimeter audit --update`: audit one captured update with nothing else known."""

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import torch
import typer

from dosimeter import data, store
from dosimeter.auditing import Audit, Captured, InterruptedCapture, Resources, Scoring, Updates, examine, part
from dosimeter.cli.console import drawing, err, out, refusals
from dosimeter.cli.material import Asked, Material, load
from dosimeter.cli.parts import gibibytes, guessing, load_lpips
from dosimeter.drafts import reserve
from dosimeter.errors import SettingError, unknown
from dosimeter.federated.protocol import Perturbed
from dosimeter.reports import PAGE, print_result, write_page

ONLY = ("after", "labels", "perturbed", "shadows", "shape", "truth", "update")
"""Options that only a captured update takes."""

BESIDE_TRUTH = ("decoys", "delta", "lpips")
"""Options that say how reconstructions are scored beside the truth."""


def is_asked(ctx: typer.Context) -> bool:
    """Whether an option was given that only a captured update takes."""
    return any(name in ONLY for name in _given(ctx))


def captured_command(ctx: typer.Context) -> None:
    """Audit one captured update, write its run folder and print what is to be said of it."""
    with refusals():
        given = _given(ctx)
        words = {field.name: ctx.params[field.name] for field in fields(Asked) if field.name in ctx.params}
        asked = Asked(**words, named="data_" in given)
        _check_options(asked, given)
        material, setting = _audit(asked)
        name = f"captured-{Path(asked.model.partition(':')[0]).stem}-{setting.attack.name}"
        chosen = Path(asked.out_ or f"runs/{name}")
        with reserve(chosen, overwrite=asked.overwrite, numbered=not asked.out_) as (place, folder):
            result = _run(material, setting, place)
        if result is not None:
            with drawing(folder):
                write_page(result, folder / PAGE)
    if result is None:
        err.print("Interrupted before anything was attacked; the run folder says so.")
        raise typer.Exit(130)
    if asked.as_json:
        sys.stdout.write(json.dumps(result.document(), indent=1, allow_nan=False) + "\n")
    else:
        print_result(result, out, where=folder / PAGE)
    if result.status == "interrupted":
        raise typer.Exit(130)


def _run(material: Material, audit: Audit, place: Path) -> Captured | None:
    """The audit, written to the run folder; None when Ctrl-C came before anything was attacked."""
    try:
        result = examine(audit, material.capture, material.truth)
    except InterruptedCapture as interrupted:
        result = interrupted.result
    except KeyboardInterrupt:
        store.write_interrupted(place, "interrupted before anything was attacked")
        return None
    store.write_run(result, place)
    return result


def _given(ctx: typer.Context) -> dict[str, str]:
    """{name: option as it is written} of all options that were given."""
    written = {param.name: param.opts[0] for param in ctx.command.params}
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name: written[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _check_options(asked: Asked, given: dict[str, str]) -> None:
    """Refuse options that a captured update has no use for, that miss another or exclude each other."""
    if (asked.update is None) == (asked.after is None):
        got = "neither" if asked.update is None else "both"
        raise SettingError(f"A captured update is given as --update or as --after, one of them; got {got}.")
    if asked.weights is None:
        raise SettingError("An update says little without the weights before it; give them with --weights.")
    if strange := [option for name, option in given.items() if name not in Asked.__dataclass_fields__]:
        raise SettingError(f"One captured update has no use for {', '.join(strange)}; leave that out.")
    if asked.attack == "auto":
        raise SettingError("--attack auto ranks attacks by the images they read, which are not known; name one attack.")
    if asked.batch_norm == "sent":
        raise SettingError("Statistics sent along are not read from files; call dosimeter.captured with them.")
    needless = [given[name] for name in BESIDE_TRUTH if name in given and asked.truth is None]
    if needless:
        raise SettingError(f"Without the truth there are no scores and no use for {', '.join(needless)}; give --truth.")
    clash = [given[name] for name in ("data_", "size", "channels", "split", "shadows") if name in given]
    if asked.shape is not None and clash:
        raise SettingError(f"A --shape stands for data that is not there and excludes {', '.join(clash)}; choose one.")
    if asked.perturbed not in get_args(Perturbed):
        raise SettingError(unknown("--perturbed", asked.perturbed, get_args(Perturbed)))
    if asked.shadows < 0:
        raise SettingError(f"The number of shadows must be at least 0, got {asked.shadows}.")
    unnamed = [given[name] for name in ("shadows", "decoys") if name in given and getattr(asked, name)]
    if unnamed and not asked.named:
        raise SettingError(f"{', '.join(unnamed)} are images of --data, and none was given; name some.")
    if asked.guesses and asked.named and asked.shadows:
        raise SettingError(
            "Shadows train as --step says, which is to be guessed here; compare with none (--shadows 0)."
        )


def _audit(asked: Asked) -> tuple[Material, Audit]:
    """What was captured, and how it is audited."""
    attack = part("attack", asked.attack, steps=asked.steps)
    attack = guessing(attack, asked.guess_local_steps, asked.guess_local_lr, asked.average_orders)
    defense, step, loss = (part(kind, getattr(asked, kind)) for kind in ("defense", "step", "loss"))
    material = load(asked, defense, step)
    dtype = getattr(torch, asked.dtype)
    audit = Audit(
        model=material.model,
        victims=material.shadows,
        attack=attack,
        defense=defense,
        step=material.step,
        loss=loss,
        seed=asked.seed,
        updates=Updates(batch_norm="batch" if asked.batch_norm == "batch" else "running"),
        resources=Resources(device=asked.device, dtype=dtype, budget=gibibytes(asked.budget), workers=asked.workers),
        scoring=_scoring(asked, material),
        names=material.names,
    )
    return material, audit


def _scoring(asked: Asked, material: Material) -> Scoring:
    """How reconstructions are judged; without the truth only by which SSIM shadows count as read."""
    if material.truth is None:
        return Scoring(threshold=asked.threshold)
    others = None
    if material.dataset is not None:
        beside = material.shadows or material.truth
        others = data.pick_decoys(material.dataset, beside, asked.decoys, seed=asked.seed, split=asked.split)
    lpips = load_lpips(None if asked.lpips is None else Path(asked.lpips))
    return Scoring(threshold=asked.threshold, decoys=others, lpips=lpips, delta=asked.delta)
