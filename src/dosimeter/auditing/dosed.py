"""What attacks reached, held against what the updates tell by their dose, for the verdict.

A dose is an estimate from above of what a search reaches from below (`dosimeter.doses`). Where the two lie far apart
one of them is weak; where the attack is above, one of them is wrong or the attack knows what the dose leaves out.
"""

from dataclasses import dataclass
from enum import StrEnum
from statistics import correlation, mean, stdev
from typing import Any

from dosimeter import plain

NEAR, WIDE = 3.0, 6.0
"""dB between dose and attack up to which the two agree, and from which one of them is weak."""

HALF = 0.5
"""The share of determined dimensions from which on a dose of images that no attack reads is a reason for doubt."""


class Standing(StrEnum):
    """How the best attack stands to the dose."""

    AGREES = "agrees"
    UNREAD = "some is left unread"
    WIDE = "wide gap"
    BEYOND = "attack beyond dose"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One image: PSNR of the dose's reader on it and of the best attack."""

    id: str
    place: int
    predicted: float
    reached: float
    attack: str


@dataclass(frozen=True, kw_only=True)
class Dosed:
    """All images that both say something of."""

    prior: str  # of the dose's reader
    share: float  # of dimensions that updates determine, on average
    pairs: tuple[Pair, ...]

    @property
    def predicted(self) -> float:
        """By the dose, on average."""
        return mean(pair.predicted for pair in self.pairs)

    @property
    def reached(self) -> float:
        """By the best attack on each image, on average."""
        return mean(pair.reached for pair in self.pairs)

    @property
    def gap(self) -> float:
        """In dB, on average."""
        return self.predicted - self.reached

    @property
    def spread(self) -> float:
        """Twice the standard error of the gap."""
        gaps = [pair.predicted - pair.reached for pair in self.pairs]
        return 2 * stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0

    @property
    def correlation(self) -> float | None:
        """Of both over images; None of fewer than three, or where one of them is the same on all."""
        above, below = [pair.predicted for pair in self.pairs], [pair.reached for pair in self.pairs]
        if len(self.pairs) < 3 or not stdev(above) or not stdev(below):
            return None
        return correlation(above, below)

    @property
    def standing(self) -> Standing:
        if self.gap < -max(1.0, self.spread):
            return Standing.BEYOND
        if self.gap > WIDE:
            return Standing.WIDE
        return Standing.AGREES if self.gap <= NEAR else Standing.UNREAD

    def document(self) -> dict[str, Any]:
        """As plain values, with what is said of them."""
        told = ("standing", "predicted", "reached", "gap", "spread", "correlation", "sentence")
        found: dict[str, Any] = plain.of(self)
        return found | {key: getattr(self, key) for key in told}

    @property
    def sentence(self) -> str:
        """In plain words."""
        could, did = f"{self.predicted:.1f} dB", f"{self.reached:.1f} dB"
        match self.standing:
            case Standing.BEYOND:
                return (
                    f"The best attack on each image reaches {did}, more than the {could} of the dose, which is a "
                    f"contradiction: the attack knows more than slopes and the {self.prior} prior (such as which "
                    "neurons are off), or one of the two is wrong. Do not rely on this dose."
                )
            case Standing.WIDE:
                return (
                    f"By its dose {self.share:.0%} of an image is determined and a linear reader with the {self.prior} "
                    f"prior comes to {could}, where the best attack on each reaches {did}: a wide gap, so the attacks "
                    "are weak here, or the dose is, whose slopes at the truth may be hard to find from afar."
                )
            case Standing.UNREAD:
                return (
                    f"By its dose a linear reader with the {self.prior} prior comes to {could}; the best attack on "
                    f"each image reaches {did}, which leaves some of what the updates tell unread."
                )
        return (
            f"By its dose a linear reader with the {self.prior} prior comes to {could} and the best attack on each "
            f"image to {did}: the two agree."
        )

    @property
    def doubt(self) -> str:
        """Why that no attack read anything is no evidence; nothing where it is."""
        if self.standing is not Standing.WIDE or self.share < HALF:
            return ""
        return (
            f"by their dose the updates determine {self.share:.0%} of an image, {self.predicted:.1f} dB, and attacks "
            f"reach {self.reached:.1f} dB, so that attacks or dose are weak; use other attacks (--attack auto), or "
            "more steps"
        )
