"""A trial: one audit in the words of the command line, of a model as it is or after a training that trials share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter import federated, fingerprint, spec
from dosimeter.attacks import Steps
from dosimeter.auditing import AUTO, Audit, Resources, Result, Scoring, Updates, audit_all, auto, part, perform
from dosimeter.auditing.panel.panel import attacks_of
from dosimeter.data import pick, pick_decoys, pool_of
from dosimeter.errors import SettingError, unknown
from dosimeter.federated import Federation, Training, as_audited, train
from dosimeter.federated.training import picked
from dosimeter.sweeps import versions
from dosimeter.task import Task, load_task


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What `dosimeter audit` takes; `protocol` is how the model is trained before, with the defense."""

    model: str = "cnn"
    data: str = "mnist-5k"
    defense: str = "none"
    attack: str = AUTO
    steps: Steps | None = None
    seed: int = 0
    victims: int = 8
    batch: int = 1
    distinct: bool = False
    split: str = "train"
    step: str = "gradient"
    server: str = "honest"
    rounds: int = 1
    same_client: int = 1
    batch_norm: str = "running"
    loss: str | None = None
    size: int | None = None
    channels: int | None = None
    weights: str | None = None
    protocol: str | None = None
    threshold: float = 0.5
    decoys: int = 99
    budget: float = 4.0

    @property
    def words(self) -> dict[str, Any]:
        """What is not by default, which is enough to make it again."""
        usual = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    def prepare(self) -> "Prepared":
        """All that it needs, loaded and checked."""
        return _prepared(self)


class Prepared(NamedTuple):
    """A trial that can be run, in whatever process."""

    trial: Trial
    digest: str
    audit: Audit  # of the model before training
    steps: Steps | None  # of a panel; None for one attack
    federation: Federation | None
    training: str | None  # the digest of the training, where there is one

    def run(self, trained: Training | None = None, *, workers: int | None = None) -> Result:
        """Attack, on so many threads; after Ctrl-C `Interrupted` is raised."""
        audit = replace(self.audit, resources=replace(self.audit.resources, workers=workers))
        if self.federation is not None:
            assert trained is not None
            audit = replace(audit, model=self.federation.model, defense=as_audited(self.federation, trained))
        return perform(audit) if self.steps is None else audit_all(audit, steps=self.steps)

    def train(self, folder: Path, *, workers: int | None = None) -> Training:
        """The training that it needs, which goes on from what the folder has."""
        assert self.federation is not None
        return train(self.federation, folder=folder, processes=False, workers=workers, progress=False)


def trained_numbers(found: Training) -> dict[str, Any]:
    """What tables show of a training."""
    return {"accuracy": picked(found.history)["accuracy"], "rounds": len(found.history)}


def _prepared(trial: Trial) -> Prepared:
    task = _task(trial.model, trial.data, trial.seed, trial.size, trial.channels, trial.weights)
    steps = auto(trial.attack, trial.steps)
    attack = part("attack", "ig") if steps else part("attack", trial.attack, steps=trial.steps)
    defense = part("defense", trial.defense)
    victims = pick(
        task.dataset, trial.victims, batch=trial.batch, seed=trial.seed, split=trial.split, distinct=trial.distinct
    )
    decoys = pick_decoys(task.dataset, victims, pool_of(task.dataset, trial.decoys), seed=trial.seed, split=trial.split)
    audit = Audit(
        model=task.model,
        victims=victims,
        attack=attack,
        defense=defense,
        **{kind: part(kind, getattr(trial, kind)) for kind in ("step", "server", "loss")},
        seed=trial.seed,
        updates=Updates(batch_norm=trial.batch_norm, rounds=trial.rounds, same_client=trial.same_client),  # type: ignore[arg-type]
        resources=Resources(budget=int(trial.budget * 2**30), progress=False),
        scoring=Scoring(threshold=trial.threshold, decoys=decoys, among=trial.decoys or None),
        names=task.names | {"split": trial.split},
    )
    federation, training = None, None
    if trial.protocol:
        federation = Federation(
            model=task.model, dataset=task.dataset, defense=defense, seed=trial.seed,
            protocol=spec.make("protocol", trial.protocol, federated.BY_NAME),
        )  # fmt: skip
        federation.prepare()
        training = fingerprint.of([federation.made, versions.of(task.model, defense, federation.protocol)])
    parts = [attack, defense, audit.server, task.model]
    parts += attacks_of(audit, steps=steps) if steps else []
    made = [
        {**audit.made, "attack": AUTO if steps else audit.made["attack"]},
        fingerprint.of(task.model),
        audit.scoring,
    ]
    digest = fingerprint.of([made, steps, training, versions.of(*parts)])
    return Prepared(trial, digest, audit, steps, federation, training)


@lru_cache(maxsize=8)
def _task(model: str, data: str, seed: int, size: int | None, channels: int | None, weights: str | None) -> Task:
    path = Path(weights) if weights else None
    return load_task(model, data, seed=seed, size=size, channels=channels, weights=path)


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
