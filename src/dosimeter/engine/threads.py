"""Tiles side by side, each on one thread."""

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

T = TypeVar("T")
R = TypeVar("R")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt in glibc's malloc.h


def run(
    work: Callable[[T], R], tiles: Sequence[T], *, workers: int, stop: threading.Event, release: bool = True
) -> list[R]:
    """work(tile) of all tiles in their order, `workers` at a time, each operation on a single thread.

    Ctrl-C sets `stop`, which `work` is expected to heed; tiles not begun by then are left out. With `release` memory is
    given back after every tile, which takes a tenth of a second and is for tiles that take much of both.
    """
    with one_thread_each(), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = [pool.submit(_unless_stopped, work, tile, stop, release) for tile in tiles]
        while True:
            try:
                # In short waits: a signal that the system hands to a worker is heard only by a main thread that runs.
                while wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION).not_done and not _failed(waiting):
                    pass
            except KeyboardInterrupt:
                stop.set()
                continue
            if failed := _failed(waiting):
                stop.set()
                raise failed
            results = [future.result() for future in waiting]
            return [result[0] for result in results if result]


def _failed(waiting: Sequence[Future[Any]]) -> BaseException | None:
    """What the first tile that failed raised."""
    return next((future.exception() for future in waiting if future.done() and future.exception()), None)


def _unless_stopped(work: Callable[[T], R], tile: T, stop: threading.Event, release: bool) -> tuple[R] | None:
    if stop.is_set():
        return None
    done = (work(tile),)
    if release:
        release_memory()
    return done


@cache
def keep_memory() -> None:
    """Have this process keep freed memory for its next step, up to a quarter GiB a time, where it runs on glibc.

    A step frees and asks again for the same megabytes. By default they go back to the system in between, and every page
    has to be cleared again.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, 2**28)
        library.mallopt(_MMAP_THRESHOLD, 2**25)  # the most that glibc takes


def release_memory() -> None:
    """Give back what the tile that is done took: what refers to itself, and pages that `keep_memory` held on to."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Every operation on one thread inside the block, as many as before outside it."""
    keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with twice_differentiable():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Attention by plain operations inside the block, since its fused kernels have no second derivative.

    The switch is the whole process's; whoever runs threads sets it around all of them.
    """
    if not torch.backends.cuda.flash_sdp_enabled():  # type: ignore[no-untyped-call]
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield
