"""`dosimeter captured`: audit one captured update with nothing else known."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import typer

from dosimeter import data, store
from dosimeter.auditing import Audit, Captured, InterruptedCapture, Scoring, Updates, examine, part
from dosimeter.cli import options
from dosimeter.cli.config import given, write_config
from dosimeter.cli.console import command, drawing, err, out
from dosimeter.cli.material import Material, load
from dosimeter.cli.parts import attack_of, print_json, resources_of, scoring_of
from dosimeter.drafts import reserve
from dosimeter.errors import SettingError, unknown
from dosimeter.federated.protocol import Perturbed
from dosimeter.reports import PAGE, print_result, write_pages

BESIDE_TRUTH = ("decoys", "delta", "lpips", "metric")
"""Options that say how reconstructions are scored beside the truth."""


def run(asked: options.Captured) -> None:
    """Audit one captured update, write its run folder and print what is to be said of it."""
    _check_options(asked)
    material, audit = _audit(asked)
    name = f"captured-{Path(asked.model.partition(':')[0]).stem}-{audit.attack.name}"
    chosen = asked.out or Path("runs") / name
    with reserve(chosen, overwrite=asked.overwrite, numbered=asked.out is None) as (place, folder):
        write_config(place)
        result = _run(material, audit, place)
    if result is None:
        err.print("Interrupted before anything was attacked; the run folder says so.")
        raise typer.Exit(130)
    with drawing(folder):
        write_pages(result, folder)
    if asked.json:
        print_json(result.document())
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
    result = replace(result, command=command())
    store.write_run(result, place)
    return result


def _check_options(asked: options.Captured) -> None:
    """Refuse options that miss another or exclude each other."""
    said = given()
    if (asked.update is None) == (asked.after is None):
        got = "neither" if asked.update is None else "both"
        raise SettingError(f"A captured update is given as --update or as --after, one of them; got {got}.")
    if asked.weights is None:
        raise SettingError("An update says little without the weights before it; give them with --weights.")
    if asked.attack.partition(":")[0] == "auto":
        raise SettingError("--attack auto ranks attacks by the images they read, which are not known; name one attack.")
    if asked.batch_norm == "sent":
        raise SettingError("Statistics sent along are not read from files; call dosimeter.captured with them.")
    needless = [said[name] for name in BESIDE_TRUTH if name in said and asked.truth is None]
    if needless:
        raise SettingError(f"Without the truth there are no scores and no use for {', '.join(needless)}; give --truth.")
    clash = [said[name] for name in ("data", "size", "channels", "split", "shadows") if name in said]
    if asked.shape is not None and clash:
        raise SettingError(f"A --shape stands for data that is not there and excludes {', '.join(clash)}; choose one.")
    if asked.perturbed not in get_args(Perturbed):
        raise SettingError(unknown("--perturbed", asked.perturbed, get_args(Perturbed)))
    if asked.shadows < 0:
        raise SettingError(f"The number of shadows must be at least 0, got {asked.shadows}.")
    unnamed = [said[name] for name in ("shadows", "decoys") if name in said and getattr(asked, name)]
    if unnamed and "data" not in said:
        raise SettingError(f"{', '.join(unnamed)} are images of --data, and none was given; name some.")
    if (asked.guess_local_steps or asked.guess_local_lr) and "data" in said and asked.shadows:
        raise SettingError(
            "Shadows train as --step says, which is to be guessed here; compare with none (--shadows 0)."
        )


def _audit(asked: options.Captured) -> tuple[Material, Audit]:
    """What was captured, and how it is audited."""
    attack = attack_of(asked)
    defense, step, loss = (part(kind, getattr(asked, kind)) for kind in ("defense", "step", "loss"))
    material = load(asked, defense, step)
    audit = Audit(
        model=material.model,
        victims=material.shadows,
        attack=attack,
        defense=defense,
        step=material.step,
        loss=loss,
        seed=asked.seed,
        updates=Updates(batch_norm=asked.batch_norm.value),
        resources=resources_of(asked),
        scoring=_scoring(asked, material),
        names=material.names,
    )
    return material, audit


def _scoring(asked: options.Captured, material: Material) -> Scoring:
    """How reconstructions are judged; without the truth only by which SSIM shadows count as read."""
    if material.truth is None:
        return Scoring(threshold=asked.threshold)
    others = None
    if material.dataset is not None:
        beside = material.shadows or material.truth
        others = data.pick_decoys(material.dataset, beside, asked.decoys, seed=asked.seed, split=asked.split)
    return scoring_of(asked, others)
