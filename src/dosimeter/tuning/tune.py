"""Tune a search attack on images of the attacker's own."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dosimeter import files, plain
from dosimeter.data import pick_shadows
from dosimeter.errors import DataError
from dosimeter.sweeps.trial import forget
from dosimeter.task import load_task
from dosimeter.tuning import journal
from dosimeter.tuning.ground import Ground
from dosimeter.tuning.journal import Journal
from dosimeter.tuning.setting import Tuning
from dosimeter.tuning.work import UNTUNED, Outcome, Work

MADE, WAIT = "made.json", 0.5


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of a tuning."""

    outcomes: list[Outcome]
    untuned: Outcome
    best: Outcome
    factor: float | None
    importances: dict[str, float]
    shadows: tuple[str, ...]
    images: list[str]
    seconds: float

    @property
    def cost(self) -> int:
        return sum(each.tried.cost for each in self.outcomes)

    def history(self, by: str) -> list[tuple[int, float, float]]:
        """(image-steps so far, score, best score so far) of every setting that was not stopped early."""
        spent, best, found = 0, -float("inf"), []
        for each in self.outcomes:
            spent += each.tried.cost
            if not each.tried.left:
                best = max(best, each.tried.score(by))
                found.append((spent, each.tried.score(by), best))
        return found


Told = Callable[[int, int | None, float], None]
"""How many settings are done, of how many, and the best score so far."""


def tune(asked: Tuning, folder: str | Path, told: Told | None = None) -> Found:
    """Try settings until all are done; what the folder has is not tried again, and other processes may join."""
    folder = Path(folder)
    files.check_writable(folder)
    forget()
    _agree(folder, asked)
    with Journal(folder) as kept:
        with kept.turn():
            ground = ground_of(asked, folder)
            if not kept.trials():
                kept.wait({}, {"stage": UNTUNED})
        work = Work(asked, ground, kept)
        while (taken := work.take()) is not None:
            if taken:
                work.attempt(taken)
            else:
                time.sleep(WAIT)  # for those that other processes try
            if told:
                told(*work.standing())
        return _found(asked, work)


def ground_of(asked: Tuning, folder: Path | None) -> Ground:
    """Shadows under the defense, of the model as it is or once it is trained, for which there must be a folder."""
    trial, prepared = asked.trial, asked.plain.prepare()
    trained = prepared.needs.run(folder / "training") if prepared.needs and folder else None
    audit = prepared.loaded().at(trained)
    audit = replace(audit, resources=replace(audit.resources, workers=asked.workers))
    weights = Path(trial.weights) if trial.weights else None
    dataset = load_task(
        trial.model, trial.data, seed=trial.seed, size=trial.size, channels=trial.channels, weights=weights
    ).dataset
    shadows = pick_shadows(dataset, asked.shadows, batch=trial.batch, seed=trial.seed, split=trial.split)
    return Ground(audit, shadows)


def _agree(folder: Path, asked: Tuning) -> None:
    """Refuse to mix two tunings in one folder."""
    path, now = folder / MADE, {"program": "dosimeter", "kind": "tune", **plain.of(asked.made)}
    if path.is_file():
        try:
            was = files.read_json(path)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path}: expected what was tuned here, but {files.reason(error)}; choose another --out."
            ) from None
        files.check_same(folder, was, now)
        return
    folder.mkdir(parents=True, exist_ok=True)
    files.replace_json(path, now)


def _found(asked: Tuning, work: Work) -> Found:
    done = work.outcomes()
    whole = [each for each in done if not each.tried.left]
    return Found(
        outcomes=done,
        untuned=next(each for each in done if not each.settings),
        best=max(whole, key=lambda each: (each.tried.score(asked.by), -each.number)),
        factor=work.factor,
        importances=journal.importances(work.kept.study),
        shadows=work.ground.shadows.ids,
        images=work.ground.images,
        seconds=sum(each.seconds for each in done),
    )
