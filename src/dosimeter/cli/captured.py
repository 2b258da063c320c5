"""`dosimeter audit --update`: audit one captured update with nothing else known."""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import torch
import typer

from dosimeter import clients, data, defenses, spec, store
from dosimeter.attacks import presets
from dosimeter.auditing import Captured, InterruptedCapture, Setting, Yardstick, examine
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
        setting = _setting(asked)
        material = load(asked, setting)
        setting = replace(setting, step=material.step)
        yardstick = _yardstick(asked, material)
        name = f"captured-{Path(asked.model.partition(':')[0]).stem}-{setting.attack.name}"
        chosen = Path(asked.out_ or f"runs/{name}")
        with reserve(chosen, overwrite=asked.overwrite, numbered=not asked.out_) as (place, folder):
            result = _run(material, setting, yardstick, place)
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


def _run(material: Material, setting: Setting, yardstick: Yardstick, place: Path) -> Captured | None:
    """The audit, written to the run folder; None when Ctrl-C came before anything was attacked."""
    model, capture, shadows, truth, names = material[:5]
    try:
        result = examine(model, capture, setting, yardstick, shadows=shadows, truth=truth, names=names)
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
        raise SettingError("Statistics sent along are not read from files; call dosimeter.audit_update with them.")
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


def _setting(asked: Asked) -> Setting:
    chosen = spec.make("attack", asked.attack, presets.BY_NAME, steps=asked.steps)
    return Setting(
        attack=guessing(chosen, asked.guess_local_steps, asked.guess_local_lr, asked.average_orders),
        defense=spec.joined("defense", asked.defense, defenses.BY_NAME),
        step=spec.make("step", asked.step, clients.BY_NAME, hint="The attack's own steps are set by --steps."),
        loss=None if asked.loss is None else spec.own("loss", asked.loss),
        batch_norm="batch" if asked.batch_norm == "batch" else "running",
        seed=asked.seed,
        device=asked.device,
        dtype=getattr(torch, asked.dtype),
        budget=gibibytes(asked.budget),
        workers=asked.workers,
    )


def _yardstick(asked: Asked, material: Material) -> Yardstick:
    """How reconstructions are judged; without the truth only by which SSIM shadows count as read."""
    if material.truth is None:
        return Yardstick(asked.threshold)
    others = None
    if material.dataset is not None:
        beside = material.shadows or material.truth
        others = data.pick_decoys(material.dataset, beside, asked.decoys, seed=asked.seed, split=asked.split)
    lpips = load_lpips(None if asked.lpips is None else Path(asked.lpips))
    return Yardstick(asked.threshold, others, lpips, asked.delta)
