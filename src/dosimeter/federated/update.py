"""The audit of one update that a server kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter import data, fingerprint
from dosimeter.attacks import Attack
from dosimeter.attacks.pool import find_members
from dosimeter.auditing import Audit, Capture, Captured, Result, Updates, examine, part
from dosimeter.auditing.captured.captured import shadowed, unlike
from dosimeter.auditing.captured.seeing import see
from dosimeter.auditing.captured.survey import Entry
from dosimeter.auditing.records import Identification
from dosimeter.auditing.result import InterruptedCapture
from dosimeter.errors import DosimeterError, ModelError
from dosimeter.federated.facts import Trained
from dosimeter.federated.kept import Kept
from dosimeter.federated.plan import Plan
from dosimeter.types import Victims

LABELS = "labels"
"""The attack on updates whose images are not searched for."""

NEAREST = 5
"""Images of the pool that are named where none is certain."""


class Audited(NamedTuple):
    """What came of one update; the result where its images were searched for."""

    entry: Entry
    result: Captured | None


@dataclass(frozen=True, eq=False)
class Update:
    """One client's round, to be audited."""

    plan: Plan
    kept: Kept
    beside: dict[str, Result]  # audits of shadows, which updates share
    before: Mapping[str, Captured]  # results of an earlier run
    minutes: float | None = None  # for all attacks on it

    def audited(self, facts: Trained | DosimeterError) -> Audited:
        kept = self.kept
        name = kept.metrics.get("partition-id", kept.metrics.get("client"))
        client = f"client {name}" if isinstance(name, int | float) else f"node {kept.node}"
        head: dict[str, Any] = {"round": kept.round, "node": kept.node, "client": client}
        if isinstance(facts, DosimeterError):
            return Audited(Entry(**head, images=kept.examples or 1, trained="", left_out={"all": str(facts)}), None)
        found, left_out, attack = None, dict[str, str](), self.plan.audit.attack
        if not attack.reads_images:
            left_out["images"] = f"the attack {attack.name} does not search for them"
        elif facts.images > self.plan.which.most:
            left_out["images"] = f"{facts.images:,} images, more than {self.plan.which.most} (--most)"
        else:
            found, left_out = self._tried("images", facts, attack)
        searched = found
        if found is None:
            found, why = self._tried("labels", facts, part("attack", LABELS))
            left_out |= why
        entry = Entry(
            **head, images=facts.images, trained=facts.words, doubts=facts.doubts,
            attack=None if searched is None else attack.name,
            finding=None if found is None else found.scores,
        )  # fmt: skip
        entry, why = self._named(entry, facts)
        return Audited(replace(entry, left_out=left_out | why), searched)

    def _tried(self, what: str, facts: Trained, attack: Attack) -> tuple[Captured | None, dict[str, str]]:
        """What an attack makes of the update, or why it does not fit."""
        try:
            return self._examined(facts, attack), {}
        except ModelError as reason:
            if self.plan.which.batch_norm or facts.batch_norm == "running":
                return None, {what: str(reason)}
        except DosimeterError as reason:
            return None, {what: str(reason)}
        # No client can have trained so, whatever became of its statistics.
        return self._tried(what, facts._replace(batch_norm="running"), attack)

    def _examined(self, facts: Trained, attack: Attack) -> Captured:
        kept, plan = self.kept, self.plan
        capture = Capture(facts.update(kept, plan.audit.model), plan.shape, facts.images, lr=facts.lr)
        audit = replace(
            plan.audit, model=kept.model(plan.audit.model), attack=attack, step=facts.step,
            updates=Updates(batch_norm=facts.batch_norm), victims=self._shadows(facts.images),
            resources=replace(plan.audit.resources, minutes=self.minutes and self.minutes / (1 + self._told(facts))),
            names=dict(plan.audit.names) | {"update": f"round {kept.round}, node {kept.node}"},
        )  # fmt: skip
        made = fingerprint.of([plan.made, attack, facts, kept.before, kept.after]) if plan.made else ""
        if made in self.before:
            return self.before[made]
        truth = plan.beside.truth.get((kept.round, kept.node))
        try:
            beside = None if audit.victims is None else self._beside(audit, capture)
            found = examine(audit, capture, truth, beside=beside)
            if attack.reads_images and self._told(facts):
                found = self._held(audit, capture, facts, found)
        except InterruptedCapture as cut:
            return cut.result
        return replace(found, made=made)

    def _told(self, facts: Trained) -> bool:
        """Whether the running statistics tell exactly those of the client's one pass."""
        return facts.step is None and facts.batch_norm == "batch" == self.kept.batch_norm(self.plan.audit.model)

    def _held(self, audit: Audit, capture: Capture, facts: Trained, found: Captured) -> Captured:
        """What was found, or what the same attack finds with the statistics that the client had held fixed.

        Its own candidates' statistics hide the contrast of an image, and the client's hide how they move with it; of
        both ways that one counts whose images explain better what the client sent.
        """
        model = self._as_trained(facts)
        held = replace(audit, model=model, updates=Updates(batch_norm="running"), victims=None)
        other = examine(held, capture, self.plan.beside.truth.get((self.kept.round, self.kept.node)), really=audit)
        norms = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
        told = {n: (x.running_mean, x.running_var) for n, x in norms.items() if x.running_mean is not None}
        first, second = (unlike(audit, capture, each, told) for each in (found, other))  # type: ignore[arg-type]
        if second >= first:
            return found
        return replace(other, scores=replace(other.scores, shadows=found.scores.shadows))

    def _as_trained(self, facts: Trained) -> nn.Module:
        return self.kept.as_trained(self.plan.audit.model, self.plan.shape, facts.images)

    def _shadows(self, batch: int) -> Victims | None:
        held = self.plan.beside
        if held.dataset is None or not held.shadows or held.shadows * batch > held.dataset.count(held.split):
            return None
        return data.pick(held.dataset, held.shadows, batch=batch, seed=self.plan.audit.seed, split=held.split)

    def _beside(self, audit: Audit, capture: Capture) -> Result:
        """The audit of shadows, once for all updates of the same step on as many images at the same weights."""
        key = fingerprint.of([audit.attack, audit.step, audit.updates, capture.batch, capture.lr, self.kept.before])
        if key not in self.beside:
            self.beside[key] = shadowed(audit, capture)
        return self.beside[key]

    def _named(self, entry: Entry, facts: Trained) -> tuple[Entry, dict[str, str]]:
        """Which images of the pool are in the update."""
        plan, kept = self.plan, self.kept
        if plan.beside.pool is None:
            return entry, {}
        truth, images, labels = (
            plan.beside.truth.get((kept.round, kept.node)),
            plan.beside.pool.images,
            plan.beside.pool.labels,
        )
        if truth is not None:  # among others than its own
            own = truth.images[0].flatten(1)
            other = torch.tensor([not (image == own).all(1).any() for image in images.flatten(1)], dtype=torch.bool)
            images = torch.cat([truth.images[0], images[other]])
            labels = torch.cat([truth.labels[0], labels[other]])
        model = self._as_trained(facts) if facts.batch_norm == "batch" else kept.model(plan.audit.model)
        capture = Capture(kept.update(plan.audit.model, facts.lr), plan.shape, facts.images)
        audit = replace(plan.audit, model=model, attack=part("attack", LABELS))
        try:
            seen = see(audit, capture)
            found = find_members(seen.attacker.target, seen.observation, images, labels)
        except DosimeterError as reason:
            return entry, {"pool": str(reason)}
        if truth is None:
            nearest = tuple(
                j for j in found.weights.argsort(descending=True)[:NEAREST].tolist() if found.weights[j] > 0
            )
            return replace(entry, named=found.certain, nearest=nearest, left=found.left), {}
        first = set(found.weights.argsort(descending=True)[: facts.images].tolist())
        hits = sum(j in first and found.weights[j] > 0 for j in range(facts.images))
        chance = facts.images / len(images)
        told = Identification(int(hits), facts.images, chance=chance)
        return replace(entry, pool=told, left=found.left), {}
