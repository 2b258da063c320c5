"""Items as tasks of a Ray cluster: this process claims and writes, workers only compute and send back what they found.

A worker needs dosimeter in this version and nothing else of this machine: models, data and weights lie in Ray's object
store, where each is put once, and programs of the user's own travel with what they are used for.
"""

import os
import signal
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch
from ray import exceptions as lost

from dosimeter import files, fingerprint
from dosimeter.errors import DosimeterError, OutputError, SettingError
from dosimeter.federated.checkpoint import ROUND
from dosimeter.sweeps.packing import Packed, Packer, dumps, unpack
from dosimeter.sweeps.places import WAIT, Item, Tell, why
from dosimeter.sweeps.store import Status, Store

TIMES = 3
"""How often an item is run again whose worker or node was lost."""

AGAIN = 2.0
"""Seconds before a cluster that did not answer is asked once more."""

PROGRAM = 400 * 2**20
"""Bytes that a worker takes before it has anything to do."""


@dataclass
class Cluster:
    """A Ray cluster, by its address; by default one on this machine, which is started where there is none."""

    address: str | None = None
    workers: int = field(default=1, init=False)  # as many as it has cores

    def __post_init__(self) -> None:
        if self.address is None:
            self.workers = os.cpu_count() or 1  # as many as one that is started here has; of others that is seen later

    def run(self, items: Sequence[Item], store: Store, tell: Tell) -> None:
        if items:
            with _connected(self.address) as ours:
                _Driver(self, store, tell, ours=ours).run(items)

    def look(self) -> None:
        """See how large it is by now."""
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 0)))


@contextmanager
def _connected(address: str | None) -> Iterator[bool]:
    """With Ray, quietly, and whether for this alone; a program that has called `ray.init` stays with its own."""
    if ray.is_initialized():
        yield False
        return
    if address and address != "auto":
        _reach(address)
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            _begin(address)
        except (ConnectionError, RuntimeError):  # a head that is busy or has only begun may be late
            ray.shutdown()
            time.sleep(AGAIN)
            _begin(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SettingError(_unreachable(address or "auto", error)) from None
    try:
        if main:
            signal.signal(signal.SIGTERM, before)  # which Ray takes for itself
        yield True
    finally:
        ray.shutdown()  # which ends all that it has running there


def _begin(address: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def _reach(address: str) -> None:
    """Refuse an address where nobody listens, which Ray would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise SettingError(_unreachable(address, error)) from None


def _unreachable(address: str, error: Exception) -> str:
    return (
        f"Expected a Ray cluster at {address!r} (--on), but {files.reason(error)}; start one (ray start --head) and "
        "name ray:HOST:6379 from one of its machines or ray://HOST:10001 from any other, or --on ray for this one."
    )


class Done(NamedTuple):
    """What a worker sends back."""

    found: Any = None
    files: tuple[tuple[str, bytes], ...] = ()  # that it wrote, in the order in which it did
    seconds: float = 0.0
    failed: str = ""
    other: str = ""  # the worker's version, where that is not the driver's


class _Sent(NamedTuple):
    """An item on its way."""

    one: Item
    needed: Packed | None
    asked: bool  # or only needed by another


class _Driver:
    """The one process that knows what runs where, and that writes."""

    def __init__(self, cluster: Cluster, store: Store, tell: Tell, *, ours: bool) -> None:
        self.cluster, self.store, self.tell, self.ours = cluster, store, tell, ours
        self.packer, self.task = Packer(ray.put), ray.remote(_work)
        self.away: dict[Any, _Sent] = {}
        self.values: dict[str, Packed] = {}  # of done items that others need
        self.broken: dict[str, str] = {}  # why others that are needed failed
        self.lost: Counter[str] = Counter()

    def run(self, items: Sequence[Item]) -> None:
        left = list(items)
        try:
            while left or self.away:
                self.cluster.look()
                left = self._send_some(left)
                self.tell()
                self._take_back()
            self.tell()
        except BaseException:
            with files.undisturbed():
                for task, sent in self.away.items():
                    self.store.release(sent.one.digest)
                    if not self.ours:  # or it ends with the connection: Ray may die of cancelling what ends just then
                        ray.cancel(task)
            raise

    def _send_some(self, left: Sequence[Item]) -> list[Item]:
        """Send as many as there is room for; gives those about which something is left to do."""
        waiting = list[Item]()
        for at, one in enumerate(left):
            if len(self.away) >= self.cluster.workers:
                return [*waiting, *left[at:]]
            if not self._sent(one):
                waiting.append(one)
        return waiting

    def _sent(self, one: Item) -> bool:
        """Whether an item is on its way, done or failed; if not it waits for others, here or elsewhere."""
        entry = self.store.entry(one.digest)
        if entry is not None and entry.status is not Status.RUNNING:
            return True
        needed = None
        if one.needs is not None and one.needs.digest not in self.broken:
            needed = self._value(one.needs)
            if needed is None and one.needs.digest not in self.broken:
                return False
        if not self.store.claim(one.digest, one.kind, one.words, uses=one.needs.digest if one.needs else None):
            entry = self.store.entry(one.digest)
            return entry is not None and entry.status is not Status.RUNNING
        if one.needs is not None and one.needs.digest in self.broken:
            self.store.fail(one.digest, self.broken[one.needs.digest])
        else:
            self._send(_Sent(one, needed, asked=True))
        return True

    def _value(self, one: Item) -> Packed | None:
        """What came of an item that others need; it is sent where it is missing and nobody runs it."""
        if one.digest in self.values or any(each.one.digest == one.digest for each in self.away.values()):
            return self.values.get(one.digest)
        needed = None
        if one.needs is not None:
            needed = self._value(one.needs)
            if one.needs.digest in self.broken:
                self.broken[one.digest] = self.broken[one.needs.digest]
            if needed is None:
                return None
        entry = self.store.entry(one.digest)
        if entry is not None and entry.status is Status.DONE:
            self.values[one.digest] = self.packer.pack(one.read(self.store.place(one.digest)))
        elif self.store.claim(
            one.digest, one.kind, one.words, uses=one.needs.digest if one.needs else None, again=True
        ):
            self._send(_Sent(one, needed, asked=False))
        return self.values.get(one.digest)

    def _send(self, sent: _Sent) -> None:
        try:
            loaded = sent.one.loaded()
            gpus, memory = loaded.demand()
            asked = {"num_cpus": 1, "num_gpus": gpus, "memory": PROGRAM + memory}
            self._check_room(asked)
            given = _files_in(self.store.place(sent.one.digest))
            task = self.task.options(**asked, max_retries=TIMES, name=f"{sent.one.kind} {sent.one.digest}").remote(
                fingerprint.code(), self.packer.pack(loaded), sent.needed, given
            )
        except Exception as error:  # such as a part of the user's that cannot be sent
            self._failed(sent, why(error))
            return
        self.away[task] = sent

    def _check_room(self, asked: Mapping[str, float]) -> None:
        """Refuse what no node could ever run; Ray would wait for one."""
        names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        if not any(all(each.get(names[key], 0) >= many for key, many in asked.items()) for each in nodes):
            raise DosimeterError(
                f"Expected a node with {asked['num_cpus']} core, {asked['num_gpus']} GPU and "
                f"{asked['memory'] / 2**30:.2f} GiB of memory, found none in the Ray cluster; lower the budget or the "
                "batch, or add a larger node."
            )

    def _take_back(self) -> None:
        """Keep what came back since, and wait a moment where nothing did."""
        if not self.away:
            time.sleep(WAIT)
            return
        ray.wait(list(self.away), timeout=WAIT)
        for task in ray.wait(list(self.away), num_returns=len(self.away), timeout=0)[0]:
            sent = self.away[task]
            try:
                done: Done = unpack(Packed(ray.get(task), {}), ray.get)
            except lost.RayTaskError as error:
                raise SettingError(
                    f"Ray's workers cannot run dosimeter ({files.reason(error.cause or error)}); install it on every "
                    "node, in the version that you have here."
                ) from None
            except lost.RayError as error:
                del self.away[task]
                self._lost(sent, error)
                continue
            if done.other:
                raise SettingError(
                    f"Expected {fingerprint.code()} on every node of the Ray cluster, got {done.other}; install the "
                    "same everywhere."
                )
            self._came(sent, done)
            del self.away[task]

    def _lost(self, sent: _Sent, error: Exception) -> None:
        self.lost[sent.one.digest] += 1
        if self.lost[sent.one.digest] > TIMES:
            self._failed(sent, f"Its worker on Ray was lost again and again: {files.reason(error)}")
        else:
            self._send(sent)

    def _came(self, sent: _Sent, done: Done) -> None:
        if done.failed:
            self._failed(sent, done.failed)
            return
        one, store = sent.one, self.store
        try:
            for name, content in done.files:
                files.replace(store.place(one.digest) / name, content)
            one.keep(store, done.found, done.seconds)
        except OutputError:  # a disk that is full, which is no fault of the item's
            raise
        except Exception as error:
            self._failed(sent, why(error))
            return
        if not sent.asked:
            self.values[one.digest] = self.packer.pack(done.found)

    def _failed(self, sent: _Sent, reason: str) -> None:
        """Keep why; what others need is free again, and they fail for the same reason."""
        if sent.asked:
            self.store.fail(sent.one.digest, reason)
        else:
            self.store.release(sent.one.digest)
            self.broken[sent.one.digest] = reason


def _work(code: str, packed: Packed, needed: Packed | None, given: Sequence[tuple[str, bytes]]) -> bytes:
    """An item on a worker, on one thread as in a process of `Local`."""
    if fingerprint.code() != code:
        return dumps(Done(other=fingerprint.code()))
    try:
        torch.set_num_threads(1)
        loaded = unpack(packed, ray.get)
        value = None if needed is None else unpack(needed, ray.get)
        with files.scratch() as place:
            folder = place / "item"
            for name, content in given:
                files.replace(folder / name, content)
            began = time.monotonic()
            found = loaded.run(folder, value, workers=1)
            return dumps(Done(found, _files_in(folder), time.monotonic() - began))
    except Exception as error:  # whatever a part of the user's raises is kept for them to see
        return dumps(Done(failed=why(error)))


def _files_in(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """Names and contents of all but drafts; a training's round comes last, as where it is written.

    Not by their times, since clocks jump.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    paths.sort(key=lambda path: path.name == ROUND)
    return tuple((path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths)
