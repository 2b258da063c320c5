"""The work of an audit: parts that fit together, steps of clients, tiles of victims side by side."""

import math
import threading
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dosimeter import clients, engine, rng, trees
from dosimeter.attacks import Search
from dosimeter.auditing.observing import like, noticed, observe
from dosimeter.auditing.setting import Setting
from dosimeter.auditing.target import as_attacked, make_target, untold
from dosimeter.auditing.watches import Watches
from dosimeter.defenses import NoDefense, shortcuts
from dosimeter.errors import DataError, SettingError
from dosimeter.progress import Advance
from dosimeter.types import (
    Observation,
    Reconstruction,
    Selective,
    Target,
    ThreatModel,
    Trained,
    Victims,
    Watch,
)


class Job:
    """An audit whose parts were checked and fit together."""

    def __init__(self, model: nn.Module, victims: Victims, setting: Setting) -> None:
        low, high = float(victims.images.min()), float(victims.images.max())
        if not (low >= 0 and high <= 1):
            raise DataError(f"Images must be in [0, 1], got values from {low:.4g} to {high:.4g}; divide bytes by 255.")
        setting = clipping(setting)
        self.victims, self.setting, self.threat = victims, setting, setting.granted()
        with rng.scoped(setting.seed, "defense", "model"):
            defended = setting.defense.on_model(model, victims.shape)
        self.target = make_target(
            setting.server(defended, shape=victims.shape, batch=victims.batch),
            victims.shape,
            setting,
            batch=victims.batch,
            labels=victims.labels[0],
            highest=int(victims.labels.max()),
        )
        check_secrets(self.target)
        if isinstance(setting.attack, Selective):
            setting.attack.check(untold(self.target, self.threat, victims.batch), victims.batch)
        at_once = getattr(setting.attack, "at_once", 1)
        plan = engine.plan(
            self.target,
            victims=len(victims.ids),
            # An attack that simulates no update only has to hold what it saw.
            batch=victims.batch if at_once else 1,
            restarts=max(1, at_once),
            passes=getattr(setting.attack, "draws", 1)
            * max(getattr(setting.attack, "passes", 1), self.trained.steps if self.trained else 1),
            budget=setting.budget,
            workers=1 if setting.compiled else setting.workers,
            extra=setting.attack.footprint(self.target, victims.batch) if isinstance(setting.attack, Search) else 0,
        )
        # Updates of the same client stay together.
        self.plan = plan._replace(victims=max(setting.same_client, plan.victims - plan.victims % setting.same_client))

    @property
    def trained(self) -> Trained | None:
        """How clients train locally, where they do."""
        return trained(self.target, self.victims.batch)

    @property
    def classes(self) -> int | None:
        """Among how many classes the attack recovers labels; None where labels are granted or no classes."""
        return classes(self.target, self.setting, self.victims.batch)

    def settings(self) -> dict[str, Any]:
        """What was set, as plain values."""
        tiles = {"tile": self.plan.victims, "workers": self.plan.workers}
        return described(self.target, self.setting, self.victims.batch) | tiles | self.setting.defense.facts()

    def observe(self, target: Target, victims: Victims) -> list[Observation]:
        """What the server sees of the victims' steps, round by round."""
        return observe(target, victims, self.setting, self.threat)

    def explain(self) -> list[engine.Explanation]:
        """Which tensor is compared in which way and why, found out on the first victim."""
        seen = self.observe(self.target, self.victims.take(slice(1)))[0]
        exact = getattr(getattr(self.setting.attack, "likelihood", None), "exact", False)
        # What is compared in which way does not depend on what the attacker was told of local training.
        target = as_attacked(self.target, ThreatModel(statistics=self.threat.statistics), self.victims.batch)
        matcher = engine.Matcher(target, seen.gradient, statistics=seen.statistics, exact=exact)
        grey = torch.full_like(self.victims.images[:1], 0.5).to(self.target.mean)
        first = torch.zeros(1, dtype=torch.long, device=grey.device)
        drawn = trees.stack([clients.draw_secrets(target, self.victims.batch, rng.stream(0, "explain"))])
        matcher(grey, like(self.victims.labels[:1], self.target), first, drawn)
        return matcher.explain()

    def attack_first_tile(self, watch: Watch) -> None:
        """The attack on the victims of one tile, on one thread, for as long as `watch` allows."""
        with engine.threads.one_thread_each():
            seen = self.observe(self.target, self.victims.take(slice(self.plan.victims)))
            target = as_attacked(self.target, self.threat, self.victims.batch)
            self.setting.attack(target, seen, seed=self.setting.seed, watch=watch)

    def run(self, advance: Advance, *, limit: float = math.inf) -> tuple[Reconstruction, Reconstruction]:
        """The attack's and the blind attack's images of all victims, or of those reached before Ctrl-C.

        After `limit` seconds the attack gives up; of victims that it did not come to it says that its time was up.
        """
        attack, seed, size, n = self.setting.attack, self.setting.seed, self.plan.victims, len(self.victims.ids)
        stop = threading.Event()
        watches = Watches(advance, stop, tiles=-(-n // size), limit=limit)

        def work(first: int) -> tuple[Reconstruction, Reconstruction]:
            # A model of its own: while torch.func runs a model, its parameters are exchanged for all threads.
            target = replace(self.target, model=engine.clone_modules(self.target.model))
            seen = self.observe(target, self.victims.take(slice(first, first + size)))
            target = as_attacked(target, self.threat, self.victims.batch)
            tile = first // size
            found = watches.ended(tile, noticed(attack(target, seen, seed=seed, watch=watches.of(tile)), seen))
            return found, attack.blind()(target, seen, seed=seed, watch=watches.blind())

        done = engine.threads.run(work, range(0, n, size), workers=self.plan.workers, stop=stop)
        if not done:
            raise KeyboardInterrupt
        return on_cpu([found for found, _ in done]), on_cpu([blind for _, blind in done])


def trained(target: Target, batch: int) -> Trained | None:
    """How clients train locally on so many images, where they do."""
    step = target.step
    return Trained(step.count(batch), step.lr) if isinstance(step, clients.LocalTraining) else None


def classes(target: Target, setting: Setting, batch: int) -> int | None:
    """Among how many classes the attack recovers labels; None where labels are granted or no classes."""
    if setting.attack.needs().labels or not target.classification:
        return None
    with torch.no_grad():
        return int(target.model(torch.zeros(batch, *target.shape).to(target.mean)).shape[1])


def described(target: Target, setting: Setting, batch: int) -> dict[str, Any]:
    """What was set, as plain values."""
    attack, defense, loss = setting.attack, setting.defense, target.loss
    return {
        "parameters": sum(p.numel() for p in target.parameters.values()),
        "shape": list(target.shape),
        "attack_name": attack.name,
        "attack": repr(attack),
        "defense": "none" if defense == NoDefense() else repr(defense),
        "server": "honest" if setting.granted().server == "honest" else repr(setting.server),
        "step": "gradient" if target.step is None else repr(target.step),
        "loss": "cross-entropy" if target.classification else getattr(loss, "__name__", type(loss).__name__),
        "batch": batch,
        "seed": setting.seed,
        "dtype": str(target.mean.dtype).removeprefix("torch."),
        "device": str(target.mean.device),
        "budget": setting.budget,
        **shortcuts(target.model, target.shape),
    }


def check_secrets(target: Target) -> None:
    """Refuse local training of a model that draws numbers for every image in every pass.

    One gradient an example is one pass, and what a client draws for good, such as a key, is the same in all of them.
    """
    fresh = any(secret.scope == "image" for secret in target.secrets.values())
    if fresh and not isinstance(target.step, clients.ClippedGradient | None):
        raise SettingError(
            f"The defense draws new numbers inside the model in every pass, and {target.step!r} takes several; "
            "audit it on one gradient."
        )


def clipping(setting: Setting) -> Setting:
    """The setting in which clients clip, where their defense does."""
    bound = setting.defense.clips()
    if bound is None:
        return setting
    if setting.step is not None:
        raise SettingError(f"The defense clips gradients and does not go with {setting.step!r}; use one of them.")
    return replace(setting, step=clients.ClippedGradient(bound=bound))


def on_cpu(parts: list[Reconstruction]) -> Reconstruction:
    """Chunks one after another, on the CPU."""
    whole = trees.join(parts)
    return whole._replace(
        images=whole.images.cpu().float(),
        labels=None if whole.labels is None else whole.labels.cpu(),
        match=whole.match.cpu(),
        steps=whole.steps.cpu(),
        restart=whole.restart.cpu(),
        curve=whole.curve._replace(match=whole.curve.match.cpu()),
    )
