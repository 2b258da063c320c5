"""The map of the field: every defense under every attack made for it, on three models, before and after training.

A place on it is one panel (`--attack auto`): what each of its attacks reads of the same victims, what the evidence is
where it reads nothing, and what the defense costs in accuracy.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dosimeter.auditing import AUTO, Result
from dosimeter.auditing.evidence import Evidence, tally
from dosimeter.auditing.verdict import weigh
from dosimeter.errors import DosimeterError
from dosimeter.papers.estimate import Estimate, estimated
from dosimeter.papers.item import Cut, Scale
from dosimeter.sweeps import Course, Entry, Status, Store, Trial, run_all
from dosimeter.sweeps.places import HERE
from dosimeter.sweeps.run import Told
from dosimeter.sweeps.trial import forget

MODELS = {"MLP": "mlp", "CNN": "cnn", "ViT": "vit-released"}
DEFENSES = {
    "none": "none",
    "noise 0.001": "noise:sigma=0.001",
    "noise 0.01": "noise:sigma=0.01",
    "noise 0.1": "noise:sigma=0.1",
    "Laplace 0.1": "laplace:scale=0.1",
    "pruning 90 %": "prune:ratio=0.9",
    "pruning 99 %": "prune:ratio=0.99",
    "DP-SGD": "dp-sgd:clip=1,sigma=0.01",
    "Soteria": "soteria",
    "ATS": "ats",
    "PRECODE": "precode",
    "PPP 0.01": "ppp:sigma=0.01",
    "PPP 0.1": "ppp:sigma=0.1",
    "CVB": "cvb",
    "FedKL": "fedkl",
}
TRAINING = {
    "smoke": "ppp:rounds=1,epochs=none,steps=1",
    "laptop": "ppp:rounds=3,clients=5,epochs=none,steps=4",
    "paper": "ppp:perturbed=update",
}
CUTS = {"smoke": Cut(victims=1, panel=2), "laptop": Cut(victims=2, panel=40), "paper": Cut(victims=128)}


class Attacked(NamedTuple):
    """What one attack of a panel comes to."""

    attack: str
    read: int
    of: int
    ssim: float
    evidence: str


class Place(NamedTuple):
    """A defense of a model, before or after training."""

    defense: str
    model: str
    trained: bool
    attacks: tuple[Attacked, ...] = ()
    refused: int = 0  # attacks that do not fit the model
    verdict: str = ""
    evidence: str = ""
    read: tuple[int, int] = (0, 0)  # images, by the strongest attack
    hidden: int = 0  # images that it does not read although its search explains their updates
    accuracy: float | None = None  # in percent; of the trained model
    why_not: str = ""


def trials(scale: Scale, *, models: Sequence[str] = tuple(MODELS), defenses: Sequence[str] = tuple(DEFENSES)) -> list[
    tuple[Place, Trial, Course | None]
]:  # fmt: skip
    """What is run for every place."""
    found, cut = [], CUTS[scale]
    for defense in defenses:
        for model in models:
            for trained in (False, True):
                trial = Trial(
                    model=MODELS[model], data="cifar10", defense=DEFENSES[defense], attack=AUTO, steps=cut.panel,
                    victims=cut.victims or 128, decoys=0, protocol=TRAINING[scale] if trained else None,
                )  # fmt: skip
                found.append((Place(defense, model, trained), trial, trial.training))
    return found


def left(folder: str | Path, *, scale: Scale = "laptop", on: str = HERE) -> Estimate:
    """What of the map the store does not have; nothing is run."""
    forget()
    asked = trials(scale)
    fit = [(trial, course) for _, trial, course in asked if not _refused(trial)]
    wanted = [each for pair in fit for each in pair if each is not None]
    return estimated("map", wanted, folder, on=on, missing=len(asked) - len(fit))


def cut_of(scale: Scale) -> str:
    """How much of it a scale runs, in words."""
    cut = CUTS[scale]
    return f"{cut.victims} images a cell, {cut.panel} steps of every search, trained by `{TRAINING[scale]}`"


def chart(
    folder: str | Path,
    *,
    scale: Scale = "laptop",
    on: str = HERE,
    told: Told | None = None,
    models: Sequence[str] = tuple(MODELS),
    defenses: Sequence[str] = tuple(DEFENSES),
) -> list[Place]:
    """Run what the store does not have of the map, and give all of its places."""
    forget()
    asked = trials(scale, models=models, defenses=defenses)
    fits = [_refused(trial) for _, trial, _ in asked]
    ready = [(trial, course) for (_, trial, course), why in zip(asked, fits, strict=True) if not why]
    with Store(folder) as store:
        wanted: list[Trial | Course] = [each for pair in ready for each in pair if each is not None]
        entries = iter(run_all(wanted, store, on=on, retry_failed=True, told=told) if wanted else [])
        places = []
        for (place, _, course), why in zip(asked, fits, strict=True):
            if why:
                places.append(place._replace(why_not=why))
                continue
            audit = next(entries)
            training = next(entries) if course is not None else None
            places.append(_placed(place, audit, training, store))
    return places


def _refused(trial: Trial) -> str:
    """Why a defense does not go with a model, in a line, or nothing."""
    try:
        loaded = replace(trial, protocol=None).prepare().loaded()
        audit = loaded.audit
        assert audit.victims is not None
        _, _, channels, height, width = audit.victims.images.shape
        audit.defense.on_model(audit.model, (channels, height, width))
    except DosimeterError as reason:
        return str(reason).partition(";")[0]
    return ""


def _placed(place: Place, audit: Entry, training: Entry | None, store: Store) -> Place:
    if audit.status is not Status.DONE:
        return place._replace(why_not=audit.reason)
    result = store.result(audit.digest)
    accuracy = None
    if training is not None and training.found:
        accuracy = 100 * float(training.found["accuracy"])
    told = [_attacked(each.attack, each.result) for each in result.panel if each.result is not None]
    return place._replace(
        attacks=tuple(told),
        refused=sum(each.result is None for each in result.panel),
        verdict=weigh(result).kind.value,
        evidence=tally(result.scores.evidence),
        read=(result.scores.success.hits, result.scores.success.of),
        hidden=sum(each.evidence == Evidence.HIDDEN for each in result.records),
        accuracy=accuracy,
    )


def _attacked(name: str, result: Result) -> Attacked:
    scores = result.scores
    return Attacked(name, scores.success.hits, scores.success.of, scores.nearest["ssim"].mean, tally(scores.evidence))
