"""What a sweep adds to its trials, and what more workers gain: `dosimeter bench sweep`.

The same trials are swept on every place in turn, each time into a store of its own. Short trials show what one takes
beside its attack (preparing, claiming, judging, writing) and how long a place takes to begin; long ones show the
speed-up.
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dosimeter.auditing import Result
from dosimeter.errors import SettingError
from dosimeter.sweeps import Status, Store, Trial, sweep
from dosimeter.sweeps.places import processes

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

HERE, ONE, TWO, RAY = "here", "local:1", "local:2", "ray"
WORKERS = {HERE: 1, ONE: 1, TWO: 2}
FLOOR = 1.7
"""How many times as fast two workers of one thread should be as one, on two cores with nothing else to do."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is swept."""

    trials: int = 8
    steps: int = 1500
    """Of a long trial; a short one has a single step."""
    model: str = "cnn"
    victims: int = 8
    turns: int = 1
    """How often all places are measured, one after the other."""
    ray: bool = True
    seconds: float = 2.0
    """That the store is written to."""

    def __post_init__(self) -> None:
        for name in ("trials", "steps", "victims", "turns"):
            if getattr(self, name) < 1:
                raise SettingError(f"The measurement needs {name} of at least 1, got {getattr(self, name)}.")

    def made(self, steps: int) -> list[Trial]:
        return [
            Trial(model=self.model, attack="ig", steps=steps, victims=self.victims, seed=seed)
            for seed in range(self.trials)
        ]


class Swept(NamedTuple):
    """One sweep."""

    whole: float  # seconds from its call to its end
    begun: float  # until the first trial was claimed
    attacks: float  # of all trials
    workers: int

    def beside(self, trials: int) -> float:
        """Seconds of a worker that a trial takes beside its attack."""
        return ((self.whole - self.begun) * self.workers - self.attacks) / trials


def measure(load: Load, told: Callable[[str], None]) -> dict[str, Any]:
    """All places, their speed-up, and what the store takes in."""
    places = [HERE, ONE, TWO, *([RAY] if load.ray and find_spec("ray") else [])]
    short: dict[str, list[Swept]] = {place: [] for place in places}
    long: dict[str, list[Swept]] = {place: [] for place in places}
    for turn in range(load.turns):
        for place in places[turn % len(places) :] + places[: turn % len(places)]:
            told(f"{load.trials} trials on {place}, short ones and long ones")
            short[place].append(_sweep(load.made(1), place))
            long[place].append(_sweep(load.made(load.steps), place))
    rows: list[dict[str, Any]] = [
        {
            "place": place,
            "begins_after": _middle(each.begun for each in short[place]),
            "beside_a_trial": _middle(each.beside(load.trials) for each in short[place]),
            "trial": _middle(each.attacks / load.trials for each in long[place]),
            "whole": _middle(each.whole for each in long[place]),
        }
        for place in places
    ]
    whole = {row["place"]: row["whole"] for row in rows}
    running = {place: _middle(each.whole - each.begun for each in some) for place, some in long.items()}
    told("what the store takes in")
    return {
        "trials": load.trials,
        "rows": rows,
        "speed_up": whole[ONE] / whole[TWO],
        "speed_up_running": running[ONE] / running[TWO],
        "floor": FLOOR,
        "store": _intake(load),
    }


def _middle(values: Any) -> float:
    return float(statistics.median(values))


def _sweep(trials: Sequence[Trial], place: str) -> Swept:
    with tempfile.TemporaryDirectory() as folder:
        clock, began = time.perf_counter(), time.time()
        sweep(trials, store=folder, on=place)
        whole = time.perf_counter() - clock
        with Store(folder, create=False) as store:
            done = store.entries(Status.DONE)
        if len(done) < len(trials):
            raise SettingError(f"Only {len(done)} of {len(trials)} trials could be run on {place}; try one by itself.")
        first = min(each.began or began for each in done) - began
        workers = WORKERS.get(place) or _cores()
        return Swept(whole, first, sum(each.seconds or 0.0 for each in done), min(workers, len(trials)))


def _cores() -> int:
    return multiprocessing.cpu_count()


def _intake(load: Load) -> dict[str, float]:
    """Trials a second that a store takes in: entries alone, and with their folders, by one writer and by two."""
    result = Trial(model="lenet", attack="ig", steps=1, victims=load.victims).prepare().run(Path())
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        found["entries"] = _entered(Path(folder) / "entries", None, load.seconds)
        found["one writer"] = _entered(Path(folder) / "one", result, load.seconds)
        found["two writers"] = _two(Path(folder) / "two", load)
    return found


def _entered(folder: Path, result: Result | None, seconds: float, name: str = "") -> float:
    """Trials a second that one process claims and enters; without a result, no folder and no records."""
    with Store(folder) as store:
        began, done = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            digest = f"{name}{done:016x}"
            store.claim(digest, "audit" if result else "training", {"seed": done})
            if result:
                store.finish(digest, result)
            else:
                store.trained(digest, {"accuracy": 0.5}, 1.0)
            done += 1
    return done / passed


def _two(folder: Path, load: Load) -> float:
    """Both at once; each makes the result itself, since it would take long to send."""
    started = processes()
    ready, answers = started.Barrier(2), started.Queue()
    both = [started.Process(target=_write, args=(str(folder), load, n, ready, answers), daemon=True) for n in (0, 1)]
    for each in both:
        each.start()
    rate = sum(answers.get(timeout=300) for _ in both)
    for each in both:
        each.join()
    return float(rate)


def _write(folder: str, load: Load, number: int, ready: "Barrier", answers: "Queue[float]") -> None:
    result = Trial(model="lenet", attack="ig", steps=1, victims=load.victims).prepare().run(Path(), workers=1)
    ready.wait(timeout=300)
    answers.put(_entered(Path(folder), result, load.seconds, str(number)))
