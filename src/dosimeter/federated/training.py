"""Rounds in this process, each kept as soon as it is done."""

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter import checks, files
from dosimeter.errors import ModelError, SettingError
from dosimeter.federated.accounting import privacy
from dosimeter.federated.checkpoint import ROUND, Checkpoint, read_checkpoint, write_checkpoint
from dosimeter.federated.client import fit
from dosimeter.federated.federation import Federation, State
from dosimeter.federated.server import average, chosen, counted, evaluate, validate
from dosimeter.federated.workers import Fits, Task
from dosimeter.federated.workers import workers as side_by_side
from dosimeter.progress import bar

PATIENCE = 10.0
"""Seconds that an estimate may take."""

Round = dict[str, Any]
"""One round's figures as plain values: round, accuracy, loss, train_loss, validation_loss, clients, seconds, ..."""


class Training(NamedTuple):
    """Where a training stands after its last round, or where it was stopped."""

    state: State  # the server's weights
    private: dict[int, State]  # each client's own
    history: list[Round]
    optimisers: dict[int, State] = {}  # noqa: RUF012  of clients that go on with theirs


Watch = Callable[[int, State, dict[int, State]], None]
"""Called with the number of rounds done, the server's weights and the clients' own; also before the first of them."""


def train(
    federation: Federation,
    *,
    folder: str | Path | None = None,
    begin: Training | None = None,
    until: int | None = None,
    tested: Collection[int] | None = None,
    watch: Watch | None = None,
    workers: int | None = None,
    processes: bool | None = None,
    progress: bool | None = None,
) -> Training:
    """Train a federation, clients side by side, each on one core.

    Args:
        folder: where every round is kept; a training that was stopped there goes on, and ends as if it had not been.
        begin: an earlier round of the same training, for a folder that has none.
        until: the number of done rounds to stop at; the protocol's by default.
        tested: numbers of done rounds after which accuracy is measured; all by default.
        watch: told of the weights after every round.
        workers: clients at once, by default one a core.
        processes: whether each is a process; by default where a round has enough to do.
        progress: show a bar; by default when standard error is a terminal.
    """
    checks.count("Training", "workers", workers)
    protocol = federation.protocol
    folder = None if folder is None else Path(folder)
    if folder:
        files.check_writable(folder)
    with ExitStack() as held:
        if folder:
            held.enter_context(files.alone(folder))  # two in one folder would mix their rounds; the second waits
        at = _beginning(federation, folder, begin, tested)
        federation.prepare()
        if watch:
            watch(at.done, at.state, at.private)
        last = protocol.rounds if until is None else until
        at_once = min(workers or os.cpu_count() or 1, protocol.taking_part())
        samples = _samples(federation, chosen(federation, at.done))
        fits = held.enter_context(side_by_side(federation, at_once, samples=samples, processes=processes))
        advance = held.enter_context(bar(f"{last} rounds", last, show=progress))
        advance(at.done, _note(at.history))
        while at.done < last and not _stale(at.history, protocol.patience):
            began = time.perf_counter()
            at = _round(federation, at, fits, tested is None or at.done + 1 in tested)
            at.history[-1]["seconds"] = time.perf_counter() - began
            if folder:
                write_checkpoint(folder, federation, at)
            advance(at.done, _note(at.history))
            if watch:
                watch(at.done, at.state, at.private)
        if folder and not (folder / ROUND).is_file():
            write_checkpoint(folder, federation, at)  # of a training that had nothing to do
    return Training(at.state, at.private, at.history, at.optimisers)


def _beginning(
    federation: Federation, folder: Path | None, begin: Training | None, tested: Collection[int] | None
) -> Checkpoint:
    if folder and (at := read_checkpoint(folder, federation, tested=tested)):
        return at
    begin = begin or Training(federation.initial(), {}, [])
    return Checkpoint(len(begin.history), begin.state, begin.private, begin.optimisers, begin.history)


def check_rounds(federation: Federation, at: Collection[int]) -> None:
    """Refuse rounds that a training does not have."""
    beyond = [round_ for round_ in at if not 0 <= round_ <= federation.protocol.rounds]
    if beyond:
        raise SettingError(
            f"Training has {federation.protocol.rounds} rounds, so there is no round {beyond[0]} to audit."
        )


def estimate_training(federation: Federation, *, workers: int | None = None) -> float:
    """Seconds of a whole training, from the first client's first round, actually run; nothing is kept.

    Of a long round only as many steps are taken as `PATIENCE` seconds allow.
    """
    protocol, client, clock = federation.protocol, chosen(federation, 0)[0], _Clock()
    began = time.perf_counter()
    try:
        fit(federation, federation.initial(), client, 0, stop=clock)
    except KeyboardInterrupt:
        if not clock.over:
            raise  # by somebody else
    steps = protocol.steps or (protocol.epochs or 1) * federation.batches[client].many
    took = (time.perf_counter() - began) * max(1.0, steps / max(1, clock.steps))
    turns = -(-protocol.taking_part() // (workers or os.cpu_count() or 1))
    return took * turns * protocol.rounds


class _Clock(threading.Event):
    """Ends a client's round when its time is up, and counts the steps until then."""

    def __init__(self) -> None:
        super().__init__()
        self.ends, self.steps, self.over = time.perf_counter() + PATIENCE, 0, False

    def is_set(self) -> bool:
        self.over = self.steps > 0 and time.perf_counter() > self.ends
        self.steps += not self.over
        return self.over


def _round(federation: Federation, at: Checkpoint, fits_of: Fits, tested: bool) -> Checkpoint:
    took_part = chosen(federation, at.done)
    began = time.perf_counter()
    tasks = [Task(c, at.done, at.private.get(c), at.optimisers.get(c)) for c in took_part]
    fits = fits_of(at.state, tasks)
    fitting = time.perf_counter() - began
    state = {**at.state, **average([each.sent for each in fits], [each.examples for each in fits])}
    _check_finite(state, at.done)
    private = dict(at.private)
    optimisers = dict(at.optimisers)
    for client, each in zip(took_part, fits, strict=True):
        private |= {client: each.private} if each.private else {}
        optimisers |= {client: each.optimiser} if each.optimiser else {}
    images = sum(each.examples for each in fits)
    entry: Round = {
        "round": at.done + 1,
        "clients": len(fits),
        "steps": max(each.steps for each in fits),
        "train_loss": sum(each.loss * each.examples for each in fits) / images,
        "bytes": sent_bytes(fits[0].sent),
        "fitting": fitting,
        "samples": _samples(federation, took_part),
        **({"left_out": federation.left_out} if federation.left_out else {}),
        **privacy(federation, at.done + 1),
    }
    if tested:
        entry |= score(federation, state, private, at.done + 1)
    if federation.protocol.validation:
        entry["validation_loss"] = _validation(federation, state, private, at.done + 1)
    return Checkpoint(at.done + 1, state, private, optimisers, [*at.history, entry])


def picked(history: Sequence[Round]) -> Round:
    """The round whose model one would take: of the lowest validation loss, or the last where nothing validates.

    The test split has no say in it, or its accuracy would flatter.
    """
    return min(history, key=lambda entry: (entry.get("validation_loss", 0.0), -entry["round"]))


def sent_bytes(sent: State) -> int:
    """What one client sends in a round."""
    return sum(tensor.numel() * tensor.element_size() for tensor in sent.values())


def _samples(federation: Federation, took_part: list[int]) -> int:
    """Images that clients trained on in a round, counted as often as they were seen."""
    protocol, cut = federation.protocol, [(federation.holdings[c].train, federation.batches[c]) for c in took_part]
    if protocol.epochs is not None:
        return protocol.epochs * sum(min(len(held), size * many) for held, (size, many) in cut)
    return (protocol.steps or 0) * sum(size for _, (size, _) in cut)


def score(federation: Federation, state: State, private: dict[int, State], rounds: int) -> Round:
    """Accuracy of the server's weights after so many rounds; with weights or keys of their own the mean of the clients
    that have trained, each of them, and a stranger's."""
    if not federation.own:
        return dict(evaluate(federation, state)._asdict())
    each = {c: evaluate(federation, state, c, private.get(c)) for c in counted(federation, rounds)}
    random = evaluate(federation, {**state, **federation.initial_private()})
    return {
        "loss": sum(found.loss for found in each.values()) / len(each),
        "accuracy": sum(found.accuracy for found in each.values()) / len(each),
        "accuracies": [each[c].accuracy if c in each else None for c in range(federation.protocol.clients)],
        "random_key": random.accuracy,
    }


def _validation(federation: Federation, state: State, private: dict[int, State], rounds: int) -> float:
    """The mean of the clients' validation losses."""
    found = [validate(federation, state, c, private.get(c)) for c in counted(federation, rounds)]
    losses = [each.loss for each in found if each is not None]
    return sum(losses) / len(losses)


def _stale(history: list[Round], patience: int | None) -> bool:
    """Whether the best validation loss is that many rounds old."""
    if patience is None or not history:
        return False
    losses = [entry["validation_loss"] for entry in history]
    return len(losses) - 1 - losses.index(min(losses)) >= patience


def _check_finite(state: State, round_: int) -> None:
    for name, tensor in state.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ModelError(
                f"Training diverged: {name!r} is not finite after round {round_ + 1}; use a smaller "
                "learning rate or less noise."
            )


def _note(history: list[Round]) -> str:
    last = next((entry["accuracy"] for entry in reversed(history) if "accuracy" in entry), None)
    return "" if last is None else f"accuracy {last:.2%}"
