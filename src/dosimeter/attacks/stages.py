"""Several searches or solutions one after another, told as one."""

from collections.abc import Callable, Sequence

import torch

from dosimeter import trees
from dosimeter.types import Observation, Reconstruction, Watch


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
        self.cut |= "interrupted" in found.stopped
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
