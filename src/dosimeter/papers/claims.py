"""What papers claim, as checks of what was measured: by the paper's own attack and by the strongest of ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from dosimeter.papers.measured import Measured
from dosimeter.papers.quantities import QUANTITIES, Value


class Held(StrEnum):
    HELD, NOT, UNTESTED = "held", "not held", "not tested"


class Judged(NamedTuple):
    """A claim before the evidence."""

    held: Held
    evidence: str


class Check(Protocol):
    """Something that rows of an item can show."""

    def judge(self, found: Sequence[Measured], *, ours: bool) -> Judged: ...


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A score lies above or below a bound in all rows of a name."""

    rows: tuple[str, ...]
    quantity: str
    above: float | None = None
    below: float | None = None

    def judge(self, found: Sequence[Measured], *, ours: bool) -> Judged:
        chosen = named(found, self.rows)
        values = [(each, self._ours(each) if ours else each.values.get(self.quantity)) for each in chosen]
        known = [(each, value) for each, value in values if value is not None]
        if not known:
            return Judged(Held.UNTESTED, "no row of it was run")
        short = [(each, each.short_by if ours else each.short) for each, _ in known]
        good = all(
            (self.above is None or value.mean > self.above) and (self.below is None or value.mean < self.below)
            for _, value in known
        )
        said = "; ".join(f"{', '.join(each.name)}: {value.mean:.2f}" for each, value in known)
        bound = f"above {self.above}" if self.below is None else f"below {self.below}"
        score = "images read" if self.quantity == "asr" else "SSIM"
        what = f"{score} by the strongest attack" if ours else self.quantity
        told = f"{what} {said} ({bound} wanted)"
        # A search that the truth would have beaten says nothing of what a longer one reads.
        few = [f"{rate.hits} of {rate.of}" for _, rate in short if rate is not None and rate.hits]
        if few and (good if self.above is None and ours else not good and self.below is None):
            return Judged(Held.UNTESTED, f"{told}; but searches fell short on {', '.join(few)} images")
        return Judged(Held.HELD if good else Held.NOT, told)

    def _ours(self, row: Measured) -> Value | None:
        """What the strongest attack reaches, in the unit of the bound: images read in percent, or SSIM."""
        if self.quantity != "asr":
            return row.strongest
        return None if row.read_by is None else Value(100 * row.read_by.hits / max(1, row.read_by.of))


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Accuracy in rows of a name is at least that of others, but for some points."""

    rows: tuple[str, ...]
    against: tuple[str, ...]
    within: float = 0.0

    def judge(self, found: Sequence[Measured], *, ours: bool) -> Judged:
        pairs = []
        for one in named(found, self.rows):
            rest = [part for part in one.name if part not in self.rows]
            other = next(iter(named(found, (*self.against, *rest))), None)
            mine, theirs = (each and each.values.get("accuracy") for each in (one, other))
            if mine and theirs:
                pairs.append((one, mine.mean, theirs.mean))
        if ours or not pairs:
            return Judged(Held.UNTESTED, "no attack bears on it" if ours else "no training of it was run")
        good = all(mine >= theirs - self.within for _, mine, theirs in pairs)
        said = "; ".join(f"{', '.join(one.name)}: {mine:.2f} against {theirs:.2f} %" for one, mine, theirs in pairs)
        return Judged(Held.HELD if good else Held.NOT, said)


@dataclass(frozen=True, kw_only=True)
class Higher:
    """A quantity in rows of a name is more than that of others, by a factor."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    quantity: str
    by: float = 1.0
    exactly: bool = False  # whether names are these words in this order, for words that come twice

    def judge(self, found: Sequence[Measured], *, ours: bool) -> Judged:
        mine, theirs = (
            [each.values[self.quantity].mean for each in self._rows(found, words) if self.quantity in each.values]
            for words in (self.rows, self.than)
        )
        if ours or not (mine and theirs):
            return Judged(Held.UNTESTED, "no attack of ours bears on it" if ours else "no row of it was run")
        good = min(mine) >= self.by * max(theirs)
        digits = QUANTITIES[self.quantity].digits
        said = f"{', '.join(self.rows)}: {min(mine):.{digits}f} against {max(theirs):.{digits}f}"
        return Judged(Held.HELD if good else Held.NOT, said)

    def _rows(self, found: Sequence[Measured], words: tuple[str, ...]) -> list[Measured]:
        return [each for each in found if each.name == words] if self.exactly else named(found, words)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a paper that an item can support or contradict."""

    name: str
    where: str
    item: str
    checks: tuple[Check, ...]

    def judge(self, found: Sequence[Measured], *, ours: bool = False) -> Judged:
        """All checks together: not held where one is not, not tested where none was."""
        each = [check.judge(found, ours=ours) for check in self.checks]
        kinds = [one.held for one in each]
        held = next((kind for kind in (Held.NOT, Held.HELD) if kind in kinds), Held.UNTESTED)
        told = [one.evidence for one in each if one.held is not Held.UNTESTED] or [each[0].evidence]
        return Judged(held, "; ".join(told))


def named(found: Sequence[Measured], words: Sequence[str]) -> list[Measured]:
    """Rows whose name has all of these words."""
    return [each for each in found if all(word in each.name for word in words)]
