"""What papers claim, as checks of what was measured: by the paper's own attack and by the strongest of ours."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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

    @property
    def quantity(self) -> str: ...

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
        known = [(each, value) for each in chosen if (value := self._value(each, ours)) is not None]
        if not known:
            return Judged(Held.UNTESTED, "no row of it was run")
        kinds = [self._row(each, value, ours) for each, value in known]
        said = "; ".join(f"{', '.join(each.name)}: {value.mean:.2f}" for each, value in known)
        bound = f"above {self.above}" if self.below is None else f"below {self.below}"
        score = "images read" if self.quantity == "asr" else "SSIM"
        what = f"{score} by the strongest attack" if ours else self.quantity
        told = f"{what} {said} ({bound} wanted)"
        short = [each.short_by if ours else each.short for each, _ in known]
        few = [f"{rate.hits} of {rate.of}" for rate in short if rate is not None and rate.hits]
        if Held.UNTESTED in kinds:
            told += f"; but searches fell short on {', '.join(few)} images"
        return together(kinds, told, len(chosen))

    def _value(self, row: Measured, ours: bool) -> Value | None:
        return self._ours(row) if ours else row.values.get(self.quantity)

    def _row(self, row: Measured, value: Value, ours: bool) -> Held:
        """Of one row. A search that the truth would have beaten says nothing of what a longer one reads."""
        good = (self.above is None or value.mean > self.above) and (self.below is None or value.mean < self.below)
        short = row.short_by if ours else row.short
        hides = self.above is None
        if short is not None and short.hits and (good and ours if hides else not good):
            return Held.UNTESTED
        return Held.HELD if good else Held.NOT

    def _ours(self, row: Measured) -> Value | None:
        """What the strongest attack reaches, in the unit of the bound: images read in percent, or SSIM."""
        if self.quantity != "asr":
            return row.strongest
        return None if row.read_by is None else Value(100 * row.read_by.rate)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Accuracy in rows of a name is at least that of others, but for some points."""

    rows: tuple[str, ...]
    against: tuple[str, ...]
    within: float = 0.0
    quantity: str = field(default="accuracy", init=False)

    def judge(self, found: Sequence[Measured], *, ours: bool) -> Judged:
        pairs, chosen = [], named(found, self.rows)
        for one in chosen:
            rest = [part for part in one.name if part not in self.rows]
            other = next(iter(named(found, (*self.against, *rest))), None)
            mine, theirs = (each and each.values.get("accuracy") for each in (one, other))
            if mine and theirs:
                pairs.append((one, mine.mean, theirs.mean))
        if ours or not pairs:
            return Judged(Held.UNTESTED, "no attack bears on it" if ours else "no training of it was run")
        kinds = [Held.HELD if mine >= theirs - self.within else Held.NOT for _, mine, theirs in pairs]
        said = "; ".join(f"{', '.join(one.name)}: {mine:.2f} against {theirs:.2f} %" for one, mine, theirs in pairs)
        return together(kinds, said, len(chosen))


@dataclass(frozen=True, kw_only=True)
class Higher:
    """A quantity in rows of a name is more than that of others, by a factor."""

    rows: tuple[str, ...]
    than: tuple[str, ...]
    quantity: str
    by: float = 1.0
    exactly: bool = False  # whether names are these words in this order, for words that come twice

    def judge(self, found: Sequence[Measured], *, ours: bool) -> Judged:
        rows = [each for words in (self.rows, self.than) for each in self._rows(found, words)]
        mine, theirs = (
            [each.values[self.quantity].mean for each in self._rows(found, words) if self.quantity in each.values]
            for words in (self.rows, self.than)
        )
        if ours or not (mine and theirs):
            return Judged(Held.UNTESTED, "no attack of ours bears on it" if ours else "no row of it was run")
        good = min(mine) >= self.by * max(theirs)
        digits = QUANTITIES[self.quantity].digits
        said = f"{', '.join(self.rows)}: {min(mine):.{digits}f} against {max(theirs):.{digits}f}"
        short = [each.short for each in rows if each.short is not None and self.quantity in each.values]
        if few := sum(rate.hits for rate in short):
            said += f" at equal steps; searches fell short on {few} of {sum(rate.of for rate in short)} images"
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

    def judge(self, found: Sequence[Measured], *, ours: bool = False, cut: str = "") -> Judged:
        """All checks together: not held where one is not, and not tested where one of them is not.

        Args:
            cut: how trainings were cut, which then say nothing of accuracies after whole ones.
        """
        each = [_unless_cut(check, check.judge(found, ours=ours), cut) for check in self.checks]
        done = [one for one in each if one.held is not Held.UNTESTED]
        told = "; ".join(one.evidence for one in done or each[:1])
        return together([one.held for one in done], told, len(each), "checks") if done else each[0]


def _unless_cut(check: Check, judged: Judged, cut: str) -> Judged:
    """A training that ended early says as little as such a search."""
    if not cut or judged.held is Held.UNTESTED or not QUANTITIES[check.quantity].accuracy:
        return judged
    return Judged(Held.UNTESTED, f"{judged.evidence}; but trainings were cut: {cut}")


def together(kinds: Sequence[Held], told: str, of: int, what: str = "rows") -> Judged:
    """One that is not held is enough; held is what all of them are, those too that were not run."""
    if Held.NOT in kinds:
        return Judged(Held.NOT, told)
    held = sum(kind is Held.HELD for kind in kinds)
    if held == of:
        return Judged(Held.HELD, told)
    return Judged(Held.UNTESTED, f"held in {held} of {of} {what} so far: {told}" if held else told)


def named(found: Sequence[Measured], words: Sequence[str]) -> list[Measured]:
    """Rows whose name has all of these words."""
    return [each for each in found if all(word in each.name for word in words)]
