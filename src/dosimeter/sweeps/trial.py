"""A trial in the words of the command line: an audit of a model as it is or after a training, or a training alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F

from dosimeter import data, federated, fingerprint, spec
from dosimeter import store as runs
from dosimeter.attacks import AverageRounds, Steps
from dosimeter.auditing import AUTO, Audit, Resources, Result, Scoring, Updates, audit_all, auto, part, perform
from dosimeter.auditing.job import Job
from dosimeter.auditing.panel.panel import attacks_of, audits_of
from dosimeter.errors import DataError, SettingError, unknown
from dosimeter.federated import Federation, Training, as_audited, train
from dosimeter.federated.federation import CACHED
from dosimeter.federated.training import check_rounds, picked, score
from dosimeter.metrics import Lpips, weights_at_hand
from dosimeter.networks import activations
from dosimeter.sweeps import versions
from dosimeter.sweeps.store import Store
from dosimeter.task import Task, load_task
from dosimeter.types import Victims


@dataclass(frozen=True, kw_only=True)
class _Words:
    """What a training and an audit have in common."""

    model: str = "cnn"
    data: str = "mnist-5k"
    defense: str = "none"
    seed: int = 0
    loss: str | None = None
    size: int | None = None
    channels: int | None = None
    weights: str | None = None
    protocol: str | None = None
    round: int | None = None  # of the training, after which it is looked at; the last by default
    via: tuple[int, ...] = ()  # rounds before it whose models are kept as well, in order

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(each.default, tuple):  # one form, whoever made it
                value = getattr(self, each.name)
                object.__setattr__(self, each.name, (value,) if isinstance(value, str) else tuple(value))

    @property
    def words(self) -> dict[str, Any]:
        """What is not by default, which is enough to make it again."""
        usual = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


@dataclass(frozen=True, kw_only=True)
class Course(_Words):
    """A training with a defense, by a protocol; audits share it."""

    def prepare(self) -> "Trained":
        """What runs it, checked; the same until files are looked at anew (`forget`)."""
        return _trained(self)


@dataclass(frozen=True, kw_only=True)
class Trial(_Words):
    """What `dosimeter audit` takes; `protocol` is how the model is trained before, with the defense."""

    attack: str = AUTO
    steps: Steps | None = None
    victims: int = 8
    batch: int = 1
    distinct: bool = False
    split: str = "train"
    indices: str | None = None  # 3+17, instead of drawn victims
    shadows: int | None = None  # so many images of the attacker's own, one an update, in place of the victims
    step: str = "gradient"
    server: str = "honest"
    rounds: int = 1
    same_client: int = 1
    batch_norm: str = "running"
    threshold: float = 0.5
    decoys: int = 99
    metrics: tuple[str, ...] = ()  # scores of the user's own, path/to/file.py:NAME
    lpips: bool = False  # whether images are scored by LPIPS too, with the weights that are at hand
    budget: float = 4.0
    minutes: float | None = None
    until_read: bool = False  # whether a panel ends once its attacks have read every image

    @property
    def training(self) -> Course | None:
        """The training that it needs."""
        if self.protocol is None:
            return None
        return Course(**{each.name: getattr(self, each.name) for each in fields(Course)})

    def prepare(self) -> "Prepared":
        """What runs it, checked; the same until files are looked at anew (`forget`)."""
        return _prepared(self)


@dataclass(frozen=True, eq=False)
class Prepared:
    """An audit that can be run, in whatever process. What it takes is loaded when it is looked at, and not held."""

    asked: Trial
    digest: str
    needs: "Trained | None"

    kind = "audit"

    @property
    def words(self) -> dict[str, Any]:
        return self.asked.words

    @property
    def audit(self) -> Audit:
        """Of the model before training."""
        return self.loaded().audit

    @property
    def steps(self) -> Steps | None:
        """Of a panel; None for one attack."""
        return self.loaded().steps

    def loaded(self) -> "_Audited":
        return _same(self, _audited(self.asked))

    def run(self, folder: Path, needed: Training | None = None, *, workers: int | None = None) -> Result:
        return self.loaded().run(folder, needed, workers=workers)

    def keep(self, store: Store, found: Result, seconds: float) -> None:
        store.finish(self.digest, found)

    def read(self, folder: Path, *, workers: int | None = None) -> Result:
        found = runs.read(folder)
        assert isinstance(found, Result)
        return found


@dataclass(frozen=True, eq=False)
class Trained:
    """A training that trials share, up to a round; it goes on from what its folder has, or from an earlier round."""

    asked: Course
    digest: str
    needs: "Trained | None"

    kind = "training"

    @property
    def words(self) -> dict[str, Any]:
        return self.asked.words

    @property
    def federation(self) -> Federation:
        return self.loaded().federation

    def loaded(self) -> "_Federated":
        return _same(self, _federated(self.asked))

    def run(self, folder: Path, needed: Training | None = None, *, workers: int | None = None) -> Training:
        return self.loaded().run(folder, needed, workers=workers)

    def keep(self, store: Store, found: Training, seconds: float) -> None:
        last = found.history[-1] if found.history else score(self.federation, found.state, found.private, 0)
        chosen = picked(found.history) if found.history else last
        rounds = {"last_accuracy": last["accuracy"], "rounds": len(found.history)}
        rounds |= {key: chosen[key] for key in ("accuracies", "random_key") if key in chosen}
        store.trained(self.digest, {"accuracy": chosen["accuracy"]} | rounds, seconds)

    def read(self, folder: Path, *, workers: int | None = None) -> Training:
        return self.run(folder, workers=workers)


class _Audited(NamedTuple):
    audit: Audit
    steps: Steps | None
    federation: Federation | None  # that trains the model before
    digest: str

    def run(self, folder: Path, needed: Training | None = None, *, workers: int | None = None) -> Result:
        """Attack; after Ctrl-C `Interrupted` is raised."""
        audit = self.at(needed)
        audit = replace(audit, resources=replace(audit.resources, workers=workers))
        return perform(audit) if self.steps is None else audit_all(audit, steps=self.steps)

    def at(self, trained: Training | None) -> Audit:
        """The audit of the model as it was trained."""
        if self.federation is None or trained is None:
            return self.audit
        return replace(self.audit, model=self.federation.model, defense=as_audited(self.federation, trained))

    def demand(self) -> tuple[int, int]:
        """GPUs, and the memory that the plan of its most demanding attack has."""
        audit = replace(self.audit, resources=replace(self.audit.resources, workers=1))
        sizes = []
        for each in [audit] if self.steps is None else audits_of(audit, steps=self.steps):
            with suppress(SettingError):  # which the panel refuses
                sizes.append(Job(each).plan.bytes)
        return int(audit.resources.device != "cpu"), max(sizes, default=0)


class _Federated(NamedTuple):
    federation: Federation
    last: int  # round
    digest: str

    def run(self, folder: Path, needed: Training | None = None, *, workers: int | None = None) -> Training:
        return train(
            self.federation,
            folder=folder,
            begin=needed,
            until=self.last,
            tested=None if self.federation.protocol.validation else {self.last},  # by which any round may be chosen
            processes=None if workers is None else False,  # which processes of our own may not have
            workers=workers,
            progress=False,
        )

    def demand(self) -> tuple[int, int]:
        """No GPU, and the memory of a client's step and of the images that are kept ready."""
        federation = self.federation
        model, shape = federation.model, federation.dataset.shape
        weights = sum(each.numel() for each in model.parameters())
        active = activations(model, lambda: model(torch.zeros(2, *shape))) // 2
        images = 4 * math.prod(shape) * len(federation.dataset.train_labels)
        return 0, 4 * (8 * weights + 4 * federation.protocol.batch_size * active) + min(images, CACHED)


M = TypeVar("M", _Audited, _Federated)


def _same(one: Prepared | Trained, made: M) -> M:
    """What was loaded again, if it still is what the digest was taken of."""
    if made.digest != one.digest:
        raise DataError("A file that this trial is made of was changed while it waited; run it again.")
    return made


def forget() -> None:
    """Have files read anew, which may have changed since they were loaded; every sweep begins with that."""
    for each in (_prepared, _task, _audited, _federation):
        each.cache_clear()


@cache
def _prepared(trial: Trial) -> Prepared:
    return Prepared(trial, _audited(trial).digest, _trained(trial.training) if trial.training else None)


@lru_cache(maxsize=2)
def _audited(trial: Trial) -> _Audited:
    task = _task(trial.model, trial.data, trial.seed, trial.size, trial.channels, trial.weights)
    steps = auto(trial.attack, trial.steps)
    attack = part("attack", "ig") if steps else part("attack", trial.attack, steps=trial.steps)
    attack = AverageRounds(attack=attack) if trial.rounds > 1 else attack
    audit = Audit(
        model=task.model,
        victims=_victims(trial, task.dataset),
        attack=attack,
        **{kind: part(kind, getattr(trial, kind)) for kind in ("defense", "step", "server", "loss")},
        seed=trial.seed if trial.shadows is None else trial.seed + 1,
        updates=Updates(batch_norm=trial.batch_norm, rounds=trial.rounds, same_client=trial.same_client),  # type: ignore[arg-type]
        resources=Resources(
            budget=int(trial.budget * 2**30),
            steady=True,
            minutes=trial.minutes,
            until_read=trial.until_read,
            progress=False,
        ),
        names=task.names | {"split": trial.split},
    )
    audit = replace(audit, scoring=_scoring(trial, task.dataset, audit.victims))
    parts = [attack, audit.defense, audit.server, task.model]
    parts += attacks_of(audit, steps=steps) if steps else []
    whole = [
        {**audit.made, "attack": AUTO if steps else audit.made["attack"]},
        fingerprint.of(task.model),
        task.names["fingerprint"],
        audit.scoring,
    ]
    course = _federated(trial.training) if trial.training else None
    digest = fingerprint.of([whole, steps, course and course.digest, versions.of(*parts)])
    return _Audited(audit, steps, course and course.federation, digest)


def _victims(trial: Trial, dataset: data.Dataset) -> Victims:
    places = None if trial.indices is None else data.places_of(trial.indices, trial.batch)
    how: dict[str, Any] = {"batch": trial.batch, "seed": trial.seed, "split": trial.split}
    victims = data.pick(dataset, trial.victims, indices=places, distinct=trial.distinct, **how)
    if trial.shadows is None:
        return victims
    return data.pick_shadows(dataset, trial.shadows, seed=trial.seed, split=trial.split, victims=victims)


def _scoring(trial: Trial, dataset: data.Dataset, victims: Victims | None) -> Scoring:
    assert victims is not None
    decoys = None
    if trial.decoys:
        many = data.pool_of(dataset, trial.decoys)
        decoys = data.pick_decoys(dataset, victims, many, seed=trial.seed, split=trial.split)
    own = tuple(part("metric", each) for each in trial.metrics)
    seen = tuple(Lpips.load(each) for each in weights_at_hand()) if trial.lpips else ()
    return Scoring(threshold=trial.threshold, decoys=decoys, among=trial.decoys or None, metrics=own, lpips=seen)


def _trained(course: Course) -> Trained:
    needs = _trained(replace(course, round=course.via[-1], via=course.via[:-1])) if course.via else None
    return Trained(course, _federated(course).digest, needs)


def _federated(course: Course) -> _Federated:
    federation = _federation(replace(course, round=None, via=()))
    check_rounds(federation, () if course.round is None else (course.round,))
    last = federation.protocol.rounds if course.round is None else course.round
    return _Federated(federation, last, fingerprint.of([federation.made, last]))


@lru_cache(maxsize=2)
def _federation(course: Course) -> Federation:
    if course.protocol is None:
        raise SettingError("Expected a protocol to train by, got none; name one, such as ppp:rounds=20.")
    protocol = spec.make("protocol", course.protocol, federated.BY_NAME)
    task = _task(course.model, course.data, course.seed, course.size, course.channels, course.weights)
    defense = part("defense", course.defense)
    federation = Federation(
        model=task.model, dataset=task.dataset, defense=defense, seed=course.seed, protocol=protocol,
        loss=part("loss", course.loss) or F.cross_entropy, code=versions.of(task.model, defense, protocol),
    )  # fmt: skip
    federation.check()
    return federation


@lru_cache(maxsize=8)
def _task(model: str, data_: str, seed: int, size: int | None, channels: int | None, weights: str | None) -> Task:
    path = Path(weights) if weights else None
    return load_task(model, data_, seed=seed, size=size, channels=channels, weights=path)


def product_of(axes: Mapping[str, Sequence[Any] | Any]) -> Iterator[Trial]:
    """A trial for every combination of the values; numbers joined by + in a part's settings are several values."""
    names = {each.name for each in fields(Trial)}
    for name in axes:
        if name not in names:
            raise SettingError(unknown("setting of a sweep", name, sorted(names)))
    lists = {name: _several(name, value) for name, value in axes.items()}
    for values in product(*lists.values()):
        yield Trial(**dict(zip(lists, values, strict=True)))


def _several(name: str, value: Any) -> list[Any]:
    given = list(value) if isinstance(value, list | tuple | range) else [value]
    if name in ("attack", "defense", "protocol", "step", "model"):
        given = [each for words in given for each in (spec.spread(words) if words else [words])]
    return list(dict.fromkeys(given))
