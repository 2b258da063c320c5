"""`dosimeter tune`: choose an attack's settings on images of the attacker's own."""

import time
from pathlib import Path
from statistics import fmean
from typing import Any

from dosimeter import plain
from dosimeter.cli import options
from dosimeter.cli.config import write_config
from dosimeter.cli.console import err, hint, out
from dosimeter.cli.parts import finish, going_on, place, planned, print_json, safe
from dosimeter.lines import Grid, fact, say
from dosimeter.metrics import Rate
from dosimeter.progress import bar, duration
from dosimeter.sweeps import Trial
from dosimeter.tuning import presets
from dosimeter.tuning.compare import Compared, compare, saved
from dosimeter.tuning.ground import Ground
from dosimeter.tuning.presets import Mean, OnVictims
from dosimeter.tuning.setting import Tuning, informed
from dosimeter.tuning.spaces import DEFAULT, space_of
from dosimeter.tuning.tune import Found, ground_of, tune

USUAL = 64
"""Settings that are tried where nobody said how many."""

HEAD = ("attack", "on", "PSNR", "SSIM", "images read", "verdict")


def run(asked: options.Tune) -> None:
    """Tune, keep the preset, and show both attacks on shadows and on victims."""
    tuning = _tuning(asked)
    folder = place(
        asked,
        "tune",
        apart=("trials", "budget", "at_once", "name", "workers", "overwrite", "victims"),
        holds="tune.jsonl",
    )
    usual = safe({"attack": asked.attack, "model": asked.model, "defense": asked.defense})
    name = usual if asked.name is None else asked.name
    goes = presets.check_name(name, overwrite=asked.overwrite or asked.dry_run, folder=folder)
    if asked.dry_run:
        _plan(tuning, folder)
        return
    write_config(folder)
    with going_on(folder):
        with bar(f"tune {name}", tuning.total) as advance:

            def told(done: int, total: int | None, best: float) -> None:
                advance(done, f"best {best:.2f}", total=total)

            found = tune(tuning, folder, told)
        preset = presets.preset_of(name, tuning, found)
        presets.write(preset, folder / goes.name, goes)
        both = presets.on_victims(tuning, goes, folder / "victims") if asked.victims else {}
    rows = _rows(found, both)
    table = Grid(*HEAD)
    for row in rows:
        table.add_row(*row)
    document = {"command": "tune", "preset": str(goes), **plain.of(preset), "victims": _document(both)}
    document |= {"importances": found.importances, "trials": [_trial(each) for each in found.outcomes]}
    shares = {key: f"{value:.2f}" for key, value in found.importances.items()}
    settings = [[key, _said(value), shares.get(key, "-")] for key, value in preset.settings.items()]
    about = f"{len(found.outcomes)} settings of {tuning.space.name} by {tuning.sampler}, {found.cost:,} image-steps on "
    about += f"{len(found.shadows)} shadows in {duration(found.seconds)}. Victims had no part in it."
    finish(
        asked, folder, document, table, "tune", about=about, by=asked.by, history=found.history(asked.by),
        head=list(HEAD), rows=rows, settings=settings, matters=found.importances,
        then=f"use it as --attack tuned:{name}",
    )  # fmt: skip
    if not asked.json:
        fact(out, "preset", f"{goes}  ({preset.attack})")
    if both and both["tuned"].psnr.mean < both["untuned"].psnr.mean:
        say(
            err,
            "On victims the tuned attack is worse than the untuned one: what helped on shadows does not carry over.",
        )


def run_bench(asked: options.TuneBench) -> None:
    """Print a line for every way and seed, their means, and what a batch saves."""
    task = {key: getattr(asked, key) for key in ("model", "data", "defense", "attack", "steps", "seed", "victims")}
    space = space_of("default", asked.set, asked.attack)
    grid = space if asked.space == "default" else space_of(asked.space, (), asked.attack)
    tuning = Tuning(trial=Trial(**task), space=space, sampler="grid", points=asked.points, shadows=asked.shadows)
    with going_on(asked.out), bar("bench tune", None) as advance:
        batch = saved(tuning, settings=len(tuning.grid()))
        seeds = range(asked.seed, asked.seed + asked.seeds)
        found = list(compare(tuning, grid, asked.sampler, seeds, asked.out, lambda done, *_: advance(done)))
    if asked.json:
        print_json({"ways": plain.of([_compared(each) for each in found]), "batch": batch._asdict()})
        return
    head = (
        "seed",
        "by",
        "settings",
        "stopped early",
        "image-steps",
        "time",
        "shadows, dB",
        "victims, dB",
        "SSIM",
        "read",
    )
    table = Grid(*head)
    for each in found:
        cells = (
            f"{each.shadows:.2f}",
            _mean(each.victims.psnr, 2),
            _mean(each.victims.ssim, 3),
            each.victims.read.text,
        )
        counts = (f"{each.tried}", f"{each.stopped}", f"{each.cost:,}", duration(each.seconds))
        table.add_row(str(each.seed), each.way, *counts, *cells)
    table.print(out)
    out.print()
    means = Grid("by", "shadows, dB", "victims, dB", title=f"Means of {asked.seeds} seeds")
    before = [(each.untuned, each.before.psnr.mean) for each in found if each.way == "grid"]
    for name in ("untuned", *dict.fromkeys(each.way for each in found)):
        mine = before if name == "untuned" else [(e.shadows, e.victims.psnr.mean) for e in found if e.way == name]
        means.add_row(name, *(f"{fmean(values):.2f}" for values in zip(*mine, strict=True)))
    means.print(out)
    out.print()
    said = f"{batch.settings} settings on {batch.shadows} shadows took {batch.times:.1f} times as much of a core as one"
    say(out, f"{said} ({batch.many:.1f} s and {batch.one:.2f} s)")
    hint("dosimeter tune chooses settings for a model of yours")


def _compared(each: Compared) -> dict[str, Any]:
    told = {key: value for key, value in each._asdict().items() if key not in ("victims", "before")}
    return told | _document({"victims": each.victims, "before": each.before})


def _tuning(asked: options.Tune) -> Tuning:
    sampler = asked.sampler or ("tpe" if asked.space == DEFAULT else "grid")
    grid = sampler == "grid"
    trials = asked.trials if asked.trials or grid or asked.budget else USUAL
    task = {key: getattr(asked, key) for key in ("model", "data", "size", "channels", "seed", "split", "batch")}
    task |= {
        key: getattr(asked, key) for key in ("attack", "steps", "defense", "step", "server", "protocol", "threshold")
    }
    weights = str(asked.weights) if asked.weights else None
    trial = informed(Trial(**task, weights=weights, victims=max(1, asked.victims)))
    found = Tuning(
        trial=trial,
        space=space_of(asked.space, asked.set or (), trial.attack),
        trials=trials,
        budget=asked.budget,
        sampler=sampler,
        prune=asked.prune or ("none" if grid else "halving"),
        points=asked.points,
        shadows=asked.shadows,
        by=asked.by,
        at_once=asked.at_once,
        workers=asked.workers,
    )
    trial.prepare()  # which refuses more victims than there are
    return found


def _plan(tuning: Tuning, folder: Path) -> None:
    """What would run, and how long by a few steps of one batch, actually taken."""
    ground, total = ground_of(tuning, None), tuning.total
    rate = _rate(tuning, ground)
    most = None if total is None else total * ground.cost_of(tuning.search({})) * tuning.space.restarts
    most = tuning.budget if most is None else min(most, tuning.budget or most)
    axes = ", ".join(f"{key} {axis}" for key, axis in tuning.space.axes.items())
    rows = {
        "attack": tuning.words({}),
        "space": f"{tuning.space.name}: {axes}",
        "settings": f"{'as many as the budget allows' if total is None else total}, by {tuning.sampler}",
        "shadows": ", ".join(ground.shadows.ids),
    }
    if most is not None:
        rows["time"] = f"at most {duration(most / rate)} for {most:,} image-steps, at {rate:,.0f} a second"
    planned(rows | {"folder": str(folder)})


def _rate(tuning: Tuning, ground: Ground) -> float:
    """Image-steps a second of a batch that is under way."""
    took = []
    for steps in (4, 16):
        began = time.perf_counter()
        cost = sum(each.cost for each in ground.attempt([tuning.search({"steps": steps})] * tuning.at_once))
        took.append((cost, time.perf_counter() - began))
    return (took[1][0] - took[0][0]) / max(1e-3, took[1][1] - took[0][1])


def _rows(found: Found, both: dict[str, OnVictims]) -> list[list[str]]:
    rows = []
    for name, each in (("untuned", found.untuned.tried), ("tuned", found.best.tried)):
        read = Rate(each.read, each.of, picked_from=len(found.outcomes) if name == "tuned" else 1)
        rows.append([name, "shadows", f"{each.psnr:.2f}", f"{each.ssim:.3f}", read.text, "-"])
    for name, one in both.items():
        rows.append([name, "victims", _mean(one.psnr, 2), _mean(one.ssim, 3), one.read.text, one.verdict])
    return rows


def _mean(value: Mean, digits: int) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.half is None else f" ± {value.half:.{digits}f}")


def _document(both: dict[str, OnVictims]) -> dict[str, Any]:
    return {
        name: {
            "attack": each.attack, "psnr": each.psnr._asdict(), "ssim": each.ssim._asdict(), "read": each.read.hits,
            "of": each.read.of, "interval": [each.read.low, each.read.high], "verdict": each.verdict,
        }
        for name, each in both.items()
    }  # fmt: skip


def _trial(each: Any) -> dict[str, Any]:
    return {"number": each.number, "words": each.words, **plain.of(each.tried._asdict())}


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
