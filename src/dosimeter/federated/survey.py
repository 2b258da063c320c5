"""The audit of a whole federation: every update that its server kept, by client and round."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from dosimeter.attacks import Attack
from dosimeter.auditing import Audit, Captured, Result, part
from dosimeter.auditing.captured.survey import Survey
from dosimeter.auditing.records import COMPLETE, INTERRUPTED
from dosimeter.auditing.result import environment
from dosimeter.auditing.score import Scoring
from dosimeter.auditing.setting import Resources
from dosimeter.clients import LocalTraining
from dosimeter.defenses import Defense, NoDefense
from dosimeter.errors import DataError, DosimeterError, SettingError, UpdateError
from dosimeter.federated.facts import Trained, trained
from dosimeter.federated.kept import Kept, read_kept
from dosimeter.federated.plan import Beside, Plan, Which
from dosimeter.federated.update import Audited, Update
from dosimeter.progress import bar
from dosimeter.types import Loss, Shape

Facts = Mapping[tuple[int, int], Trained | DosimeterError]
"""{(round, node): how it trained, or why its update cannot be audited}"""


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
    until = time.monotonic() + plan.audit.resources.seconds
    with bar(f"{plan.audit.attack.name}, kept updates", len(facts), show=plan.audit.resources.progress) as advance:
        for done, each in enumerate(_updates(folder, plan)):
            advance(done, f"round {each.round}, node {each.node}")
            left = max(1e-3, until - time.monotonic()) / 60 / (len(facts) - done)  # an even share of it
            minutes = None if plan.audit.resources.minutes is None else left
            found = Update(plan, each, beside, kept or {}, minutes).audited(facts[each.round, each.node])
            yield found
            if found.result is not None and found.result.status == INTERRUPTED:
                return


def _updates(folder: str | Path, plan: Plan) -> Iterator[Kept]:
    """One by one, since all of them may not fit into memory."""
    return (each for each in read_kept(folder) if not plan.which.rounds or each.round in plan.which.rounds)
