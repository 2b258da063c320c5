"""Work side by side on threads that stay from burst to burst, so that nothing but steps is timed."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch

from dosimeter import engine
from dosimeter.benchmarks.rounds import Taken, repeat
from dosimeter.engine.program import OFTEN

R = TypeVar("R")
Step = Callable[[], float]
"""One step of one thread, which says its work."""

WARM = OFTEN + 5
"""Steps before anything is timed: TorchScript is there after OFTEN and runs at full speed some calls later."""
LONG = 3.0
"""Seconds of a core after which a step is so slow that what is made once no longer matters to it."""


class Crew:
    """As many threads as `steps` has entries, each with an operation on one thread, and each with steps of its own."""

    def __init__(self, steps: Sequence[Sequence[Step]], pools: Sequence[ThreadPoolExecutor]) -> None:
        self._steps, self._pools, self._turn = steps, pools, 0

    def warm(self) -> None:
        """Take every step until it is as fast as it gets."""

        def all_of(own: Sequence[Step]) -> None:
            for step in own:
                _warm(step)

        self._all(all_of)

    def burst(self, seconds: float) -> Taken:
        """Every thread takes one of its steps again and again, the next of them in the next burst.

        An audit likewise stays with a tile for all of its steps. Threads begin together and each counts for itself.
        """
        gate, turn = threading.Barrier(len(self._steps)), self._turn
        self._turn += 1

        def walk(own: Sequence[Step]) -> Taken:
            gate.wait()
            return repeat(own[turn % len(own)], seconds)

        taken = self._all(walk)
        rate = sum(each.rate for each in taken)
        cores = sum(each.share for each in taken)
        return Taken(rate, rate / cores, min(each.steps for each in taken))

    def _all(self, work: Callable[[Sequence[Step]], R]) -> list[R]:
        with engine.threads.one_thread_each():
            waiting = [pool.submit(work, own) for pool, own in zip(self._pools, self._steps, strict=True)]
            return [future.result() for future in waiting]


@contextmanager
def crew(steps: Sequence[Sequence[Step]], *, warm: bool = True) -> Iterator[Crew]:
    """The threads, ended with the block."""
    with ExitStack() as stack:
        made = Crew(
            steps,
            [
                stack.enter_context(ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)))
                for _ in steps
            ],
        )
        if warm:
            made.warm()
        yield made


def _warm(step: Step) -> None:
    begin = time.thread_time()
    for taken in range(WARM):
        if taken > 1 and time.thread_time() - begin > LONG:
            return
        step()
