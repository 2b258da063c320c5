"""What tiles of victims tell one bar, and how they hear that they should end."""

import math
import threading
import time
from typing import NamedTuple

import torch

from dosimeter.progress import Advance, duration
from dosimeter.types import Ended, Outcome, Reconstruction, Watch


class Place(NamedTuple):
    """An attack's among those of a panel."""

    number: int
    of: int
    ran: int  # attacks before it that were not refused
    seconds: float  # that these took
    limit: float = math.inf  # seconds after which it gives up
    read: frozenset[int] = frozenset()  # victims that these read

    def title(self, name: str) -> str:
        return f"attack {self.number} of {self.of}: {name}"

    def around(self, advance: Advance) -> Advance:
        """A bar that also says how long all attacks will take, if those to come are like those so far."""
        began = time.monotonic()

        def tell(done: float, note: str = "", *, total: float | None = None) -> None:
            spent = time.monotonic() - began
            if done and total:
                whole = spent * total / done
                left = whole - spent + (self.of - self.number) * (self.seconds + whole) / (self.ran + 1)
                note = f"{note}, about {duration(left)} left for all {self.of}"
            advance(done, note, total=total)

        return tell


class Watches:
    """Steps of several tiles as those of one audit; a watch also ends its tile's attack at Ctrl-C or when time is up.

    Args:
        advance: the bar.
        stop: set by Ctrl-C.
        tiles: how many there are. One that has not begun is taken to have as many steps as one that has.
        limit: seconds from now on.
    """

    def __init__(self, advance: Advance, stop: threading.Event, tiles: int, *, limit: float = math.inf) -> None:
        self._advance, self._stop, self._end = advance, stop, time.monotonic() + limit
        self._lock = threading.Lock()
        self._done, self._totals = [0] * tiles, [0] * tiles
        self._matches, self._active = [torch.nan] * tiles, [0] * tiles

    def of(self, tile: int) -> Watch:
        def watch(*, done: int, total: int, match: float, active: int) -> None:
            if self._stop.is_set() or time.monotonic() > self._end:
                raise KeyboardInterrupt
            with self._lock:
                self._done[tile], self._totals[tile] = done, total
                self._matches[tile], self._active[tile] = match, active
                self._show()

        return watch

    def blind(self) -> Watch:
        """Of the attack without the update, whose steps do not count."""

        def watch(*, done: int, total: int, match: float, active: int) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt

        return watch

    def ended(self, tile: int, found: Reconstruction) -> Reconstruction:
        """What was found of a tile, which may have ended early; whoever ran out of time was not interrupted."""
        if found.interrupted:
            if self._stop.is_set() or time.monotonic() <= self._end:
                self._stop.set()
                return found
            late = Ended(Outcome.OUT_OF_TIME)
            kept = (late if each.outcome is Outcome.INTERRUPTED else each for each in found.stopped)
            found = found._replace(stopped=tuple(kept))
        with self._lock:
            self._done[tile], self._active[tile] = self._totals[tile], 0
            self._show()
        return found

    def _show(self) -> None:
        known = [match for match in self._matches if match == match]
        loss = f"loss {sum(known) / len(known):.4f}, " if known else ""
        note = f"{loss}{sum(self._active)} running"
        total = sum(each or max(self._totals) for each in self._totals)
        self._advance(sum(self._done), note, total=total)
