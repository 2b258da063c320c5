"""`dosimeter train` and `dosimeter follow`: rounds of training, and what they leak on their way."""

import statistics
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dosimeter import data, federated, servers, spec
from dosimeter.attacks import presets
from dosimeter.auditing import Audit, Resources, Scoring
from dosimeter.cli.console import drawing, err, out, refusals
from dosimeter.cli.parts import place
from dosimeter.federated import Training
from dosimeter.federated.accounting import epsilon_words, privacy_words
from dosimeter.federated.leakage import Point, early_words, follow
from dosimeter.federated.setup import Setup
from dosimeter.federated.training import picked
from dosimeter.reports.training import write_leakage, write_training

MODEL = typer.Option(help="A model, with settings: convnet:width=32. Or path/to/file.py:function, yours.")
DATA = typer.Option("--data", help="A data set's name, or an .npz file.")
PROTOCOL = typer.Option(help=f"One of {', '.join(federated.BY_NAME)}, with settings: ppp:rounds=20,clients=5.")
DEFENSE = typer.Option(help="A defense, with settings: noise:sigma=0.01. Several are joined by |.")
PAGE = "training.html"


def train_command(
    model: Annotated[str, MODEL] = "cnn",
    data_: Annotated[str, DATA] = "mnist-5k",
    protocol: Annotated[str, PROTOCOL] = "ppp:rounds=20",
    defense: Annotated[str, DEFENSE] = "none",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings that differ in their random numbers.")] = 1,
    seed: Annotated[int, typer.Option(help="The first of them; it names every random stream.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Clients at once; one a core otherwise.")] = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder that keeps every round; a training that was stopped goes on.")
    ] = None,
) -> None:
    """Train a federation in this process and report its accuracy, round by round."""
    with refusals():
        folder = place(out_, "train", model=model, data=data_, protocol=protocol, defense=defense)
        found: dict[int, Training] = {}
        try:
            for each in range(seed, seed + seeds):
                task = Setup(model=model, data=data_, protocol=protocol, defense=defense, seed=each).federation()
                found[each] = federated.train(task, folder=folder / f"seed-{each}", workers=workers)
                err.print(_said(each, found[each]), highlight=False)
        except KeyboardInterrupt:
            err.print(f"Interrupted; the same command goes on from the last round kept in {folder}.", highlight=False)
            raise typer.Exit(130) from None
        out.print(_rounds(found))
        with drawing(folder):
            write_training(
                folder / PAGE,
                {seed_: each.history for seed_, each in found.items()},
                about=_about(model, data_, protocol, defense),
            )
    out.print(f"report  {folder / PAGE}", highlight=False, soft_wrap=True)


def follow_command(
    model: Annotated[str, MODEL] = "cnn",
    data_: Annotated[str, DATA] = "mnist-5k",
    protocol: Annotated[str, PROTOCOL] = "bayes:steps=1,rounds=100",
    at: Annotated[
        str, typer.Option(help="Rounds after which the victims are attacked: 0+10+20+50.")
    ] = "0+10+20+50+100",
    defense: Annotated[str, DEFENSE] = "none",
    attack: Annotated[str, typer.Option(help="An attack, with settings: ig:tv=0.01,restarts=2.")] = "ig",
    steps: Annotated[int | None, typer.Option(help="Steps of the attack; its own default otherwise.")] = None,
    server: Annotated[
        list[str] | None, typer.Option(help="A server: honest, permuted-rows (flips labels). May be repeated.")
    ] = None,
    victims: Annotated[int, typer.Option(help="How many updates to attack.")] = 8,
    batch: Annotated[int, typer.Option(help="Images in every update.")] = 1,
    split: Annotated[str, typer.Option(help="The split that victims come from: train or test.")] = "train",
    threshold: Annotated[float, typer.Option(help="SSIM from which an image counts as read.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; one a core otherwise.")] = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder that keeps all that is done; a run that was stopped goes on.")
    ] = None,
) -> None:
    """Train, and attack the same victims at chosen rounds: leakage and accuracy over training."""
    with refusals():
        moments = spec.several("--at", at, int)
        chosen = spec.make("attack", attack, presets.BY_NAME, steps=steps)
        folder = place(
            out_, "follow", model=model, data=data_, protocol=protocol, defense=defense, attack=attack, steps=steps,
            victims=victims, batch=batch, split=split, threshold=threshold, seed=seed,
        )  # fmt: skip
        task = Setup(model=model, data=data_, protocol=protocol, defense=defense, seed=seed).federation()
        audit = Audit(
            model=task.model,
            victims=data.pick(task.dataset, victims, batch=batch, seed=seed, split=split),
            attack=chosen,
            seed=seed,
            resources=Resources(workers=workers),
            scoring=Scoring(threshold=threshold),
            names={"model": spec.shown(model), "data": spec.shown(data_)},
        )
        try:
            points = follow(
                task,
                audit,
                at=set(moments),
                servers=[spec.make("server", words, servers.BY_NAME) for words in server or ["honest"]],
                folder=folder,
            )
        except KeyboardInterrupt:
            err.print(f"Interrupted; the same command goes on from what is kept in {folder}.", highlight=False)
            raise typer.Exit(130) from None
        if early := early_words(points):
            err.print(early, highlight=False, soft_wrap=True)
        out.print(_leaks(points))
        with drawing(folder):
            about = f"{_about(model, data_, protocol, defense)}, {spec.shown(attack)}. {early}"
            write_leakage(folder / PAGE, points, about=about)
    out.print(f"report  {folder / PAGE}", highlight=False, soft_wrap=True)


def _about(model: str, data_: str, protocol: str, defense: str) -> str:
    return f"{spec.shown(model)} on {spec.shown(data_)}, {protocol}, defense {spec.shown(defense)}"


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


def _rounds(found: dict[int, Training]) -> Table:
    """Mean and spread over seeds of chosen rounds."""
    many = max(len(each.history) for each in found.values())
    shown = sorted({1, *(round(many * share) for share in (0.1, 0.25, 0.5, 0.75)), many} - {0})
    keyed = any("random_key" in each.history[-1] for each in found.values())
    private = _delta([each.history[-1] for each in found.values()])
    head = ["round", "test accuracy", "test loss", "train loss", *(["with a random key"] if keyed else [])]
    head += [f"epsilon at delta {private}"] if private else []
    table = Table(*head, box=None, pad_edge=False)
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


def _leaks(points: list[Point]) -> Table:
    head = ["round", "server", "read", "SSIM", "without it", "PSNR", "accuracy", "norm"]
    private = _delta(points)
    head += [f"epsilon at delta {private}"] if private else []
    table = Table(*head, box=None, pad_edge=False)
    for point in points:
        norms = [image["norm"] for image in point["images"]]
        table.add_row(
            str(point["round"]),
            point["server"],
            point["success"]["text"],
            f"{point['ssim']:.3f}",
            f"{point['blind_ssim']:.3f}",
            f"{point['psnr']:.2f}",
            f"{point['accuracy']:.2%}",
            f"{statistics.median(norms):.3g}",
            *([epsilon_words(point)] if private else []),
        )
    return table
