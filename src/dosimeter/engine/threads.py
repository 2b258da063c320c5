"""Tiles side by side, each on one thread."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def run(work: Callable[[T], R], tiles: Sequence[T], *, workers: int, stop: threading.Event) -> list[R]:
    """work(tile) of all tiles in their order, `workers` at a time, each operation on a single thread.

    Ctrl-C sets `stop`, which `work` is expected to heed; tiles not begun by then are left out.
    """
    with one_thread_each(), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = [pool.submit(_unless_stopped, work, tile, stop) for tile in tiles]
        while True:
            try:
                results = [future.result() for future in waiting]
                return [result[0] for result in results if result]
            except KeyboardInterrupt:
                stop.set()
            except BaseException:
                stop.set()
                raise


def _unless_stopped(work: Callable[[T], R], tile: T, stop: threading.Event) -> tuple[R] | None:
    return None if stop.is_set() else (work(tile),)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Every operation on one thread inside the block, as many as before outside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
