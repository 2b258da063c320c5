"""Large audits in shards of their victims, which are items of their own until all of them are done."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dosimeter import fingerprint
from dosimeter.auditing import shards
from dosimeter.sweeps.places import Item, Place, Tell, why
from dosimeter.sweeps.store import Status, Store
from dosimeter.sweeps.trial import Prepared, Trial


@dataclass(frozen=True)
class ShardOf:
    """Some of the victims of a trial, in words."""

    trial: Trial
    at: int  # from 1
    of: int
    first: int
    last: int

    def prepare(self) -> "Shard":
        whole = self.trial.prepare()
        assert isinstance(whole, Prepared)
        return Shard(self, whole, fingerprint.of([whole.digest, self.first, self.last]))


class Loaded(NamedTuple):
    """What attacks some of the victims."""

    whole: Any  # what `Prepared.loaded` gives
    first: int
    last: int

    def run(self, folder: Path, needed: Any = None, *, workers: int | None = None) -> shards.Shard:
        audit = self.whole.at(needed)
        audit = replace(audit, resources=replace(audit.resources, workers=workers))
        return shards.attack_shard(audit, slice(self.first, self.last), steps=self.whole.steps)

    def demand(self) -> tuple[int, int]:
        found: tuple[int, int] = self.whole.demand()
        return found


@dataclass(frozen=True, eq=False)
class Shard:
    """Some of the victims of a trial."""

    asked: ShardOf
    whole: Prepared
    digest: str

    kind = "shard"

    @property
    def words(self) -> dict[str, Any]:
        return self.whole.words | {"shard": f"{self.asked.at} of {self.asked.of}"}

    @property
    def needs(self) -> Item | None:
        return self.whole.needs

    def loaded(self) -> Loaded:
        return Loaded(self.whole.loaded(), self.asked.first, self.asked.last)

    def run(self, folder: Path, needed: Any = None, *, workers: int | None = None) -> shards.Shard:
        return self.loaded().run(folder, needed, workers=workers)

    def keep(self, store: Store, found: shards.Shard, seconds: float) -> None:
        shards.write_shard(store.place(self.digest), found)
        store.trained(self.digest, {}, seconds)

    def read(self, folder: Path, *, workers: int | None = None) -> shards.Shard:
        return shards.read_shard(folder)


def shards_of(one: Item, many: int) -> list[Shard]:
    """An audit's shards, so many or as many as it has tiles; none where that would be itself."""
    if not isinstance(one, Prepared):
        return []
    cut = shards.cut(one.audit, many, steps=one.steps)
    if len(cut) < 2:
        return []
    return [ShardOf(one.asked, at, len(cut), each.start, each.stop).prepare() for at, each in enumerate(cut, 1)]


def run_split(split: dict[Item, list[Shard]], rest: Sequence[Item], store: Store, place: Place, tell: Tell) -> None:
    """Run shards of audits and all other items side by side, then judge every audit by all of its shards.

    An audit counts as run by this process from the first shard on, and what was done of it is kept when it is stopped.
    """
    held = {one: parts for one, parts in split.items() if store.claim(*_told(one), uses=_uses(one))}
    try:
        place.run([*(part for parts in held.values() for part in parts), *rest], store, tell)
        for one, parts in held.items():
            _judge(one, parts, store)
            tell()
    except BaseException:
        for one in held:
            store.release(one.digest)
        raise
    place.run([one for one in split if one not in held], store, tell)  # which others run


def _judge(one: Item, parts: Sequence[Shard], store: Store) -> None:
    entries = [store.entry(part.digest) for part in parts]
    failed = next((each for each in entries if each is not None and each.status is Status.FAILED), None)
    try:
        if failed is not None:
            store.fail(one.digest, failed.why or "")
        else:
            needed = one.needs.read(store.place(one.needs.digest)) if one.needs else None
            loaded: Any = one.loaded()
            found = [part.read(store.place(part.digest)) for part in parts]
            result = shards.judge_shards(loaded.at(needed), found, steps=loaded.steps)
            one.keep(store, result, result.seconds)
    except Exception as error:  # such as a metric of the user's own
        store.fail(one.digest, why(error))
    store.prune(part.digest for part in parts)


def _told(one: Item) -> tuple[str, str, Any]:
    return one.digest, one.kind, one.words


def _uses(one: Item) -> str | None:
    return one.needs.digest if one.needs else None
