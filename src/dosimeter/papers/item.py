"""A table or figure of a paper as data: what was run, what is printed of it, and how much of it fits a laptop."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from dosimeter import spec
from dosimeter.attacks import Steps
from dosimeter.auditing import AUTO
from dosimeter.sweeps import Course, Trial

Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "paper")


class Value(NamedTuple):
    """A number with its spread, over victims or over trainings, where there is one."""

    mean: float
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A column: a number that papers print, in their own unit."""

    label: str
    digits: int = 2
    times: float = 1.0  # from our unit to the paper's
    accuracy: bool = False  # of a trained model, and not of an attack
    unit: str = ""


QUANTITIES: dict[str, Quantity] = {
    "accuracy": Quantity(label="accuracy", times=100, accuracy=True, unit="%"),
    "asr": Quantity(label="images read", times=100, unit="%"),
    "ssim": Quantity(label="SSIM"),
    "psnr": Quantity(label="PSNR", unit="dB"),
    "mse": Quantity(label="MSE", digits=4),
    "lpips": Quantity(label="LPIPS (AlexNet)"),
    "lpips_vgg": Quantity(label="LPIPS (VGG)"),
    "mse_standardised": Quantity(label="MSE, standardised"),
    "psnr_normalised": Quantity(label="PSNR, normalised", unit="dB"),
    "psnr_unclipped": Quantity(label="PSNR, unclipped", unit="dB"),
    "ssim_minmax": Quantity(label="SSIM, min-max"),
    "psnr_minmax": Quantity(label="PSNR, min-max", unit="dB"),
    "mse_minmax": Quantity(label="MSE, min-max", digits=4),
    "rmse_bytes": Quantity(label="FedKL's MSE"),
    "psnr_bytes": Quantity(label="FedKL's PSNR", unit="dB"),
    "steps": Quantity(label="steps", digits=0),
    "parameters": Quantity(label="parameters", digits=0),
}
"""What tables show, by the names that scores have in records; each is what the paper's program computes."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How much of an item is run; nothing is cut where nothing is said."""

    victims: int | None = None
    steps: int | None = None  # of searches, at most
    rounds: int | None = None  # of trainings, at most
    seeds: int | None = None  # of trainings, at most
    cases: int | None = None  # the first so many
    trainings: bool = True  # whether accuracies are measured
    panel: Steps = AUTO  # of every search beside the paper's own


SMOKE = Cut(victims=1, steps=2, rounds=1, seeds=1, cases=2, trainings=False, panel=2)
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
    needs: str = ""
    """What is not at hand to run it; nothing takes its place."""

    def value(self, quantity: str) -> Value | None:
        """What the paper prints."""
        found = self.published.get(quantity)
        return None if found is None else Value(*found) if isinstance(found, tuple) else Value(found)

    def cut(self, by: Cut) -> "Case":
        """The same with less of it."""
        trial, course = self.trial, self.course
        if trial is not None:
            trial = replace(trial, victims=_least(trial.victims, by.victims), steps=_steps(trial, by.steps))
            if trial.protocol and by.rounds:
                trial = replace(trial, round=_rounds(trial.protocol, trial.round, by.rounds))
        if course is not None and by.rounds:
            assert course.protocol is not None
            course = replace(course, round=_rounds(course.protocol, course.round, by.rounds))
        return replace(self, trial=trial, course=course if by.trainings else None, panel=by.panel)

    @property
    def strongest(self) -> Trial | None:
        """Every attack that is made for its defense, on the same victims; it ends once all are read."""
        return None if self.trial is None else replace(self.trial, attack=AUTO, steps=self.panel, until_read=True)


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
    figure: Literal["", "pictures", "tradeoff", "bars"] = ""
    threshold: float = 0.5
    """SSIM from which the paper counts an image as read."""
    judged: str = "ssim"
    """The score that this is of."""
    differs: str = ""
    """Why figures are not the paper's, as far as that was found out."""

    @property
    def key(self) -> str:
        return f"{self.paper}/{self.name}"

    def at(self, scale: Scale) -> "Item":
        """As much of it as a scale runs."""
        if scale == "paper":
            return self
        by = SMOKE if scale == "smoke" else self.laptop
        cases = self.cases[: by.cases] if by.cases else self.cases
        return replace(self, cases=tuple(case.cut(by) for case in cases), seeds=_least(self.seeds, by.seeds))

    def missing(self, scale: Scale) -> list[str]:
        """What a scale leaves out, in words."""
        small, said = self.at(scale), []
        if len(small.cases) < len(self.cases):
            said.append(f"{len(small.cases)} of {len(self.cases)} rows")
        for what, of in (("victims", "victims"), ("steps", "steps of searches"), ("round", "rounds of training")):
            said += _less(what, of, small.cases, self.cases)
        trains = any(case.course for case in self.cases)
        if trains and not any(case.course for case in small.cases):
            said.append("no training, so no accuracy")
        elif trains and small.seeds < self.seeds:
            said.append(f"{small.seeds} of {self.seeds} trainings")
        return said


def _less(what: str, of: str, small: tuple[Case, ...], whole: tuple[Case, ...]) -> list[str]:
    """How many of something there are in place of how many, where these are fewer."""
    pairs = set()
    for one, all_ in ((one, all_) for one, all_ in zip(small, whole, strict=False) if not one.needs):
        for mine, theirs in ((one.trial, all_.trial), (one.course, all_.course)):
            left, right = (getattr(each, what, None) for each in (mine, theirs))
            if left is not None and left != right:
                pairs.add((left, right or _full(what, theirs)))
    return [f"{few} of {many} {of}" for few, many in sorted(pairs, key=str)]


def _full(what: str, of: Trial | Course | None) -> object:
    """How many there are where nothing is said."""
    if what == "round" and of is not None and of.protocol:
        return rounds_of(of.protocol)
    return "the attack's own"


def rounds_of(protocol: str) -> int:
    from dosimeter import federated

    return spec.make("protocol", protocol, federated.BY_NAME).rounds


def _rounds(protocol: str, asked: int | None, most: int) -> int | None:
    return min(asked if asked is not None else rounds_of(protocol), most)


def _steps(trial: Trial, most: int | None) -> Steps | None:
    """At most so many; closed forms, which take none, are told none."""
    if most is None or trial.steps is None:
        return trial.steps
    return most if trial.steps == AUTO else min(int(trial.steps), most)


def _least(asked: int, most: int | None) -> int:
    return asked if most is None else min(asked, most)
