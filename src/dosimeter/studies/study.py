"""A study: trials that differ in one thing, with a question that they answer together and a table."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from dosimeter import federated, spec
from dosimeter.attacks import Steps
from dosimeter.auditing import part
from dosimeter.auditing.evidence import tally
from dosimeter.auditing.verdict import weigh
from dosimeter.metrics import Rate
from dosimeter.sweeps import Entry, Status, Store, Trial, run_all
from dosimeter.sweeps.places import HERE
from dosimeter.sweeps.run import Told
from dosimeter.sweeps.table import as_table
from dosimeter.sweeps.trial import forget

SHADOWS, DECOYS = 8, 99
"""Images of the attacker's own on which settings are chosen, and of others among which one is to be told."""


@dataclass(frozen=True, kw_only=True)
class Row(Trial):
    """One audit. `published` is what the paper prints, in its own words; None where it prints nothing."""

    data: str = "cifar10"
    attack: str = "ig"
    victims: int = 4
    steps: Steps | None = 200  # None for an attack that takes none
    decoys: int = 0
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

    def trial(self, **more: object) -> Trial:
        """What is run."""
        words = {each.name: getattr(self, each.name) for each in fields(Trial)}
        if self.leaks is not None:  # a verdict hears all evidence
            words["decoys"] = DECOYS
        return Trial(**words | more)

    def trained(self, rounds: int | None) -> str:
        """How long, in words, if not for all of the protocol's rounds; nothing for an untrained model."""
        if self.protocol is None:
            return ""
        by = spec.make("protocol", self.protocol, federated.BY_NAME)
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
    "seconds": lambda _, o: f"{o.seconds:.0f}",
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

    metrics: tuple[str, ...] = ()
    """Scores of the user's own, path/to/file.py:NAME, a column each."""
    summary: Callable[[Sequence[tuple[Row, Outcome]]], str] | None = None
    """What all rows say together, in Markdown."""

    @property
    def head(self) -> list[str]:
        return [*self.columns, *(part("metric", words).described()["label"] for words in self.metrics)]

    def cells(self, row: Row, outcome: Outcome) -> list[str]:
        own = [f"{value:.3f}" for value in (outcome.own or {}).values()]
        return [*(str(COLUMNS[name](row, outcome)) for name in self.columns), *own]


Found = tuple[Row, Outcome | None, Entry]
"""A row, what came of it unless it failed, and what the store has of it."""


def run(study: Study, folder: str | Path, *, on: str = HERE, told: Told | None = None) -> list[Found]:
    """Every row with its outcome. The folder is a store: a run that was stopped goes on, and others may share it.

    Args:
        on, told: as in `dosimeter.sweep`.
    """
    forget()
    how = {"threshold": study.threshold, "metrics": study.metrics}
    for row in study.rows:
        row.trial(**how).prepare()  # which refuses what cannot work before there is a store
    with Store(folder) as store:

        def ran(trials: Sequence[Trial]) -> list[Entry]:
            return run_all(trials, store, on=on, retry_failed=True, told=told) if trials else []

        chosen = [_choice(row, found) for row, found in _tried(study.rows, ran)]
        audited = [
            row.trial(**how, attack=each) for row, each in zip(study.rows, chosen, strict=True) if isinstance(each, str)
        ]
        left = iter(ran(audited))
        entries = [next(left) if isinstance(each, str) else each for each in chosen]
        rows = zip(study.rows, chosen, entries, strict=True)
        return [(row, _outcome(str(words), entry, store), entry) for row, words, entry in rows]


def _tried(rows: Sequence[Row], ran: Callable[[Sequence[Trial]], list[Entry]]) -> list[tuple[Row, list[Entry]]]:
    """What every row's attacks reach on images of the attacker's own, where there are several."""
    trials = [row.trial(attack=words, shadows=SHADOWS, decoys=0) for row in rows for words in row.tries]
    left = iter(ran(trials))
    return [(row, [next(left) for _ in row.tries]) for row in rows]


def _choice(row: Row, tried: Sequence[Entry]) -> str | Entry:
    """Of the attacks the one with the highest PSNR on shadow images, never on victims; one that failed in its stead."""
    reached = {}
    for words, entry in zip(row.tries, tried, strict=True):
        if entry.found is None:
            return entry
        reached[words] = entry.found["psnr"]
    return max(reached, key=lambda words: reached[words]) if reached else row.attack


def as_markdown(study: Study, found: Sequence[tuple[Row, Outcome]]) -> str:
    """The table that stands in the documents."""
    return as_table(study.head, [study.cells(row, outcome) for row, outcome in found])


def _outcome(attack: str, entry: Entry, store: Store) -> Outcome | None:
    if entry.status is not Status.DONE:
        return None
    result = store.result(entry.digest)
    training = store.entry(entry.uses) if entry.uses else None
    trained = (training.found or {}) if training else {}
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
        attack,
        trained.get("last_accuracy"),
        trained.get("rounds"),
        {name: scores[name].mean for name in result.settings.get("metrics", {})} or None,
        weigh(result).kind.value,
        tally(result.scores.evidence),
        {key: result.scores[key].mean for key in ("psnr", "ssim")} if result.scores.transformed else None,
    )


def _count(rate: Rate) -> str:
    return f"{rate.hits:,} of {rate.of:,}"
