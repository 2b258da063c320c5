"""What an audit would cost, before it is run: work that is counted on its first steps, and a machine's prices.

    core-seconds = calls * seconds a call in their form + operations * seconds an operation + bytes * seconds a byte

A call is one operation of torch, a form the engine's way of comparing gradients (`chain`, `tape`, `vmap`, `one by one`)
or `search` for all that is outside of it. Bytes are those that calls read and write. `dosimeter bench costs` fits
prices to what the benchmark's cases take on a machine; those of another one are shipped for machines where nobody did.
"""

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from dosimeter import files
from dosimeter.auditing.again import TIMES
from dosimeter.auditing.job import Job
from dosimeter.auditing.run import Paced, first_steps
from dosimeter.auditing.setting import Audit
from dosimeter.data import cache_folder
from dosimeter.errors import DataError, SettingError
from dosimeter.federated import Federation
from dosimeter.federated.client import fit
from dosimeter.federated.server import chosen

FILE, SHIPPED = "prices.json", Path(__file__).parent / "prices.json"
LIKELY = 7 / 3
"""How many times its fewest steps a search takes that stops by itself: 1,400 after 600, the median of 570 searches."""
KEPT = 8
"""Images of a trial by which it is measured how long keeping one takes."""
PATIENCE = 20.0
"""Seconds that counting an attack's first steps may take."""


@dataclass(frozen=True)
class Work:
    """What a machine has to do, whichever it is."""

    calls: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.calls + other.calls, self.flops + other.flops, self.bytes + other.bytes)

    def __sub__(self, other: "Work") -> "Work":
        return self + other * -1

    def __mul__(self, times: float) -> "Work":
        return Work(self.calls * times, self.flops * times, self.bytes * times)

    def __truediv__(self, by: float) -> "Work":
        return self * (1 / by)


class Counter(TorchDispatchMode):
    """Counts the work of the block that it is put around, on the thread of that block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls, self._flops, self._bytes = 0, 0, 0

    def so_far(self) -> Work:
        return Work(self._calls, self._flops, self._bytes)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        found = function(*args, **given)
        self._calls += 1
        if function.is_view:
            return found
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            self._flops += formula(*args, **given, out_val=found)
        elif "linalg" in function.name():  # about as many as any factoring of a matrix takes
            self._flops += sum(4 * each.numel() * min(each.shape[-2:]) for each in args[:1] if each.ndim > 1)
        self._bytes += sum(map(_size, _tensors([*args, *given.values(), found])))
        return found


def _tensors(values: Any) -> Iterator[Tensor]:
    """Those among what an operation takes and gives, which are no deeper than in lists."""
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _size(tensor: Tensor) -> int:
    """Bytes that it has of its own; one that was expanded has fewer than entries."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What work costs on a machine, in core-seconds."""

    machine: str
    calls: dict[str, float]  # by form, and of the search itself
    flop: float
    byte: float
    attack: float  # an attack's setting up and judging, whatever it works on
    image: float  # the judging of an image
    start: float  # a process that imports all and prepares its first trial
    trial: float  # preparing one
    kept: float  # writing what came of one of `KEPT` images, its folder and its entry
    resident: int  # bytes that a process holds before it works
    crowd: float  # how much longer a step takes when every core runs one in the same process

    def keeping(self, images: int) -> float:
        """Core-seconds of the one who writes what came of a trial."""
        return self.kept * max(1.0, images / KEPT)

    def of(self, work: Work, form: str = "search") -> float:
        return work.calls * self.calls[form] + work.flops * self.flop + work.bytes * self.byte


def machine() -> str:
    """This one's name: processor, cores, vectors, torch."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {os.cpu_count()} cores, {vectors}, torch {torch.__version__.partition('+')[0]}"


@cache
def prices() -> Prices:
    """Those that were fitted on this machine, or else those that are shipped."""
    own = cache_folder() / FILE
    for path in (own, SHIPPED) if own.is_file() else (SHIPPED,):
        try:
            found = Prices(**files.read_json(path))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{str(path)!r} has no prices ({error}); make it anew: dosimeter bench costs.") from None
        if found.machine == machine():
            return found
    return found


def keep(found: Prices, path: Path | None = None) -> Path:
    """Write prices where this machine's are looked for, or elsewhere."""
    path = path or cache_folder() / FILE
    files.replace_json(path, asdict(found))
    return path


class Span(NamedTuple):
    """A number at least, as it is likely to be, and at most."""

    least: float = 0.0
    likely: float = 0.0
    most: float = 0.0

    def map(self, change: Callable[[float], float]) -> "Span":
        return Span(*map(change, self))

    @staticmethod
    def total(several: Sequence["Span"]) -> "Span":
        return Span(*map(sum, zip(*several, strict=True))) if several else Span()


class Cost(NamedTuple):
    """What one attack on all victims would take."""

    attack: str
    form: str = ""
    steps: Span = Span()  # of a search; none where victims are solved for
    images: Span = Span()  # image-steps, the steps of all candidates
    work: Span = Span()  # floating-point operations
    seconds: Span = Span()  # of cores
    wall: Span = Span()  # on the threads that it was planned for
    bytes: int = 0  # above those of the program
    refused: str = ""


def cost_of(audit: Audit, priced: Prices) -> Cost:
    """By its first steps; three are run on the victims of a tile, with the attack and without the update."""
    try:
        job = Job(audit)
    except SettingError as reason:
        return Cost(audit.attack.name, refused=str(reason))
    form, nothing = _form(job), Paced(Work(), Work(), 0, 0)
    with Counter() as counter:
        paced = first_steps(job, counter.so_far, patience=PATIENCE)
        blind = first_steps(job, counter.so_far, patience=PATIENCE, blind=True) if job.cost.steps else nothing
    searched, most = job.cost.steps or 1, 1 + TIMES * job.longer / (job.cost.steps or 1)
    least = (job.cost.least or searched) / searched
    turns = Span(least, min(1.0, LIKELY * least), most)
    victims, batch = len(job.victims.ids), job.victims.batch
    tiles = -(-victims // job.plan.victims)
    counted = min(victims, job.plan.victims)
    full = victims / (tiles * counted)  # the last tile may have fewer victims, but as many calls
    step = _filled(paced.each * paced.total, full)
    once = _filled(paced.before + blind.before + blind.each * blind.total, full)
    fixed = tiles * priced.of(once) + priced.attack + priced.image * victims * batch
    own = _filled(blind.each * paced.total, full)  # of a step, what is not the comparing of gradients
    match = replace(step - own, calls=max(0.0, step.calls - own.calls))
    each = tiles * (priced.of(match, form) + priced.of(own))
    walked = job.cost.steps * job.plan.restarts * max(1, job.cost.candidates) * victims * batch
    seconds = turns.map(lambda share: fixed + each * share)
    beside = tiles / -(-tiles // job.plan.workers)
    crowded = 1 + (priced.crowd - 1) * (beside > 1)
    return Cost(
        attack=audit.attack.name,
        form=form,
        steps=turns.map(lambda share: share * job.cost.steps),
        images=turns.map(lambda share: share * walked),
        work=turns.map(lambda share: tiles * (once.flops + step.flops * share)),
        seconds=seconds,
        wall=seconds.map(lambda all_: all_ * crowded / beside),
        bytes=job.plan.bytes,
    )


def _filled(work: Work, share: float) -> Work:
    return Work(work.calls, work.flops * share, work.bytes * share)


def _form(job: Job) -> str:
    """The engine's way; gradients of straight networks are written out from the tape where it comes to that."""
    if not job.cost.steps:
        return "search"
    way = job.matched().way
    assert way is not None
    return "tape" if way == "chain" and job.cost.entries else way


def training_cost(federation: Federation, priced: Prices, *, rounds: int | None = None) -> float:
    """Core-seconds of a training, by the first batches of its first client; tests are a third of a step.

    All `rounds` of its protocol are counted unless fewer are asked for.
    """
    protocol, marks = federation.protocol, list[Work]()

    class Stop:
        def is_set(self) -> bool:
            marks.append(counter.so_far())
            return len(marks) > 3

    with Counter() as counter:
        with suppress(KeyboardInterrupt):
            fit(federation, federation.initial(), chosen(federation, 0)[0], 0, stop=Stop())  # type: ignore[arg-type]
        marks.append(counter.so_far())
    first = min(1, len(marks) - 2)  # the first of several fills caches
    each = priced.of((marks[-1] - marks[first]) / (len(marks) - 1 - first))
    batches = [federation.batches[client] for client in chosen(federation, 0)]
    taken = sum((protocol.steps or 0) if protocol.epochs is None else protocol.epochs * many for _, many in batches)
    tested = federation.dataset.count("test") / max(size for size, _ in batches) / 3
    return (protocol.rounds if rounds is None else rounds) * each * (taken + tested)
