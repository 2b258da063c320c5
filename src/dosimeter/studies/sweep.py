"""A study: audits that differ in one thing, run in turn, each kept as soon as it is done."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter import defenses, federated, files, spec
from dosimeter.attacks import presets
from dosimeter.auditing import audit
from dosimeter.data import pick
from dosimeter.defenses import Defense
from dosimeter.errors import OutputError
from dosimeter.federated import Federation, Protocol, as_audited, train
from dosimeter.federated.training import score
from dosimeter.task import Task, load_task
from dosimeter.types import Attack, Victims

SHADOWS = 8
"""Images of the attacker's own on which settings are chosen."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One audit. `published` is what the paper prints, in its own words; None where it prints nothing."""

    model: str
    data: str = "cifar10"
    attack: str = "ig"
    victims: int = 4
    steps: int | None = 200  # None for an attack that takes none
    batch: int = 1
    defense: str = "none"
    protocol: str | None = None  # by which the model was trained before, with the defense
    split: str = "train"
    size: int | None = None
    seed: int = 0
    tries: tuple[str, ...] = ()  # attacks of which the best on shadow images takes the attack's place
    published: str | None = None

    def training(self) -> Protocol | None:
        return spec.make("protocol", self.protocol, federated.BY_NAME) if self.protocol else None

    def trained(self, rounds: int | None) -> str:
        """How long, in words, if not for all of the protocol's rounds; nothing for an untrained model."""
        if not (by := self.training()):
            return ""
        rounds = rounds or by.rounds
        many, what = (rounds * by.steps, "step") if by.steps else (rounds, "round")
        return f"{many} {what}{'' if many == 1 else 's'}"


class Outcome(NamedTuple):
    """What came of a row: means over its images, the same without the update, and labels where they were recovered."""

    psnr: float
    ssim: float
    blind_psnr: float
    blind_ssim: float
    read: str
    seconds: float
    labels: str | None = None
    guess: float | None = None  # the share of labels that an even guess gets
    updates: str | None = None  # those with all labels right
    chosen: str | None = None  # the attack that was best on shadow images
    accuracy: float | None = None  # of a trained model
    rounds: int | None = None  # that it was trained for


COLUMNS: dict[str, Callable[[Row, Outcome], object]] = {
    "model": lambda row, _: f"`{row.model}`",
    "data": lambda row, _: f"{row.victims} of {row.data}",
    "steps": lambda row, _: row.steps or "-",
    "PSNR": lambda _, o: f"{o.psnr:.2f}",
    "without the update": lambda _, o: f"{o.blind_psnr:.2f}",
    "SSIM": lambda _, o: f"{o.ssim:.3f}",
    "SSIM without it": lambda _, o: f"{o.blind_ssim:.3f}",
    "images read": lambda _, o: o.read,
    "attack": lambda row, o: f"`{o.chosen or row.attack}`",
    "defense": lambda row, _: row.defense,
    "trained": lambda row, o: row.trained(o.rounds) or "-",
    "accuracy": lambda _, o: "-" if o.accuracy is None else f"{o.accuracy:.1%}",
    "updates": lambda row, _: f"{row.victims} of {row.batch}",
    "labels right": lambda _, o: o.labels or "-",
    "even guess": lambda _, o: "-" if o.guess is None else f"{o.guess:.0%}",
    "all labels right": lambda _, o: o.updates or "-",
    "published": lambda row, _: row.published or "-",
}
"""What a table may show of a row, by its heading."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Rows with a question that they answer together, and what their table shows."""

    name: str
    question: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = (
        "model",
        "data",
        "steps",
        "PSNR",
        "without the update",
        "SSIM",
        "images read",
        "published",
    )

    def cells(self, row: Row, outcome: Outcome) -> list[str]:
        return [str(COLUMNS[name](row, outcome)) for name in self.columns]


def run(study: Study, folder: str | Path) -> Iterator[tuple[Row, Outcome, bool]]:
    """Every row with its outcome, in turn, and whether it was there already from a run with the same settings.

    The file `study.json` is replaced after every row, so that a run that was stopped goes on where it was.
    """
    path = Path(folder) / "study.json"
    files.check_writable(folder)
    kept = _read(path)
    trained: dict[str, Trained] = {}
    for row in study.rows:
        key = _key(row)
        there = key in kept
        if not there:
            kept[key] = _audit(row, trained)._asdict()
            rows = list(map(_entry, kept.items()))
            files.replace_json(path, {"study": study.name, "question": study.question, "rows": rows})
        yield row, Outcome(**kept[key]), there


def as_markdown(study: Study, found: list[tuple[Row, Outcome]]) -> str:
    """The table that stands in the documents."""
    lines = [f"| {' | '.join(study.columns)} |", "|---" * len(study.columns) + "|"]
    for row, outcome in found:
        cells = [cell.replace("|", "\\|") for cell in study.cells(row, outcome)]  # which joins defenses
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


class Trained(NamedTuple):
    """A defense in the model that was trained with it, how well that does, and after how many rounds."""

    defense: Defense
    accuracy: float
    rounds: int


def _audit(row: Row, trained: dict[str, Trained]) -> Outcome:
    """`trained` has what the row before was trained to, which rows that differ in their attack alone share."""
    defense: Defense = spec.joined("defense", row.defense, defenses.BY_NAME)
    task = load_task(row.model, row.data, row.victims, seed=row.seed, batch=row.batch, split=row.split, size=row.size)
    accuracy = rounds = None
    if protocol := row.training():
        same = f"{row.model} {row.data} {row.defense} {row.protocol} {row.size} {row.seed}"
        if same not in trained:
            found = _train(task, row, defense, protocol)
            trained.clear()
            trained[same] = found
        defense, accuracy, rounds = trained[same]
    chosen = _tune(task, row, defense) if row.tries else None
    attack = _attack(chosen or row.attack, row)
    result = audit(task.model, task.victims, attack=attack, defense=defense, seed=row.seed, names=task.names)
    scores, blind = result.scores["scores"], result.scores["baseline"]
    labels = result.scores.get("labels")
    return Outcome(
        scores["psnr"]["mean"],
        scores["ssim"]["mean"],
        blind["psnr"]["mean"],
        blind["ssim"]["mean"],
        _count(result.scores["success"]),
        round(result.seconds, 1),
        _count(labels) if labels else None,
        labels["guess"] if labels else None,
        _count(labels["updates"]) if labels else None,
        chosen,
        accuracy,
        rounds,
    )


def _attack(words: str, row: Row) -> Attack:
    return spec.make("attack", words, presets.BY_NAME, steps=row.steps)


def _tune(task: Task, row: Row, defense: Defense) -> str:
    """Of the row's attacks the one with the highest PSNR on images of the attacker's own, never on victims."""
    many = pick(task.dataset, SHADOWS + row.victims, seed=row.seed + 1, split=row.split)
    private = set(task.victims.indices.flatten().tolist())
    free = [at for at, place in enumerate(many.indices[:, 0].tolist()) if place not in private][:SHADOWS]
    images, labels, indices = (values[free] for values in many[:3])
    shadows = Victims(images, labels, indices, tuple(many.ids[at] for at in free))
    found = {}
    for words in row.tries:
        result = audit(task.model, shadows, attack=_attack(words, row), defense=defense, seed=row.seed + 1)
        found[words] = result.scores["scores"]["psnr"]["mean"]
    return max(found, key=lambda words: found[words])


def _train(task: Task, row: Row, defense: Defense, protocol: Protocol) -> Trained:
    whole = Federation(model=task.model, dataset=task.dataset, protocol=protocol, defense=defense, seed=row.seed)
    done = train(whole, tested=())  # which round is the last is not known before
    rounds = len(done.history)
    return Trained(as_audited(whole, done), score(whole, done.state, done.private, rounds)["accuracy"], rounds)


def _count(rate: dict[str, Any]) -> str:
    return f"{rate['hits']:,} of {rate['of']:,}"


def _key(row: Row) -> str:
    return json.dumps(asdict(row), sort_keys=True)


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def _entry(item: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"row": json.loads(item[0]), "outcome": item[1]}


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Outcomes by row, of a study that was begun before."""
    if not path.is_file():
        return {}
    try:
        rows = json.loads(path.read_text())["rows"]
        # Older files say less, and JSON has lists for tuples.
        kept = [(Row(**_tuples(entry["row"])), Outcome(**entry["outcome"])) for entry in rows]
        return {_key(row): outcome._asdict() for row, outcome in kept}
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{path} is no study of this program ({error}); delete it or give another --out.") from error
