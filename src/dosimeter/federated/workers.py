"""Clients side by side: in processes where there is much to do, otherwise in threads.

Threads share Python's lock, which costs small networks half of their pace. A process is a fork of this one, so it has
the data already; weights go to and fro as bytes. What a client computes is the same either way.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import torch
from safetensors.torch import load, save

from dosimeter import engine, theirs
from dosimeter.errors import ModelError
from dosimeter.federated.client import Fit, fit
from dosimeter.federated.federation import Federation, State
from dosimeter.files import STOPS

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

ENOUGH = 2000
"""Images of a round from which on processes are worth their start."""


class Task(NamedTuple):
    """One client's round."""

    client: int
    round: int
    private: State | None = None
    optimiser: State | None = None


Fits = Callable[[State, Sequence[Task]], list[Fit]]
"""From the server's weights and the clients of a round to what each of them has after it, in their order."""


@contextmanager
def workers(federation: Federation, count: int, *, samples: int, processes: bool | None = None) -> Iterator[Fits]:
    """Run clients, so many at a time.

    Args:
        samples: images of a round, by which processes or threads are chosen.
        processes: one of them, where it must be.
    """
    possible = "fork" in multiprocessing.get_all_start_methods()
    if processes is None:
        processes = possible and count > 1 and samples >= ENOUGH and not torch.cuda.is_available()
    if not processes:
        yield lambda state, tasks: _in_threads(federation, state, tasks, count)
        return
    pool = _Pool(federation, count)
    try:
        yield pool.fits
    finally:
        pool.close()


def _in_threads(federation: Federation, state: State, tasks: Sequence[Task], count: int) -> list[Fit]:
    stop = threading.Event()

    def work(task: Task) -> Fit:
        return fit(federation, state, *task, stop=stop)

    fits = engine.threads.run(work, tasks, workers=count, stop=stop, release=False)
    if stop.is_set():
        raise KeyboardInterrupt
    return fits


class _Pool:
    """Processes that each wait for a client to train."""

    def __init__(self, federation: Federation, count: int) -> None:
        context = multiprocessing.get_context("fork")
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(federation, theirs, os.getpid()), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; ours wait at a pipe
                process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def fits(self, state: State, tasks: Sequence[Task]) -> list[Fit]:
        try:
            return self._fits(state, tasks)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise ModelError(
                "A process that trained a client was ended from outside, perhaps for want of memory; train fewer "
                "clients at once (--workers). The rounds before this one are kept."
            ) from None

    def _fits(self, state: State, tasks: Sequence[Task]) -> list[Fit]:
        weights, found = _bytes(state), dict[int, Fit]()
        waiting, busy = list(enumerate(tasks)), dict[int, int]()

        def give(worker: int) -> None:
            if waiting:
                at, task = waiting.pop(0)
                busy[worker] = at
                own = [None if part is None else _bytes(part) for part in (task.private, task.optimiser)]
                self._ends[worker].send((weights, task.client, task.round, *own))

        for worker in range(len(self._ends)):
            give(worker)
        while busy:
            for end in multiprocessing.connection.wait([self._ends[worker] for worker in busy]):
                worker = self._ends.index(end)  # type: ignore[arg-type]
                answer = self._ends[worker].recv()
                if isinstance(answer, BaseException):
                    raise answer
                sent, private, optimiser, examples, steps, loss = answer
                found[busy.pop(worker)] = Fit(load(sent), load(private), examples, steps, loss, load(optimiser))
                give(worker)
        return [found[at] for at in range(len(tasks))]

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.kill()
            process.join()


def _serve(federation: Federation, end: "Connection", parent: int) -> None:
    """The life of a process: train whom it is given until nobody asks any more."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)  # Ctrl-C and its like are the parent's to hear
    torch.set_num_threads(1)
    engine.threads.keep_memory()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while os.getppid() == parent:  # a parent that was killed closes nothing: its other children hold the pipe open
            if not end.poll(1.0):
                continue
            weights, client, round_, *own = end.recv()
            private, optimiser = (None if part is None else load(part) for part in own)
            try:
                done = fit(federation, load(weights), client, round_, private, optimiser)
                answer: object = (
                    *(_bytes(done.sent), _bytes(done.private), _bytes(done.optimiser)),
                    *(done.examples, done.steps, done.loss),
                )
            except Exception as reason:  # the parent's to raise, who does not see where it was raised
                said = theirs.blamed(reason)
                answer = reason if said is None else ModelError(said)
            end.send(answer)
    os._exit(0)  # without what the parent would do at its own end


def _bytes(state: State) -> bytes:
    return save({name: tensor.contiguous() for name, tensor in state.items()})
