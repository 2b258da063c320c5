"""What a result says, as values that survive their file: an image's record, the summary of all, what is certain."""

from dataclasses import dataclass, field, fields
from typing import Any

from dosimeter import plain
from dosimeter.metrics import Rate, Score

COMPLETE, INTERRUPTED = "complete", "interrupted"
"""What became of a run."""


@dataclass(frozen=True, kw_only=True)
class AsTrained:
    """One reconstruction against the image that the client trained on, which its defense made of the original."""

    scores: dict[str, float]
    read: bool
    identified: bool | None = None  # among decoys that the defense changed likewise
    baseline: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """One image's result. In JSON its scores stand among the rest, by their names."""

    victim: int
    image: int
    index: int | None = None  # its place in the data; None where the truth is not known
    label: Any = None
    label_used: Any = None  # that the attack recovered; None where the update does not tell it
    labels_right: int | None = None  # of this victim's batch; None where labels were granted
    scores: dict[str, float] = field(default_factory=dict)
    read: bool | None = None  # as it was, or as the client trained on it
    identified: bool | None = None  # whether it was told from decoys
    transformed: AsTrained | None = None  # where the client trained on another image
    baseline: dict[str, float] | None = None  # scores without the update
    determined: dict[str, float] | None = None  # {layer, or image: share of its input that was solved for}
    guessed_steps: int | None = None
    guessed_lr: float | None = None
    match: float | None  # the final matching loss; None where it diverged
    steps: int
    restart: int
    again: int | None = None  # how often the search was begun anew, since it had fallen short
    stopped: str
    truth: float | None = None  # the matching loss of the clients' own step, for an auditor who knows it
    explained: str | None = None  # whether what was found explains the update as well as that does; see `evidence`

    @property
    def nearest(self) -> dict[str, float]:
        """Scores against what the client trained on where that is nearer, by SSIM, and else against the original."""
        made = self.transformed
        return self.scores if made is None or made.scores["ssim"] <= self.scores["ssim"] else made.scores

    @property
    def ssim(self) -> float:
        return self.nearest["ssim"]

    @property
    def blind_ssim(self) -> float:
        """The same without the update."""
        floors = (self.baseline, self.transformed and self.transformed.baseline)
        return max((each["ssim"] for each in floors if each), default=0.0)

    @property
    def evidence(self) -> str | None:
        """What the attack on this image says of privacy."""
        return "read" if self.read else self.explained

    def document(self) -> dict[str, Any]:
        """As plain values."""
        found: dict[str, Any] = {}
        for key, value in plain.of(self).items():
            found |= value if key == "scores" else {key: value}
            if key == "label" and self.labels_right is not None:
                found["label_used"] = None  # not told, which is not the same as granted
        return found

    @classmethod
    def read_from(cls, found: dict[str, Any], where: str) -> "ImageRecord":
        """Of what `document` gave."""
        named = {each.name for each in fields(cls)}
        scores = {key: value for key, value in found.items() if key not in named}
        rest = {key: value for key, value in found.items() if key in named and key != "scores"}
        made: ImageRecord = plain.read(cls, rest | {"scores": scores}, where)
        return made


@dataclass(frozen=True, kw_only=True)
class Success(Rate):
    """Images that count as read, as they were or as clients trained on them."""

    threshold: float
    score: str = "ssim"
    originals: int | None = None  # of these as they were, where clients trained on others


@dataclass(frozen=True, kw_only=True)
class Identification(Rate):
    """Images nearer to their reconstructions than all of their decoys are."""

    chance: float
    blind: int | None = None  # how many the attack tells without the update


@dataclass(frozen=True, kw_only=True)
class Risk(Rate):
    """Images whose reconstructions are further than `delta` from them (Bayes, Sec. 4)."""

    delta: float


@dataclass(frozen=True, kw_only=True)
class Labels(Rate):
    """Labels that were recovered, in any order."""

    guess: float  # what an even guess gets
    updates: Rate  # whose every label is right


@dataclass(frozen=True, kw_only=True)
class Transformed(Rate):
    """How many of the images that clients trained on are read, where a defense made them of others."""

    scores: dict[str, Score]
    baseline: dict[str, Score]
    identification: Identification | None = None  # among decoys that the defense changed likewise

    def __getitem__(self, name: str) -> Score:
        return self.scores[name]


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The most exposed image."""

    victim: int
    image: int
    index: int
    ssim: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Scores and rates over all images; `summary["ssim"]` is a score."""

    images: int
    unmeasured: dict[str, int]  # victims of whom nothing is said, by why
    evidence: dict[str, int] = field(default_factory=dict)  # images by what the attack on them says of privacy
    scores: dict[str, Score]
    baseline: dict[str, Score]
    success: Success
    identification: Identification | None = None
    risk: Risk | None = None
    labels: Labels | None = None
    recovered: Rate | None = None  # images that were solved for
    determined: Score | None = None
    trained: Rate | None = None  # updates whose local training was guessed
    worst: Worst
    steps: Score
    transformed: Transformed | None = None

    __contains__ = __iter__ = None  # it is no mapping: what was measured is an attribute

    def __getitem__(self, name: str) -> Score:
        return self.scores[name]

    @property
    def nearest(self) -> "Summary | Transformed":
        """The scores against what clients trained on where these are nearer, by SSIM, than those against originals."""
        made = self.transformed
        return self if made is None or made["ssim"].mean <= self["ssim"].mean else made


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Which share of the image the equations determine, or why nothing was solved for."""

    refused: str | None = None
    attack: str | None = None
    verdict: str | None = None
    share: float = 0.0
    layers: dict[str, float] = field(default_factory=dict)
    match: float | None = None


@dataclass(frozen=True, kw_only=True)
class LabelsFound:
    """Labels that an attack used on a captured update, and the least counts that are certain."""

    source: str  # granted, recovered or none
    found: list[Any] | None
    least: dict[str, int] | None = None
    doubt: str | None = None  # why the update cannot be what it was said to be


@dataclass(frozen=True, kw_only=True)
class Shadows:
    """How a match compares with those of updates of other images, or why it is not compared."""

    left_out: str | None = None
    updates: int | None = None
    labels: Labels | None = None
    matches: list[float | None] | None = None
    ssim: list[float] | None = None
    success: Success | None = None
    blind: int | None = None  # images that the attack reads without their updates
    rank: int | None = None  # of the captured update's match; None where there is no match to compare
    as_well: Rate | None = None  # images read of those that matched as well; None where none did
    less_well: Rate | None = None
    truths: list[float | None] | None = None  # how well the shadows' own steps match
    evidence: dict[str, int] = field(default_factory=dict)  # their images by what the attack on them says of privacy
    leaks: str = ""  # what their updates leak
    doubt: str = ""  # why it would be no evidence if they leaked nothing


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What can be said of a captured update without the truth, and beside it where it was given."""

    certificate: Certificate
    labels: LabelsFound
    match: float | None  # how far the reconstruction's update is from the captured one; None where it diverged
    unmeasured: dict[str, int]
    shadows: Shadows
    judged: Summary | None = None
    apart: float | None = None  # relative error of the truth's own update; large where the client trained otherwise
