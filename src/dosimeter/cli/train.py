"""`dosimeter train` and `dosimeter follow`: rounds of training, and what they leak on their way."""

import statistics
from dataclasses import replace
from functools import partial
from typing import Any

from dosimeter import checks, federated, spec
from dosimeter.auditing import estimate
from dosimeter.cli import options
from dosimeter.cli.config import refuse, write_config
from dosimeter.cli.console import err
from dosimeter.cli.dose import dose_of
from dosimeter.cli.parts import finish, going_on, live, place, planned, taking, tell_failed, trial_of
from dosimeter.errors import SettingError
from dosimeter.federated import Federation, Training
from dosimeter.federated.accounting import epsilon_words, privacy_words
from dosimeter.federated.setup import Setup
from dosimeter.federated.training import estimate_training, picked
from dosimeter.lines import Grid, say
from dosimeter.progress import duration
from dosimeter.sweeps import Store, run_all
from dosimeter.sweeps.leakage import Point, early_words, follow
from dosimeter.sweeps.places import HERE, Here

THEN = "dosimeter follow says what such updates leak"
THEN_FOLLOWED = "dosimeter compare says what defenses cost"


def run(asked: options.Train) -> None:
    """Train with each seed, and write and print the rounds."""
    refuse("Training attacks nobody", "batch_norm", "indices", "split")
    if asked.workers is not None:
        checks.count("A training", "workers", asked.workers)
    folder = place(asked, "train", apart=("seed", "seeds", "workers"), holds="seed-*")
    tasks = [federation(asked, seed, asked.defense) for seed in range(asked.seed, asked.seed + asked.seeds)]
    if asked.dry_run:
        planned(_training(asked, asked.defense, tasks[0], asked.seeds, asked.workers))
        return
    write_config(folder)
    found: dict[int, Training] = {}
    with going_on(folder):
        for task in tasks:
            found[task.seed] = federated.train(task, folder=folder / f"seed-{task.seed}", workers=asked.workers)
            say(err, _said(task.seed, found[task.seed]), hang=4)
    histories = {seed: each.history for seed, each in found.items()}
    document, said = {"command": "train", "trainings": histories}, about(asked, asked.defense)
    finish(asked, folder, document, _rounds(found), "training", about=said, histories=histories, then=THEN)


def run_follow(asked: options.Follow) -> None:
    """Train, and write and print what each of the rounds gives away."""
    moments = sorted(spec.several("--at", asked.at, int))
    if len({*moments}) < len(moments):
        raise SettingError("--at names a round twice; name each of them once.")
    servers = asked.server or ["honest"]
    folder = place(asked, "follow", apart=("at", "dose", "server", "workers"), store=True)
    trial = trial_of(asked, server="honest", decoys=0)
    audits = [replace(trial, server=words, round=each).prepare() for words in servers for each in moments]
    if asked.dry_run:
        first = audits[0]
        assert first.needs is not None
        each = estimate(replace(first.audit, resources=replace(first.audit.resources, workers=asked.workers)))
        task = first.needs.federation
        told = {"audits": f"{len(audits)}, {taking(each)} each"}
        planned(_training(asked, asked.defense, task, 1, asked.workers) | told)
        return
    write_config(folder)
    on = Here(threads=asked.workers) if asked.on == HERE else asked.on
    with going_on(folder), live() as tell, Store(folder) as store:
        run = partial(run_all, store=store, on=on, retry_failed=True, told=tell)
        points, failed = follow(
            trial, at=moments, servers=servers, store=store, run=run, measure=dose_of if asked.dose else None
        )
    if early := early_words(points):
        say(err, early)
    if points:
        said = f"{about(asked, asked.defense)}, {spec.shown(asked.attack)}. {early}"
        pictures = [[f"round {each['round']}", each["server"], each["trial"]] for each in points]
        document, page = {"command": "follow", "points": points}, {"points": points, "pictures": pictures}
        finish(asked, folder, document, _leaks(points), "leakage", about=said, then=THEN_FOLLOWED, **page)
    tell_failed(failed, folder)


def federation(asked: Any, seed: int, defense: str = "none") -> Federation:
    """The federation that the options describe, checked before anything is written."""
    for key in ("size", "channels"):  # of which a setup takes 0 for none
        checks.count("Images", f"a --{key}", getattr(asked, key))
    setup = Setup(
        model=asked.model,
        data=asked.data,
        protocol=asked.protocol,
        defense=defense,
        seed=seed,
        size=asked.size or 0,
        channels=asked.channels or 0,
        weights=str(asked.weights or ""),
        loss=asked.loss or "",
    )
    task = setup.federation()
    task.prepare()
    return task


def about(asked: Any, defense: str) -> str:
    return f"{spec.shown(asked.model)} on {spec.shown(asked.data)}, {asked.protocol}, defense {spec.shown(defense)}"


def _training(asked: Any, defense: str, task: Federation, seeds: int, workers: int | None = None) -> dict[str, str]:
    """What would be trained, and how long that takes by a round of one client, actually run."""
    seconds, protocol = estimate_training(task, workers=workers), task.protocol
    rounds = f"{protocol.rounds} rounds of {protocol.taking_part()} client(s), {seeds} time(s)"
    return {
        "task": about(asked, defense),
        "parameters": f"{sum(p.numel() for p in task.template.parameters()):,}",
        "training": f"{rounds}, about {duration(seconds * seeds)}",
    }


def _said(seed: int, found: Training) -> str:
    last, best = found.history[-1], picked(found.history)
    speed = sum(e["samples"] for e in found.history) / max(1e-9, sum(e["fitting"] for e in found.history))
    words = [f"seed {seed}: accuracy {last['accuracy']:.2%} after {len(found.history)} rounds"]
    if "validation_loss" in best:
        words.append(f"{best['accuracy']:.2%} in round {best['round']}, the best by validation loss")
    words.append(f"{speed:,.0f} samples/s")
    if spent := privacy_words(last):
        words.append(f"epsilon {spent}")
    if left_out := last.get("left_out"):
        words.append(f"{left_out} images left out of every epoch, since batch norm cannot train on one alone")
    return ", ".join(words)


def _rounds(found: dict[int, Training]) -> Grid:
    """Mean and spread over seeds of chosen rounds."""
    many = max(len(each.history) for each in found.values())
    shown = sorted({1, *(round(many * share) for share in (0.1, 0.25, 0.5, 0.75)), many} - {0})
    keyed = any("random_key" in each.history[-1] for each in found.values())
    private = _delta([each.history[-1] for each in found.values()])
    head = ["round", "test accuracy", "test loss", "train loss", *(["with a random key"] if keyed else [])]
    head += [f"epsilon (delta {private})"] if private else []
    table = Grid(*head)
    for round_ in shown:
        entries = [each.history[round_ - 1] for each in found.values() if len(each.history) >= round_]
        cells = [_spread([e["accuracy"] for e in entries], percent=True), _spread([e["loss"] for e in entries])]
        cells.append(_spread([e["train_loss"] for e in entries]))
        cells += [_spread([e["random_key"] for e in entries], percent=True)] if keyed else []
        cells += [epsilon_words(max(entries, key=lambda e: e.get("epsilon") or 0.0))] if private else []
        table.add_row(str(round_), *cells)
    return table


def _delta(figures: list[dict[str, Any]]) -> str:
    """The delta that DP-SGD's epsilon is told for; empty where it does not run."""
    return next((f"{each['delta']:g}" for each in figures if "delta" in each), "")


def _spread(values: list[float], *, percent: bool = False) -> str:
    scale, unit = (100, " %") if percent else (1, "")
    mean = f"{scale * statistics.mean(values):.{2 if percent else 4}f}"
    return mean + (f" ± {scale * statistics.stdev(values):.2f}" if len(values) > 1 else "") + unit


def _leaks(points: list[Point]) -> Grid:
    head = ["round", "server", "verdict", "read", "SSIM", "blind", "PSNR", "accuracy", "norm"]
    private = _delta(points)
    head += [f"epsilon (delta {private})"] if private else []
    dosed = all("dose" in point for point in points)
    head += ["dose"] if dosed else []
    table = Grid(*head)
    for point in points:
        norms = [image["norm"] for image in point["images"]]
        table.add_row(
            str(point["round"]),
            point["server"],
            point["verdict"],
            f"{point['success']['hits']} of {point['success']['of']}",
            f"{point['ssim']:.3f}" + (f" ({point['originals']['ssim']:.3f} originals)" if "originals" in point else ""),
            f"{point['blind_ssim']:.3f}",
            f"{point['psnr']:.2f}",
            f"{point['accuracy']:.2%}",
            f"{statistics.median(norms):.3g}",
            *([epsilon_words(point)] if private else []),
            *([f"{point['dose']['share']:.0%}"] if dosed else []),
        )
    return table
