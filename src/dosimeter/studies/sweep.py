"""A study: audits that differ in one thing, run in turn, each kept as soon as it is done."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from dosimeter import defenses, federated, files, fingerprint, spec
from dosimeter.attacks import Attack, Steps, presets
from dosimeter.auditing import AUTO, Scoring, audit, auto
from dosimeter.auditing.evidence import tally
from dosimeter.auditing.setting import part
from dosimeter.auditing.verdict import weigh
from dosimeter.data import Dataset, pick, pick_decoys, pool_of
from dosimeter.defenses import Defense
from dosimeter.federated import Federation, Protocol, as_audited, train
from dosimeter.federated.training import score
from dosimeter.metrics import Metric, Rate
from dosimeter.task import load_task
from dosimeter.types import Step, Victims

SHADOWS, DECOYS = 8, 99
"""Images of the attacker's own on which settings are chosen, and of others among which one is to be told."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One audit. `published` is what the paper prints, in its own words; None where it prints nothing."""

    model: str
    data: str = "cifar10"
    attack: str = "ig"
    victims: int = 4
    steps: Steps | None = 200  # None for an attack that takes none
    batch: int = 1
    step: str = "gradient"  # what clients do with the batch
    defense: str = "none"
    protocol: str | None = None  # by which the model was trained before, with the defense
    split: str = "train"
    size: int | None = None
    seed: int = 0
    tries: tuple[str, ...] = ()  # attacks of which the best on shadow images takes the attack's place
    published: str | None = None
    leaks: bool | None = None  # whether updates do, where that is known for certain; else it is for the audit to say

    def on(self, *, data: str | None = None, victims: int | None = None, steps: Steps | None = None) -> "Row":
        """The same with other data, victims or steps of its attacks; what is published is of the paper's data."""

        def stepped(words: str) -> str:
            return re.sub(r"\bsteps=\d+", f"steps={steps}", words) if steps else words

        return replace(
            self,
            data=data or self.data,
            victims=victims or self.victims,
            steps=self.steps and (steps or self.steps),  # None where the attack's words have them or it takes none
            attack=stepped(self.attack),
            tries=tuple(map(stepped, self.tries)),
            published=self.published if data in (None, self.data) else None,
        )

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
    chosen: str | None = None  # the attack; of several the one that was best on shadow images
    accuracy: float | None = None  # of a trained model
    rounds: int | None = None  # that it was trained for
    own: Mapping[str, float] | None = None  # means of the user's own metrics, by their names
    verdict: str | None = None
    evidence: str | None = None
    originals: Mapping[str, float] | None = None  # PSNR and SSIM with them, where clients trained on other images

    def shown(self, key: str, digits: int) -> str:
        """A score, with that against originals where the other is against what clients trained on."""
        beside = f" ({self.originals[key]:.{digits}f} originals)" if self.originals else ""
        return f"{getattr(self, key):.{digits}f}{beside}"


COLUMNS: dict[str, Callable[[Row, Outcome], object]] = {
    "model": lambda row, _: f"`{row.model}`",
    "data": lambda row, _: f"{row.victims} of {row.data}",
    "steps": lambda row, _: row.steps or "-",
    "PSNR": lambda _, o: o.shown("psnr", 2),
    "without the update": lambda _, o: f"{o.blind_psnr:.2f}",
    "SSIM": lambda _, o: o.shown("ssim", 3),
    "SSIM without it": lambda _, o: f"{o.blind_ssim:.3f}",
    "images read": lambda _, o: o.read,
    "attack": lambda row, o: f"`{o.chosen or row.attack}`",
    "defense": lambda row, _: row.defense,
    "trained": lambda row, o: row.trained(o.rounds) or "-",
    "accuracy": lambda _, o: "-" if o.accuracy is None else f"{o.accuracy:.1%}",
    "updates": lambda row, _: f"{row.victims} of {row.batch}" + (f", `{row.step}`" if row.step != "gradient" else ""),
    "labels right": lambda _, o: o.labels or "-",
    "even guess": lambda _, o: "-" if o.guess is None else f"{o.guess:.0%}",
    "all labels right": lambda _, o: o.updates or "-",
    "verdict": lambda _, o: o.verdict or "-",
    "evidence": lambda _, o: o.evidence or "-",
    "published": lambda row, _: row.published or "-",
}
"""What a table may show of a row, by its heading."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Rows with a question that they answer together, and what their table shows."""

    name: str
    question: str
    rows: tuple[Row, ...]
    threshold: float = 0.5
    """SSIM from which an image counts as read, by the paper of the study; CVB's where that has none."""
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

    metrics: tuple[Metric, ...] = ()
    """Scores of the user's own, a column each."""
    summary: Callable[[Sequence[tuple[Row, Outcome]]], str] | None = None
    """What all rows say together, in Markdown."""

    @property
    def head(self) -> list[str]:
        return [*self.columns, *(metric.described()["label"] for metric in self.metrics)]  # type: ignore[list-item]

    def cells(self, row: Row, outcome: Outcome) -> list[str]:
        own = [f"{(outcome.own or {})[metric.name]:.3f}" for metric in self.metrics]
        return [*(str(COLUMNS[name](row, outcome)) for name in self.columns), *own]


def run(study: Study, folder: str | Path) -> Iterator[tuple[Row, Outcome, bool]]:
    """Every row with its outcome, in turn, and whether it was there already from a run with the same settings.

    The file `study.json` has each as soon as it is done, so that a run that was stopped goes on where it was. Several
    studies and processes may share it, for a row is there only where model, data, parts and program are the same.
    """
    files.check_writable(folder)
    kept = files.Kept(Path(folder) / "study.json", {})
    trained: dict[str, Trained] = {}
    for row in study.rows:
        case = _case(row, Scoring(threshold=study.threshold, metrics=study.metrics))
        key = fingerprint.of([case, fingerprint.code()])
        there = key in kept.read()
        if not there:
            outcome = _audit(case, trained)._asdict()
            kept.add(key, {"study": study.name, "row": asdict(row), "threshold": study.threshold, "outcome": outcome})
        yield row, Outcome(**kept.read()[key]["outcome"]), there


def as_markdown(study: Study, found: list[tuple[Row, Outcome]]) -> str:
    """The table that stands in the documents."""
    lines = [f"| {' | '.join(study.head)} |", "|---" * len(study.head) + "|"]
    for row, outcome in found:
        cells = [cell.replace("|", "\\|") for cell in study.cells(row, outcome)]  # which joins defenses
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


class Trained(NamedTuple):
    """A defense in the model that was trained with it, how well that does, and after how many rounds."""

    defense: Defense
    accuracy: float
    rounds: int


class Case(NamedTuple):
    """All that the outcome of a row depends on."""

    model: nn.Module
    dataset: Dataset
    victims: Victims
    defense: Defense
    step: Step | None
    protocol: Protocol | None
    attacks: dict[str, Attack | str]  # by their words: the row's own, or those of which one is chosen; a panel's are it
    split: str
    seed: int
    scoring: Scoring


def _case(row: Row, scoring: Scoring) -> Case:
    defense: Defense = spec.joined("defense", row.defense, defenses.BY_NAME)
    attacks = {words: _attack(words, row.steps) for words in row.tries or (row.attack,)}
    protocol = row.training()
    model, dataset, _ = load_task(row.model, row.data, seed=row.seed, size=row.size)
    victims = pick(dataset, row.victims, batch=row.batch, seed=row.seed, split=row.split)
    if row.leaks is not None:  # a verdict hears all evidence
        decoys = pick_decoys(dataset, victims, pool_of(dataset, DECOYS), seed=row.seed, split=row.split)
        scoring = replace(scoring, decoys=decoys, among=DECOYS)
    step = part("step", row.step)
    return Case(model, dataset, victims, defense, step, protocol, attacks, row.split, row.seed, scoring)


def _attack(words: str, steps: Steps | None) -> Attack | str:
    """An attack; of a panel its words."""
    many = auto(words, steps)
    return f"{AUTO}:steps={many}" if many else spec.make("attack", words, presets.BY_NAME, steps=steps)


def _audit(case: Case, trained: dict[str, Trained]) -> Outcome:
    """`trained` has what the row before was trained to, which rows that differ in their attack alone share."""
    defense, accuracy, rounds = case.defense, None, None
    if case.protocol:
        whole = Federation(
            model=case.model, dataset=case.dataset, protocol=case.protocol, defense=defense, seed=case.seed
        )
        same = fingerprint.of(whole.made)
        if same not in trained:
            found = _train(whole)
            trained.clear()
            trained[same] = found
        defense, accuracy, rounds = trained[same]
    chosen = _tune(case, defense) if len(case.attacks) > 1 else next(iter(case.attacks))
    result = audit(
        case.model,
        case.victims,
        attack=case.attacks[chosen],
        defense=defense,
        step=case.step,
        seed=case.seed,
        scoring=case.scoring,
    )
    scores, blind, labels = result.scores.nearest, result.scores.nearest.baseline, result.scores.labels
    return Outcome(
        scores["psnr"].mean,
        scores["ssim"].mean,
        blind["psnr"].mean,
        blind["ssim"].mean,
        _count(result.scores.success),
        round(result.seconds, 1),
        _count(labels) if labels else None,
        labels.guess if labels else None,
        _count(labels.updates) if labels else None,
        chosen,
        accuracy,
        rounds,
        {metric.name: scores[metric.name].mean for metric in case.scoring.metrics} or None,
        weigh(result).kind.value,
        tally(result.scores.evidence),
        {key: result.scores[key].mean for key in ("psnr", "ssim")} if result.scores.transformed else None,
    )


def _tune(case: Case, defense: Defense) -> str:
    """Of the attacks the one with the highest PSNR on images of the attacker's own, never on victims."""
    many = pick(case.dataset, SHADOWS + len(case.victims.ids), seed=case.seed + 1, split=case.split)
    private = set(case.victims.indices.flatten().tolist())
    free = [at for at, place in enumerate(many.indices[:, 0].tolist()) if place not in private][:SHADOWS]
    images, labels, indices = (values[free] for values in many[:3])
    shadows = Victims(images, labels, indices, tuple(many.ids[at] for at in free))
    found = {}
    for words, attack in case.attacks.items():
        result = audit(case.model, shadows, attack=attack, defense=defense, step=case.step, seed=case.seed + 1)
        found[words] = result.scores.nearest["psnr"].mean
    return max(found, key=lambda words: found[words])


def _train(whole: Federation) -> Trained:
    done = train(whole, tested=())  # which round is the last is not known before
    rounds = len(done.history)
    return Trained(as_audited(whole, done), score(whole, done.state, done.private, rounds)["accuracy"], rounds)


def _count(rate: Rate) -> str:
    return f"{rate.hits:,} of {rate.of:,}"
