"""Who waits for an attack hears of it: between pieces of its work, and of several searches one after another."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from dosimeter import trees
from dosimeter.types import Observation, Reconstruction, Watch

Beat = Callable[[], None]
"""Called between pieces of work, of about a second at most; raises KeyboardInterrupt where they should end."""


def unheard() -> None:
    """The beat of work that nobody waits for."""


def beat_of(watch: Watch | None, victim: int, victims: int, match: float) -> Beat:
    """The beat of one victim of several that are solved for one after another; `match` is the last one's."""
    if watch is None:
        return unheard
    return partial(watch, done=victim, total=victims, match=match, active=victims - victim)


class Stages:
    """Shares of one whole; an interrupted stage also ends those after it, at the first word they say."""

    def __init__(self, watch: Watch | None, total: int) -> None:
        self._watch, self._total, self._begun, self.cut = watch, total, 0.0, False

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
        return found


def group_by_group(groups: Sequence[Sequence[int]], run: Callable[[int], Reconstruction]) -> Reconstruction:
    """What `run(group)` finds of all groups that have victims, in the victims' own order."""
    found = trees.join([run(at) for at, who in enumerate(groups) if who])
    order = [v for who in groups for v in who]
    rows = sorted(range(len(order)), key=order.__getitem__)
    kept = trees.rows(found, torch.tensor(rows, device=found.images.device))
    return kept._replace(
        stopped=tuple(found.stopped[row] for row in rows),
        determined=tuple(found.determined[row] for row in rows if found.determined),
        trained=tuple(found.trained[row] for row in rows if found.trained),
    )


def only(seen: Observation, who: Sequence[int]) -> Observation:
    """What was seen of some of the victims, each of whom meets the random numbers that it meets among all."""
    chosen = trees.rows(seen, torch.tensor(who, device=next(iter(seen.gradient.values())).device))
    return chosen._replace(
        ids=tuple(seen.ids[v] for v in who), clients=tuple(seen.clients[v] for v in who if seen.clients)
    )
