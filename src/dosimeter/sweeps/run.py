"""Many trials as one: those that the store has cost nothing, the others run in turn or side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dosimeter.sweeps.places import HERE, Item, Place, place_of
from dosimeter.sweeps.planning import foreseen
from dosimeter.sweeps.shards import Shard, run_split, shards_of
from dosimeter.sweeps.store import Entry, Status, Store
from dosimeter.sweeps.table import Table
from dosimeter.sweeps.trial import Course, Trial, forget, product_of


@dataclass
class Progress:
    """How far a sweep is, for whoever shows it."""

    digests: frozenset[str]
    before: frozenset[str]  # those that were done when it began
    workers: int = 1
    done: int = 0
    failed: int = 0
    running: tuple[str, ...] = ()  # their words, here and in other processes
    seconds: float = 0.0  # of those that were done since
    foreseen: Mapping[str, float] = field(default_factory=dict)  # seconds by digest, where trials are unlike each other
    behind: float = 0.0  # what was foreseen of those that were done since; each counts as 1 where nothing was
    ahead: float = 0.0  # of those that are left
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of trials in shards, the digests of these
    beside: frozenset[str] = frozenset()  # trainings that trials need

    @property
    def kept(self) -> int:
        return len(self.before)

    @property
    def left(self) -> int:
        return len(self.digests) - self.kept - self.done - self.failed

    @property
    def remaining(self) -> float | None:
        """Seconds that the rest may take: what was foreseen of it, by how right that was of those that were run.

        None before the first, where nothing was foreseen.
        """
        if not self.behind:
            return self.ahead / self.workers if self.foreseen else None
        return self.seconds / self.behind * self.ahead / self.workers

    def look(self, store: Store) -> "Progress":
        """As the store says it is by now."""
        ours, standing = self.digests - self.before, store.standing()
        mine = {digest: each for digest, each in standing.items() if digest in ours}
        took = {digest: seconds or 0.0 for digest, (status, seconds) in mine.items() if status is Status.DONE}
        gone = {digest for digest, (status, _) in mine.items() if status is Status.FAILED}
        self.done, self.seconds, self.failed = len(took), sum(took.values()), len(gone)
        self.behind, self.ahead = (
            sum(self.foreseen.get(digest, 1.0) for digest in some) for some in (took, ours - took.keys() - gone)
        )
        for digest in ours - took.keys() - gone:
            for part in (parts := self.parts.get(digest, ())):
                status, seconds = standing.get(part, (None, None))
                if status is Status.DONE:
                    share = self.foreseen.get(digest, 1.0) / len(parts)
                    self.seconds, self.behind, self.ahead = (
                        self.seconds + (seconds or 0.0), self.behind + share, self.ahead - share,
                    )  # fmt: skip
        shown = self.digests.union(self.beside, *self.parts.values()) - self.parts.keys()
        running = [each for each in store.entries(Status.RUNNING) if each.digest in shown]
        self.running = tuple(said(each.words) for each in running)
        return self


Told = Callable[[Progress], None]


def sweep(
    axes: Mapping[str, Any] | Sequence[Trial],
    *,
    store: str | Path = "sweep",
    on: str = HERE,
    retry_failed: bool = False,
    told: Told | None = None,
    foresee: bool = False,
    shards: int = 1,
) -> Table:
    """Run every trial that the store does not have, and give all of them as a table.

    Args:
        axes: {setting of `Trial`: value or values}, of which every combination is tried; or trials.
        store: the folder of trials, which is made; other sweeps may share it.
        on: "here", one after another with all cores; "local:2", two processes of one thread each; or a Ray cluster,
            "ray" on this machine, "ray:HOST:6379" or "ray://HOST:10001".
        retry_failed: run those again that failed before.
        told: how far it is, whenever that changes.
        foresee: tell the time that is left by what each trial is foreseen to take, where they are unlike each other;
            that takes a second or so for each kind of them.
        shards: into how many parts the victims of each trial are cut, which are attacked side by side where the place
            has room for several, with the same results.
    """
    forget()
    trials = list(product_of(axes)) if isinstance(axes, Mapping) else list(axes)
    for each in trials:
        each.prepare()  # which refuses what cannot work before there is a store
    with Store(store) as kept:
        how: dict[str, Any] = {"on": on, "shards": shards, "retry_failed": retry_failed}
        found = run_all(trials, kept, told=told, foresee=foresee, **how)
        rows = {each.digest: _row(trial, each, kept) for trial, each in zip(trials, found, strict=True)}
    return Table(list(rows.values()))


def run_all(
    trials: Sequence[Trial | Course], store: Store, *, on: str | Place = HERE, retry_failed: bool = False,
    told: Told | None = None, foresee: bool = False, shards: int = 1,
) -> list[Entry]:  # fmt: skip
    """Run what the store misses of trials, and give what it has of each of them then; the rest as in `sweep`."""
    every = [each.prepare() for each in trials]
    prepared = list({each.digest: each for each in every}.values())
    place, wanted = place_of(on) if isinstance(on, str) else on, frozenset(each.digest for each in prepared)
    if retry_failed:
        store.prune(each.digest for each in store.entries(Status.FAILED) if each.digest in wanted)
    before = wanted & {digest for digest, (status, _) in store.standing().items() if status is Status.DONE}
    left = [each for each in prepared if each.digest not in before]
    cut = [(each, shards_of(each, shards)) for each in left] if shards > 1 else []
    split: dict[Item, list[Shard]] = {each: parts for each, parts in cut if parts}
    progress = Progress(
        wanted,
        before,
        foreseen=foreseen(left, place) if foresee else {},
        parts={one.digest: [part.digest for part in parts] for one, parts in split.items()},
        beside=frozenset(each.needs.digest for each in left if each.needs),
    )

    def tell() -> None:
        progress.workers = place.workers  # a cluster grows and shrinks
        if told:
            told(progress.look(store))

    tell()  # also where all of it is kept
    run_split(split, [each for each in left if each not in split], store, place, tell)
    entries = {each.digest: each for each in store.entries()}
    return [entries[each.digest] for each in every]


def said(words: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in words.items()) or "all by default"


def _row(trial: Trial, entry: Entry, store: Store) -> dict[str, Any]:
    """A trial's words and numbers side by side."""
    told = {"digest": entry.digest, "status": entry.status.value, "seconds": entry.seconds}
    training = store.entry(entry.uses) if entry.uses else None
    accuracy = (training.found or {}) if training else {}
    why = {"why": entry.reason} if entry.why else {}
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in vars(trial).items()},
        **told,
        **why,
        **{key: accuracy[key] for key in ("accuracy",) if key in accuracy},
        **(entry.found or {}),
    }
