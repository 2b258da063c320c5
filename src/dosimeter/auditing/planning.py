"""What an audit takes of memory, known before any of it is taken."""

from dosimeter import clients, engine
from dosimeter.auditing.setting import Audit
from dosimeter.errors import SettingError
from dosimeter.types import Measured, Target, ThreatModel, Trained


def planned(
    audit: Audit, target: Target, known: Target, threat: ThreatModel, *, victims: int, batch: int
) -> engine.Plan:
    """How many victims run at once and what that takes; refused where one of them does not fit the budget.

    Args:
        target: the task as clients run it.
        known: the same without what the attacker was not told.
    """
    cost, resources, local = audit.attack.cost(known, batch), audit.resources, trained(target, batch)
    further = (audit.updates.rounds - 1) * sum(p.numel() for p in target.parameters.values())
    plan = engine.plan(
        target,
        victims=victims,
        # An attack that simulates no update only has to hold what it saw.
        batch=batch if cost.candidates else 1,
        restarts=cost.restarts,
        candidates=max(1, cost.candidates),
        together=cost.together,
        divisible=cost.steps > 0 and _divisible(target, threat),
        passes=cost.updates * max(cost.passes, local.steps if local else 1),
        budget=resources.budget,
        workers=1 if resources.compiled else resources.workers,
        extra=(cost.beside + further // max(1, cost.candidates), further),  # the latter without the defense, of one
        steady=resources.steady,
    )
    return _with_clients(plan, target, batch, resources.budget)


def _with_clients(plan: engine.Plan, target: Target, batch: int, budget: int) -> engine.Plan:
    """The plan with as many workers as clients' own steps leave room for; refused where one of them does not fit."""
    images = target.step.holds(batch).images if isinstance(target.step, Measured) else batch
    one = engine.client_bytes(target, images)
    if one > budget:
        raise SettingError(
            f"A client's step on {images} images takes about {one / 2**30:.2f} GiB, more than the budget of "
            f"{budget / 2**30:.2f} GiB; raise the budget or lower batch."
        )
    workers = min(plan.workers, budget // one)
    return plan._replace(workers=workers, bytes=max(plan.bytes * workers // plan.workers, workers * one))


def _divisible(target: Target, threat: ThreatModel) -> bool:
    """Whether the gradient of a batch is the mean over its images, each on its own."""
    return target.step is None and target.classification and not target.secrets and threat.statistics == "running"


def trained(target: Target, batch: int) -> Trained | None:
    """How clients train locally on so many images, where they do."""
    step = target.step
    return Trained(step.count(batch), step.lr) if isinstance(step, clients.LocalTraining) else None
