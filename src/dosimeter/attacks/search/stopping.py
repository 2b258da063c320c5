"""When a candidate is done: after so many steps, or once it no longer improves."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dosimeter import checks

AUTO: Literal["auto"] = "auto"
Steps = int | Literal["auto"]
"""How many steps a search takes, or as many as it needs."""

LEG, MOST = 200, 6200
"""Of a search that takes as many steps as it needs: those of its first leg, and of all legs together at most."""

SETTLED = 0.05
"""A leg that lowers the loss by less than this share of it, and of what it fell by so far, is the last one."""


class Leg(NamedTuple):
    """A part of a search in which the step size shrinks from its first to its last value."""

    begin: int
    end: int

    @property
    def tail(self) -> int:
        """Steps at its end whose mean loss is what it came to; one alone may have had lucky draws."""
        return max(1, (self.end - self.begin) // 8)


class Ends(NamedTuple):
    """What legs came to, of candidates that go on in several."""

    start: Tensor  # (n,) the loss before any
    sum: Tensor  # (n,) of losses at the end of the leg that is under way
    loss: Tensor  # (n,) the mean of such losses, of the leg that came lowest
    match: Tensor  # (n,) the match at its end
    x: Tensor  # (n, D) where that was

    def after(
        self, step: int, leg: Leg, loss: Tensor, match: Tensor, x: Tensor, groups: Tensor
    ) -> tuple["Ends", Tensor]:
        """The same after the loss and match (n,) of that step at x (n, D), and who is done (n,): candidates of whose
        group (n,) the leg that is over improved none."""
        ends, settled = self, torch.zeros_like(loss, dtype=torch.bool)
        if step == 0:
            ends = ends._replace(start=loss)
        if step > leg.end - leg.tail:
            ends = ends._replace(sum=ends.sum + loss)
        if step < leg.end:
            return ends, settled
        came = ends.sum / leg.tail
        if leg.begin:  # what the first leg came to is compared with nothing
            # Densities have losses far above 0 at the truth too, where what fell so far is the smaller number.
            least = torch.minimum(ends.loss.abs(), (ends.start - ends.loss).clamp_min(0))
            settled = ~torch.isin(groups, groups[ends.loss - came > SETTLED * least])
        lower = came < ends.loss
        return ends._replace(
            sum=torch.zeros_like(came),
            loss=torch.where(lower, came, ends.loss),
            match=torch.where(lower, match, ends.match),
            x=torch.where(lower[:, None], x, ends.x),
        ), settled


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a candidate is done. Its loss is the whole objective, match and prior."""

    steps: int
    """At most."""
    patience: int | None = None
    """Stop after so many steps without a lower loss."""
    target: float | None = None
    """Stop once the loss is at most this."""
    match: float | None = None
    """Stop once the match alone, without the prior, is at most this."""
    leg: int | None = None
    """Go on until the search stops improving: in legs, of so many steps, then twice as many, and so on. Each begins
    where the one before ended and has the whole schedule of the step size. A candidate is done after a leg that did
    not lower its loss by the share `SETTLED`; the end of the leg with the lowest loss counts."""

    def __post_init__(self) -> None:
        checks.count("A search", "steps", self.steps, most=checks.MOST_STEPS)
        checks.count("A search", "a patience", self.patience)
        checks.count("A search", "steps of a first leg", self.leg)
        checks.at_least("A search", "a target of its loss", self.target, 0)
        checks.at_least("A search", "a target of its match", self.match, 0)

    @property
    def legs(self) -> tuple[Leg, ...]:
        """All there may be; the last is as long as two where a shorter one would be left."""
        found, begin, long = list[Leg](), 0, self.leg or self.steps
        while begin < self.steps:
            end = begin + long if self.steps - begin >= 3 * long else self.steps
            found.append(Leg(begin, end))
            begin, long = end, 2 * long
        return tuple(found)

    @property
    def least(self) -> int:
        """Steps after which a candidate can be done at the earliest, unless it stops for another reason."""
        return self.legs[min(1, len(self.legs) - 1)].end

    @property
    def asked(self) -> Steps:
        """In the words of a preset."""
        return self.steps if self.leg is None else AUTO


def stop(steps: Steps, **more: Any) -> Stop:
    """After so many steps, or once they no longer improve (`auto`)."""
    return Stop(steps=MOST, leg=LEG, **more) if steps == AUTO else Stop(steps=steps, **more)
