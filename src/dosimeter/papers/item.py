"""A table or figure of a paper as data: what was run, what is printed of it, and how much of it fits a laptop."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from dosimeter import spec
from dosimeter.attacks import Steps
from dosimeter.auditing import AUTO
from dosimeter.papers.quantities import Value
from dosimeter.sweeps import Course, Trial

Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How much of an item is run; nothing is cut where nothing is said."""

    victims: int | None = None
    steps: int | None = None  # of searches, at most
    rounds: int | None = None  # of trainings, at most
    batches: int | None = None  # that a client trains on in a round, in place of all its images
    seeds: int | None = None  # of trainings, at most
    cases: int | None = None  # the first so many
    tries: int | None = None  # settings that are tried on images of the attacker's own, evenly among all
    trainings: bool = True  # whether accuracies are measured
    trained: bool = True  # whether models are trained before they are attacked
    batch: int | None = None  # images in an update, at most
    ours: bool = True  # whether other attacks are set on the same victims
    panel: Steps = AUTO  # of every search beside the paper's own
    skip: bool = False  # whether there is no time for it at all
    within: tuple[tuple[str, "Cut"], ...] = ()  # of rows with this word in their name, in place of all this

    def of(self, case: "Case") -> "Cut":
        """What counts for a row."""
        return next((cut for word, cut in self.within if word in case.name), self)


TIME = "more time than this scale has"

SMOKE = Cut(
    victims=1,
    batch=1,
    steps=2,
    rounds=1,
    batches=1,
    seeds=1,
    cases=2,
    tries=2,
    trainings=False,
    trained=False,
    panel=2,
)
"""Does it run? The numbers say nothing."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row: what a paper ran, in the words of the command line, and what it prints of that."""

    name: tuple[str, ...]
    """As the paper calls it, by the item's heading."""
    trial: Trial | None = None
    """The attack, at the paper's scale."""
    tries: tuple[str, ...] = ()
    """Attacks of which the one takes its place that is best on images of the attacker's own."""
    course: Course | None = None
    """The training whose accuracy stands in the row."""
    published: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)
    """{quantity: value, or value and spread}, in the paper's units."""
    panel: Steps = AUTO
    """Steps of searches beside the paper's own."""
    ours: bool = True
    """Whether there are such attacks beside it."""
    needs: str = ""
    """What is not at hand to run it; nothing takes its place."""
    whose: str = ""
    """Whose accuracy stands in the row, where clients have keys of their own: that of client 0, 1, ... or `random`."""
    behind: bool = False
    """Whether it is looked at what leaves the first batch norm of the trained model."""
    pair: tuple[str, str] | None = None
    """Prior and density of an attack on points of a Gaussian, in place of a trial."""
    points: int = 1000
    """Of these."""
    curve: int = 200
    """Steps of that attack."""

    def value(self, quantity: str) -> Value | None:
        """What the paper prints."""
        found = self.published.get(quantity)
        return None if found is None else Value(*found) if isinstance(found, tuple) else Value(found)

    def cut(self, by: Cut) -> "Case":
        """The same with less of it."""
        by = by.of(self)
        if by.skip:
            return replace(self, needs=self.needs or TIME)
        trial, course, tries = self.trial, self.course, self.tries
        if by.tries and len(tries) > by.tries:
            tries = tuple(tries[at * (len(tries) - 1) // max(1, by.tries - 1)] for at in range(by.tries))
        if trial is not None:
            trial = replace(trial, victims=_least(trial.victims, by.victims), steps=_steps(trial, by.steps))
            trial = replace(trial, batch=_least(trial.batch, by.batch))
            trial = replace(trial, protocol=None, round=None) if not by.trained else _shortened(trial, by)
            trial = trial if self.tries == tries else replace(trial, attack=tries[0])
        course = _shortened(course, by) if course is not None and by.trainings else None
        ours = self.ours and by.ours
        points, curve = _least(self.points, by.victims), _least(self.curve, by.steps)
        return replace(
            self, points=points, curve=curve, trial=trial, course=course, tries=tries, panel=by.panel, ours=ours
        )

    @property
    def strongest(self) -> Trial | None:
        """Every attack that is made for its defense, on the same victims; it ends once all are read."""
        if self.trial is None or not self.ours:
            return None
        return replace(self.trial, attack=AUTO, steps=self.panel, until_read=True)


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure."""

    paper: str
    name: str
    about: str
    """What it shows, in a sentence."""
    heading: tuple[str, ...]
    quantities: tuple[str, ...]
    cases: tuple[Case, ...]
    seeds: int = 1
    """Trainings behind an accuracy."""
    laptop: Cut = Cut()
    """What fits an hour on two cores."""
    smoke: Cut = SMOKE
    """What takes seconds."""
    figure: Literal["", "pictures", "tradeoff", "bars", "lines", "series"] = ""
    threshold: float = 0.5
    """SSIM from which the paper counts an image as read."""
    judged: str = "ssim"
    """The score that this is of."""
    differs: str = ""
    """Why figures are not the paper's, as far as that was found out."""

    @property
    def key(self) -> str:
        return f"{self.paper}/{self.name}"

    def stem(self, scale: Scale) -> str:
        """How files of it at a scale begin."""
        return f"{self.paper}-{self.name}-{scale}"

    def at(self, scale: Scale) -> "Item":
        """As much of it as a scale runs."""
        if scale == "paper":
            return self
        by = self.smoke if scale == "smoke" else self.laptop
        runs = [case for case in self.cases if not case.needs][: by.cases]
        cases = [case for case in self.cases if case.needs or case in runs] if by.cases else self.cases
        return replace(self, cases=tuple(case.cut(by) for case in cases), seeds=_least(self.seeds, by.seeds))


def rounds_of(protocol: str) -> int:
    from dosimeter import federated

    return spec.make("protocol", protocol, federated.BY_NAME).rounds


def _rounds(protocol: str, asked: int | None, most: int) -> int | None:
    return min(asked if asked is not None else rounds_of(protocol), most)


T = TypeVar("T", Trial, Course)


def _shortened(one: T, by: Cut) -> T:
    """A training, or an attack after one, with fewer rounds and batches."""
    if one.protocol is None:
        return one
    protocol, round_ = one.protocol, one.round
    if by.rounds:
        round_ = _rounds(protocol, round_, by.rounds)
    if by.batches and (batches_of(protocol) or by.batches + 1) > by.batches:
        protocol = spec.with_setting(protocol, 0, "steps", str(by.batches))
        protocol = spec.with_setting(protocol, 0, "epochs", "none")
    return replace(one, protocol=protocol, round=round_)


def batches_of(protocol: str) -> int | None:
    """That a client trains on in a round, where these are counted."""
    from dosimeter import federated

    return spec.make("protocol", protocol, federated.BY_NAME).steps


def _steps(trial: Trial, most: int | None) -> Steps | None:
    """At most so many; closed forms, which take none, are told none."""
    if most is None or trial.steps is None:
        return trial.steps
    return most if trial.steps == AUTO else min(int(trial.steps), most)


def _least(asked: int, most: int | None) -> int:
    return asked if most is None else min(asked, most)
