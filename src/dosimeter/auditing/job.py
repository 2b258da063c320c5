"""The work of an audit: parts that fit together, steps of clients, tiles of victims side by side."""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from dosimeter import clients, engine, fingerprint, rng, trees
from dosimeter.attacks import Attack
from dosimeter.attacks.stages import only
from dosimeter.auditing.case import Attacker, Client, clipping, resolve
from dosimeter.auditing.observe import clean, like, noticed, observe
from dosimeter.auditing.planning import planned, trained
from dosimeter.auditing.setting import Audit
from dosimeter.auditing.target import as_attacked, untold
from dosimeter.auditing.watches import Watches
from dosimeter.defenses import NoDefense, shortcuts
from dosimeter.errors import DataError, SettingError
from dosimeter.progress import Advance
from dosimeter.types import (
    Observation,
    Reconstruction,
    Target,
    ThreatModel,
    Trained,
    Victims,
    Watch,
)

T = TypeVar("T")

COPIES = 6
"""Of all images that are held until they are scored."""
WORKER = 3 * 2**20
"""Bytes that a worker takes in any case."""


class Ran(NamedTuple):
    """What came of an attack on victims, and what the auditor knows beside it."""

    found: Reconstruction
    blind: Reconstruction  # the same without the updates
    truth: Tensor  # (V,) how far the clients' own steps are from their updates, in the attack's measure


class Job:
    """An audit whose parts were checked and fit together."""

    client: Client
    attacker: Attacker

    def __init__(self, audit: Audit) -> None:
        victims = audit.victims
        assert victims is not None
        low, high = float(victims.images.min()), float(victims.images.max())
        if not (low >= 0 and high <= 1):
            raise DataError(f"Images must be in [0, 1], got values from {low:.4g} to {high:.4g}; divide bytes by 255.")
        _check_shadows(audit.attack, victims)
        audit = clipping(audit)
        self.victims, self.audit, attack = victims, audit, audit.attack
        with rng.scoped(audit.seed, "defense", "model"):
            defended = audit.defense.on_model(audit.model, victims.shape)
        sent = audit.server(defended, shape=victims.shape, batch=victims.batch)
        highest = int(victims.labels.max())
        self.client, self.attacker = resolve(
            audit, sent, victims.shape, victims.batch, labels=victims.labels[0], highest=highest
        )
        target, self.threat = self.client.target, self.attacker.threat
        known = untold(target, self.threat, victims.batch)
        attack.check(known, victims.batch)
        plan = planned(audit, target, known, self.threat, victims=len(victims.ids), batch=victims.batch)
        # Updates of the same client stay together.
        tied = audit.updates.same_client
        self.plan = plan._replace(victims=max(tied, plan.victims - plan.victims % tied))
        self.client = replace(self.client, target=replace(target, stretch=plan.stretch))
        simulated = replace(self.attacker.target, stretch=plan.stretch, part=plan.part)
        fitted = attack.at_most(plan.restarts).fitted(self.attacker.target, victims.batch)
        self.attacker = replace(self.attacker, target=simulated, attack=fitted)
        self.bytes = plan.bytes + self._kept()
        """That all of it takes at most, beside the program and the data set."""
        self.cost, longer = self.attacker.attack.cost(known, victims.batch), self.attacker.attack.again(1)
        self.longer = 0 if longer is None else longer.cost(known, victims.batch).steps
        """Steps of a search that is begun anew, where any is."""

    def _kept(self) -> int:
        """Bytes that are held over all tiles, of images (originals, what was found with and without updates), and by
        workers in any case."""
        return COPIES * self.victims.images.numel() * self.victims.images.element_size() + self.plan.workers * WORKER

    @property
    def trained(self) -> Trained | None:
        """How clients train locally, where they do."""
        return trained(self.client.target, self.victims.batch)

    @property
    def classes(self) -> int | None:
        """Among how many classes the attack recovers labels; None where labels are granted or no classes."""
        return classes(self.client.target, self.audit.attack, self.victims.batch)

    def settings(self) -> dict[str, Any]:
        """What was set, as plain values."""
        tiles = {"tile": self.plan.victims}
        if not self.audit.resources.steady:  # which has the same settings everywhere
            tiles["workers"] = self.plan.workers
        said = described(self.client.target, self.audit, self.victims.batch) | chosen(self.attacker.attack)
        return said | tiles | self.client.defense.facts()

    def observe(self, victims: Victims, client: Client | None = None) -> list[Observation]:
        """What the server sees of the victims' steps, round by round."""
        return observe(client or self.client, victims, self.threat)

    def explain(self) -> list[engine.Explanation]:
        """Which tensor is compared in which way and why, found out on the first victim."""
        return self.matched().explain()

    def matched(self) -> engine.Matcher:
        """What compares the first victim's update with that of a grey image, after it has chosen its way."""
        seen = self.observe(self.victims.take(slice(1)))[0]
        # What is compared in which way does not depend on what the attacker was told of local training.
        client = self.client.target
        target = as_attacked(client, ThreatModel(statistics=self.threat.statistics), self.victims.batch)
        matcher = engine.Matcher(target, seen.gradient, statistics=seen.statistics, exact=self.attacker.attack.exact)
        grey = torch.full_like(self.victims.images[:1], 0.5).to(client.mean)
        first = torch.zeros(1, dtype=torch.long, device=grey.device)
        drawn = trees.stack([clients.draw_secrets(target, self.victims.batch, rng.stream(0, "explain"))])
        matcher(grey, like(self.victims.labels[:1], client), first, drawn)
        return matcher

    def attack_first_tile(self, watch: Watch, *, blind: bool = False) -> Reconstruction:
        """The attack on the victims of one tile, or the same without updates, on one thread, while `watch` allows."""
        attack = self.attacker.guess if blind else self.attacker.read
        with engine.threads.one_thread_each():
            return attack(self.observe(self.victims.take(slice(self.plan.victims))), watch)

    def run(self, advance: Advance, *, limit: float = math.inf) -> Ran:
        """What the attack finds of all victims, or of those reached before Ctrl-C.

        After `limit` seconds the attack gives up; of victims that it did not come to it says that its time was up.
        """

        def work(victims: Victims, tile: int, watches: Watches) -> Ran:
            attacker, client = self.attacker.cloned(), self.client.cloned()
            seen = self.observe(victims, client)
            found = watches.ended(tile, noticed(attacker.read(seen, watches.of(tile)), seen))
            blind = attacker.guess(seen, watches.blind())
            return Ran(found, blind, self._truth(attacker, client, victims, seen))

        tiles = self._tiles(range(len(self.victims.ids)))
        found, blind, truth = zip(*self._side_by_side(tiles, work, advance, limit), strict=True)
        return Ran(on_cpu(found), on_cpu(blind), torch.cat(truth))

    def _truth(self, attacker: Attacker, client: Client, victims: Victims, seen: Sequence[Observation]) -> Tensor:
        """(V,) what the clients' own updates match, a client at a time: all of them would be as much as was seen."""
        tied, many = self.audit.updates.same_client, len(victims.ids)
        found = [
            attacker.attack.apart(
                attacker.target, clean(client, victims.take(part), self.threat), [only(each, part) for each in seen]
            )
            for part in (slice(first, first + tied) for first in range(0, many, tied))
        ]
        return torch.cat(found).detach().cpu()

    def run_again(self, attack: Attack, who: list[int], advance: Advance, *, limit: float) -> Reconstruction:
        """What another attack finds of some of the victims, or of the first of these before Ctrl-C."""

        def work(victims: Victims, tile: int, watches: Watches) -> Reconstruction:
            seen = self.observe(victims, self.client.cloned())
            attacker = replace(self.attacker, attack=attack).cloned()
            return watches.ended(tile, noticed(attacker.read(seen, watches.of(tile)), seen))

        return on_cpu(self._side_by_side(self._tiles(who), work, advance, limit))

    def _tiles(self, who: Sequence[int]) -> list[list[int]]:
        """Victims that are attacked at once; where tiles are steady only those who were from the first on."""
        size = self.plan.victims
        if self.audit.resources.steady:
            return [list(tile) for _, tile in groupby(who, lambda v: v // size)]
        return [list(who[first : first + size]) for first in range(0, len(who), size)]

    def _side_by_side(
        self,
        tiles: Sequence[list[int]],
        work: Callable[[Victims, int, Watches], T],
        advance: Advance,
        limit: float,
    ) -> list[T]:
        """The work on tiles of victims, of those that were begun before Ctrl-C."""
        stop = threading.Event()
        watches = Watches(advance, stop, tiles=len(tiles), limit=limit)
        done = engine.threads.run(
            lambda at: work(self.victims.take(tiles[at]), at, watches),
            range(len(tiles)),
            workers=self.plan.workers,
            stop=stop,
        )
        if not done:
            raise KeyboardInterrupt
        return done


def _check_shadows(attack: Attack, victims: Victims) -> None:
    """Refuse victims by whom the attack was tuned, who would make it look better than it is."""
    known = set(attack.shadows)
    for place, image in (
        zip(victims.indices.flatten().tolist(), victims.images.flatten(0, 1), strict=True) if known else ()
    ):
        if fingerprint.of(image) in known:
            raise SettingError(
                f"Expected victims beside the images that {attack.name!r} was tuned on, got number {place} of the "
                "data, which is one of them; audit others (--seed, --indices)."
            )


def classes(target: Target, attack: Attack, batch: int) -> int | None:
    """Among how many classes the attack recovers labels; None where labels are granted or no classes."""
    if attack.needs().labels or not target.classification:
        return None
    with torch.no_grad():
        return int(target.model(torch.zeros(batch, *target.shape).to(target.mean)).shape[1])


def chosen(attack: Attack) -> dict[str, str]:
    """What a fitted attack had picked for the task, where anything was."""
    return {"picked": attack.picked} if attack.picked else {}


def described(target: Target, audit: Audit, batch: int) -> dict[str, Any]:
    """What was set, as plain values."""
    attack, defense, loss = audit.attack, audit.defense, target.loss
    return {
        "parameters": sum(p.numel() for p in target.parameters.values()),
        "shape": list(target.shape),
        "attack_name": attack.name,
        "attack": repr(attack),
        "steps": attack.steps,
        "defense": "none" if defense == NoDefense() else repr(defense),
        "server": "honest" if audit.granted().server == "honest" else repr(audit.server),
        "step": "gradient" if target.step is None else repr(target.step),
        "loss": "cross-entropy" if target.classification else getattr(loss, "__name__", type(loss).__name__),
        "batch": batch,
        "seed": audit.seed,
        "dtype": str(target.mean.dtype).removeprefix("torch."),
        "device": str(target.mean.device),
        "budget": audit.resources.budget,
        **({} if audit.resources.minutes is None else {"minutes": audit.resources.minutes}),
        **shortcuts(target.model, target.shape),
    }


def on_cpu(parts: Sequence[Reconstruction]) -> Reconstruction:
    """Chunks one after another, on the CPU."""
    whole = trees.join(parts)
    return whole._replace(
        images=whole.images.cpu().float(),
        trained_on=None if whole.trained_on is None else whole.trained_on.cpu().float(),
        labels=None if whole.labels is None else whole.labels.cpu(),
        match=whole.match.cpu(),
        steps=whole.steps.cpu(),
        restart=whole.restart.cpu(),
        curve=whole.curve._replace(
            match=whole.curve.match.cpu(),
            traces={name: each.cpu().float() for name, each in whole.curve.traces.items()},
        ),
    )
