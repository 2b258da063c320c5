"""Who waits for an attack hears of it: between pieces of its work, and of several searches one after another."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from dosimeter import trees
from dosimeter.types import UNTOLD, Ended, Observation, Outcome, Reconstruction, Target, Watch

Beat = Callable[[], None]
"""Called between pieces of work, of about a second at most; raises KeyboardInterrupt where they should end."""


def unheard() -> None:
    """The beat of work that nobody waits for."""


class Stages:
    """Shares of one whole; an interrupted stage also ends those after it, at the first word they say."""

    def __init__(self, watch: Watch | None, total: int) -> None:
        self._watch, self._total, self._begun, self.cut = watch, total, 0.0, False
        self.match = torch.nan  # of the last stage, on average

    def next(self, share: float, *, waiting: int = 0) -> Watch:
        """The watch of the next stage, which takes so much of the total while so many victims wait for their own."""
        begun = self._begun
        self._begun += share

        def tell(*, done: int, total: int, match: float, active: int) -> None:
            if self._watch is not None and not self.cut:
                try:
                    at = round(begun + share * done / total)
                    self._watch(done=at, total=self._total, match=match, active=active + waiting)
                except KeyboardInterrupt:
                    self.cut = True
            if self.cut:
                raise KeyboardInterrupt

        return tell

    def ended(self, found: Reconstruction) -> Reconstruction:
        """What a stage found, noted where that stage was interrupted."""
        self.cut |= found.interrupted
        self.match = float(found.match.mean())
        return found

    def begun(self, tell: Watch) -> Beat:
        """The beat of a stage of one piece, heard for the first time."""
        beat = partial(tell, done=0, total=1, match=self.match, active=1)
        beat()
        return beat

    def each(
        self,
        target: Target,
        seen: Observation,
        attack: Callable[[int, Observation, Watch], Reconstruction],
        *,
        groups: Sequence[Sequence[int]] | None = None,
        share: float = 1.0,
    ) -> Reconstruction:
        """What `attack(number of a group, its updates, its watch)` finds of one group of victims after another.

        All victims are in their own order. Those that it does not come to after an interruption stay blank.

        Args:
            groups: every victim is one of its own by default; some may be empty.
            share: of the whole that an attack on one victim takes.
        """
        groups = [[v] for v in range(len(seen.ids))] if groups is None else groups
        parts, waiting = [], len(seen.ids)
        for at, who in enumerate(groups):
            if not who:
                continue
            waiting -= len(who)
            part, tell = only(seen, who), self.next(share * len(who), waiting=waiting)
            try:
                parts.append(self.ended(attack(at, part, tell)))
            except KeyboardInterrupt:
                self.cut = True
                parts.append(unreached(target, part))
        if self._watch is not None and not self.cut and round(self._begun) >= self._total:
            with suppress(KeyboardInterrupt):  # all is done
                self._watch(done=self._total, total=self._total, match=self.match, active=0)
        return _ordered(groups, parts)


def _ordered(groups: Sequence[Sequence[int]], parts: Sequence[Reconstruction]) -> Reconstruction:
    """What was found of all groups that have victims, in the victims' own order."""
    found = trees.join(parts)
    order = [v for who in groups for v in who]
    return trees.chosen(found, sorted(range(len(order)), key=order.__getitem__))


def only(seen: Observation, who: Sequence[int] | slice) -> Observation:
    """What was seen of some of the victims, each of whom meets the random numbers that it meets among all.

    That of a slice is not copied.
    """
    if isinstance(who, slice):
        return trees.rows(seen, who)._replace(ids=seen.ids[who], clients=seen.clients[who])
    chosen = trees.rows(seen, torch.tensor(who, device=next(iter(seen.gradient.values())).device))
    return chosen._replace(
        ids=tuple(seen.ids[v] for v in who), clients=tuple(seen.clients[v] for v in who if seen.clients)
    )


def blank(target: Target) -> Tensor:
    """(C, H, W): the image that the model's normalisation takes to 0, or grey where it does not normalise."""
    plain = not target.mean.any() and bool((target.std == 1).all())
    level = torch.full_like(target.mean, 0.5) if plain else target.mean
    return level.expand(target.shape)


def unreached(target: Target, seen: Observation) -> Reconstruction:
    """What is said of victims that an attack did not come to: a blank image, infinitely far off."""
    victims = len(seen.ids)
    labels = torch.full((victims, seen.batch), UNTOLD) if seen.labels is None else seen.labels
    match = torch.full((victims,), torch.inf).to(target.mean)
    images = blank(target).expand(victims, seen.batch, *target.shape)
    stopped = (Ended(Outcome.INTERRUPTED),) * victims
    return Reconstruction.without_steps(images, labels.to(match.device), match, stopped)
