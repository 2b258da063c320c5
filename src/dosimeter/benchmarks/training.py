"""How many images a second clients train on: in this process, in Flower's simulation, and in a plain loop of PyTorch.

All three do the same steps with the same model, batches and optimiser. The plain loop has no clients, rounds or defense
around it and shows what the machine can do. Each is measured on whole rounds without tests; the first round, in which
Ray's processes load their libraries and all fill their caches, does not count.
"""

import copy
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from dosimeter import federated
from dosimeter.benchmarks.rounds import interleave, spread
from dosimeter.errors import SettingError
from dosimeter.federated.checkpoint import read_history
from dosimeter.federated.client import make_optimiser
from dosimeter.federated.setup import Setup

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

PLAIN, HERE, FLOWER = "plain loop", "in this process", "Flower's simulation"


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What is trained, and for how long."""

    model: str = "cnn"
    data: str = "mnist-5k"
    protocol: str = "ppp:clients=4"
    """Without rounds, which are said here."""
    rounds: int = 3
    turns: int = 3
    """How often all ways are measured, one after the other."""
    workers: int = 2
    flower: bool = True

    def __post_init__(self) -> None:
        for name in ("rounds", "turns", "workers"):
            if getattr(self, name) < 1:
                raise SettingError(f"The measurement needs {name} of at least 1, got {getattr(self, name)}.")

    def setup(self, out: str = "") -> Setup:
        """One round more than are counted."""
        words = f"{self.protocol}{',' if ':' in self.protocol else ':'}rounds={self.rounds + 1}"
        return Setup(model=self.model, data=self.data, protocol=words, out=out, tested=False)


def paces(pace: Pace) -> dict[str, Any]:
    """Images a second of every way, turn by turn, with what each is of the plain loop's median."""
    federation = pace.setup().federation()
    federation.prepare()
    ways: dict[str, Callable[[], float]] = {
        PLAIN: lambda: plain_loop(pace),
        HERE: lambda: in_this_process(federation, pace),
    }
    if pace.flower:
        ways[FLOWER] = lambda: simulated(pace)
    found = {name: spread(rates) for name, rates in interleave(ways, pace.turns, lambda: None).items()}
    base = found[PLAIN]["median"]
    return {name: {**figures, "of_plain": figures["median"] / base} for name, figures in found.items()}


def in_this_process(federation: federated.Federation, pace: Pace) -> float:
    """`federated.train` without tests."""
    done = federated.train(federation, tested=(), workers=pace.workers, progress=False).history[1:]
    return _rate(done)


def plain_loop(pace: Pace) -> float:
    """Tensors in memory, index, forward, backward, step, in as many processes as the others have workers.

    Threads would share Python's lock, which costs small models half of their pace.
    """
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(pace.workers), context.Queue()
    workers = [context.Process(target=_loop, args=(pace, w, ready, answers), daemon=True) for w in range(pace.workers)]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
    return float(sum(samples for samples, _ in found) / max(seconds for _, seconds in found))


def _loop(pace: Pace, first: int, ready: "Barrier", answers: "Queue[tuple[int, float]]") -> None:
    """One process: every so many-th client's images, for as many rounds as count and one before them."""
    torch.set_num_threads(1)
    federation = pace.setup().federation()
    protocol = federation.protocol
    images = federation.images("train", np.arange(federation.dataset.count("train")))
    labels = federation.labels("train", np.arange(len(images)))
    held = [torch.from_numpy(holding.train) for holding in federation.holdings[first :: pace.workers]]
    model = copy.deepcopy(federation.template).train()
    rule = make_optimiser(protocol, model, 0)

    def train() -> int:
        batches = [
            batch
            for places in held
            for _ in range(protocol.epochs or 1)
            for batch in torch.split(places[torch.randperm(len(places))], protocol.batch_size)[: protocol.steps]
        ]
        for batch in batches:
            rule.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(images[batch]), labels[batch]))
            rule.step()
        return sum(map(len, batches))

    train()
    ready.wait(timeout=600)
    began = time.perf_counter()
    samples = sum(train() for _ in range(pace.rounds))
    answers.put((samples, time.perf_counter() - began))


def simulated(pace: Pace) -> float:
    """The same federation as an app in Flower's simulation, with as many of Ray's workers, one core each."""
    # Read when Flower is loaded: a measurement tells nobody of itself, and Ray would warn of what is no change here.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from dosimeter.federated.flower import client_app, server_app  # says what to install where Flower is missing

    with tempfile.TemporaryDirectory() as folder, _quiet():
        from flwr.simulation import run_simulation

        setup = pace.setup(folder)
        run_simulation(
            server_app(setup),
            client_app(replace(setup, out="")),
            num_supernodes=setup.federation().protocol.clients,
            backend_config={
                "init_args": {"num_cpus": pace.workers, "include_dashboard": False, "log_to_driver": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        done = read_history(Path(folder))["rounds"][1:]
    return _rate(done)


def _rate(rounds: Sequence[dict[str, Any]]) -> float:
    return float(sum(entry["samples"] for entry in rounds) / sum(entry["seconds"] for entry in rounds))


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower without its log, which would stand between the lines of a table."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
