"""The audit of a whole federation: every update that its server kept, by client and round."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dosimeter import data, fingerprint
from dosimeter.attacks import Attack
from dosimeter.attacks.pool import find_members
from dosimeter.auditing import Audit, Capture, Captured, Result, Updates, examine, part
from dosimeter.auditing.captured.captured import shadowed
from dosimeter.auditing.captured.seeing import see
from dosimeter.auditing.captured.survey import Entry, Survey
from dosimeter.auditing.records import COMPLETE, INTERRUPTED, Identification
from dosimeter.auditing.result import InterruptedCapture, environment
from dosimeter.auditing.score import Scoring
from dosimeter.auditing.setting import Resources
from dosimeter.clients import LocalTraining
from dosimeter.defenses import Defense, NoDefense
from dosimeter.errors import DataError, DosimeterError, ModelError, SettingError, UpdateError
from dosimeter.federated.facts import Trained, trained
from dosimeter.federated.kept import Kept, read_kept
from dosimeter.progress import bar
from dosimeter.types import BatchNorm, Loss, Shape, Victims

MOST = 16
"""Images of an update up to which they are searched for."""

LABELS = "labels"
"""The attack on updates whose images are not searched for."""

NEAREST = 5
"""Images of the pool that are named where none is certain."""

Batches = Mapping[tuple[int, int], Victims]
"""{(round, node): its batch}"""


class Pool(NamedTuple):
    """Images (n, C, H, W) and labels (n,) that may be in an update."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which updates are audited, and what is said of them that was not kept."""

    rounds: tuple[int, ...] = ()  # only these, counted from 1; all by default
    most: int = MOST  # images of an update up to which they are searched for
    batch: int | None = None  # images behind every update; by default as many as its client says
    batch_norm: BatchNorm | None = None  # how clients ran it; by default what their running statistics show


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside:
    """What an auditor has beside the updates."""

    truth: Batches = field(default_factory=dict)  # one victim each, for scores alone
    pool: Pool | None = None  # images that may have been in the updates
    dataset: data.Dataset | None = None  # images of the auditor's own
    shadows: int = 8  # updates of them that each round is compared with
    split: str = "train"  # of the data


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How a federation is audited."""

    audit: Audit  # with the app's model, whose weights are those of each round
    shape: Shape
    said: LocalTraining | None = None  # how clients trained, where that was not kept
    which: Which = Which()
    beside: Beside = field(default_factory=Beside)

    @property
    def made(self) -> str:
        """The fingerprint of all that determines what comes of an update, without the update itself."""
        audit, beside = self.audit, self.beside
        parts = [audit.model, audit.attack, audit.defense, audit.loss, audit.seed, audit.scoring, audit.resources.dtype]
        others = [beside.truth, beside.dataset and beside.dataset.fingerprint, beside.shadows, beside.split]
        try:
            return fingerprint.of([fingerprint.code(), parts, self.shape, self.said, self.which, others])
        except ModelError:  # a part that cannot be told from others
            return ""


class Audited(NamedTuple):
    """What came of one update; the result where its images were searched for."""

    entry: Entry
    result: Captured | None


def audit(
    folder: str | Path,
    model: nn.Module,
    *,
    shape: Shape,
    attack: Attack | str = "ig",
    step: LocalTraining | str | None = None,
    which: Which | None = None,
    beside: Beside | None = None,
    defense: Defense | str | None = None,
    loss: Loss | str | None = None,
    seed: int = 0,
    resources: Resources = Resources(),
    scoring: Scoring = Scoring(),
) -> Survey:
    """What every update that a server kept gives away, by client and round.

    Args:
        folder: what was given to `flower.Keep`.
        model: the app's own; its weights are those of each round.
        shape: (C, H, W) of the images.
        attack: on updates of few images; of larger ones labels are recovered and the pool is searched.
        step: how clients trained (`clients.LocalTraining`), where neither messages nor weights tell it.
        which: rounds, how many images are few, and what of batches and batch norm was not kept.
        beside: the truth, a pool of images that may have been in the updates, data for shadows.
        defense, loss, seed, resources, scoring: as in `dosimeter.captured`.
    """
    said = part("step", step)
    if said is not None and not isinstance(said, LocalTraining):
        raise SettingError(f"Clients of a federation train locally, as in local:steps=1,lr=0.1; got {step!r}.")
    whole = Audit(
        model=model, attack=part("attack", attack), defense=part("defense", defense or "none"),
        loss=part("loss", loss), seed=seed, resources=resources, scoring=scoring,
    )  # fmt: skip
    plan = Plan(audit=whole, shape=shape, said=said, which=which or Which(), beside=beside or Beside())
    return surveyed(plan, list(run(folder, plan)))


def surveyed(plan: Plan, found: Sequence[Audited], *, status: str = COMPLETE) -> Survey:
    """What came of all updates, as one value."""
    results = {each.entry.key: each.result for each in found if each.result is not None}
    cut = any(each.status == INTERRUPTED for each in results.values())
    audit = plan.audit
    return Survey(
        settings={"model": type(audit.model).__name__, "data": "kept updates"}
        | dict(audit.names)
        | {"attack_name": audit.attack.name, "attack": repr(audit.attack), "defense": _defense(audit)}
        | {"shape": list(plan.shape), "most": plan.which.most, "seed": audit.seed}
        | audit.scoring.settings(),
        entries=tuple(each.entry for each in found),
        results=results,
        seconds=sum(each.seconds for each in results.values()),
        environment=environment(),
        status=INTERRUPTED if cut else status,
    )


def _defense(audit: Audit) -> str:
    return "none" if audit.defense == NoDefense() else repr(audit.defense)


Facts = Mapping[tuple[int, int], Trained | DosimeterError]
"""{(round, node): how it trained, or why its update cannot be audited}"""


def known(folder: str | Path, plan: Plan) -> Facts:
    """What is known of every update, refused before any work where that is enough for none of them."""
    found: dict[tuple[int, int], Trained | DosimeterError] = {}
    for each in _updates(folder, plan):
        try:
            told = trained(
                each, plan.audit.model, said=plan.said, batch=plan.which.batch, batch_norm=plan.which.batch_norm
            )
        except (SettingError, UpdateError) as reason:
            found[each.round, each.node] = reason
        else:
            found[each.round, each.node] = told
    if not found:
        raise DataError(
            f"Expected updates of the rounds {plan.which.rounds} in {str(folder)!r}, found none; name others."
        )
    fitting = {key: each for key, each in found.items() if isinstance(each, Trained)}
    if not fitting:
        raise next(each for each in found.values() if isinstance(each, DosimeterError))
    for key, batch in plan.beside.truth.items():
        expected = (1, fitting[key].images, *plan.shape) if key in fitting else None
        if expected and tuple(batch.images.shape) != expected:
            raise DataError(
                f"Expected the truth of round {key[0]}, node {key[1]} as {expected}, got {tuple(batch.images.shape)}; "
                "give the images of that update."
            )
    if plan.beside.truth and not plan.beside.truth.keys() & found.keys():
        raise DataError(
            f"Expected the truth of kept updates, got that of {min(plan.beside.truth)}, which is not among them."
        )
    return found


def run(
    folder: str | Path, plan: Plan, facts: Facts | None = None, *, kept: Mapping[str, Captured] | None = None
) -> Iterator[Audited]:
    """Audit the updates one after another; `kept` are results of before, by what made them."""
    facts = known(folder, plan) if facts is None else facts
    beside: dict[str, Result] = {}
    with bar(f"{plan.audit.attack.name}, kept updates", len(facts), show=plan.audit.resources.progress) as advance:
        for done, each in enumerate(_updates(folder, plan)):
            advance(done, f"round {each.round}, node {each.node}")
            found = _Update(plan, each, beside, kept or {}).audited(facts[each.round, each.node])
            yield found
            if found.result is not None and found.result.status == INTERRUPTED:
                return


def _updates(folder: str | Path, plan: Plan) -> Iterator[Kept]:
    """One by one, since all of them may not fit into memory."""
    return (each for each in read_kept(folder) if not plan.which.rounds or each.round in plan.which.rounds)


@dataclass(frozen=True, eq=False)
class _Update:
    """The audit of one update."""

    plan: Plan
    kept: Kept
    beside: dict[str, Result]  # audits of shadows, which updates share
    before: Mapping[str, Captured]  # results of an earlier run

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
            names=dict(plan.audit.names) | {"update": f"round {kept.round}, node {kept.node}"},
        )  # fmt: skip
        made = fingerprint.of([plan.made, attack, facts, kept.before, kept.after]) if plan.made else ""
        if made in self.before:
            return self.before[made]
        try:
            beside = None if audit.victims is None else self._beside(audit, capture)
            found = examine(audit, capture, plan.beside.truth.get((kept.round, kept.node)), beside=beside)
        except InterruptedCapture as cut:
            return cut.result
        return replace(found, made=made)

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
        model = kept.as_trained(plan.audit.model) if facts.batch_norm == "batch" else kept.model(plan.audit.model)
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
