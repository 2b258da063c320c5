"""The audit itself: check everything, then step, attack and judge."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dosimeter import engine
from dosimeter.auditing.job import Job
from dosimeter.auditing.judge import Yardstick, judge, judge_transformed
from dosimeter.auditing.observing import trained_on
from dosimeter.auditing.result import Interrupted, Result, environment
from dosimeter.auditing.setting import Setting
from dosimeter.auditing.watches import Place
from dosimeter.defenses import Defense, NoDefense
from dosimeter.metrics import Lpips, Metric
from dosimeter.progress import bar
from dosimeter.servers import Honest, Tamper
from dosimeter.types import Attack, BatchNorm, Loss, Step, ThreatModel, Victims, Way

PATIENCE = 60.0
"""Seconds that an estimate may take."""


def audit(
    model: nn.Module,
    victims: Victims,
    *,
    attack: Attack,
    defense: Defense | None = None,
    server: Tamper | None = None,
    loss: Loss | None = None,
    step: Step | None = None,
    threat: ThreatModel | None = None,
    batch_norm: BatchNorm | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    budget: int = engine.DEFAULT_BUDGET,
    workers: int | None = None,
    compiled: bool = False,
    way: Way | None = None,
    rounds: int = 1,
    same_client: int = 1,
    explain: bool = False,
    threshold: float = 0.5,
    decoys: Tensor | None = None,
    lpips: Lpips | None = None,
    delta: float | None = None,
    metrics: Sequence[Metric] = (),
    names: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> Result:
    """Measure how much of the victims' images an attack reads out of the updates they would send.

    Args:
        model: any module that takes images (B, C, H, W) in [0, 1]; it is copied and run in evaluation mode.
        victims: private batches, for instance from `dosimeter.pick`.
        attack: a preset or a `Search` of your own.
        defense: what clients do to their updates; nothing by default.
        server: what the server does to the model before clients get it; nothing by default.
        loss: (output, labels) -> scalar; cross-entropy by default.
        step: how a client turns a batch into an update, such as `clients.LocalTraining`; one gradient by default.
        threat: what the attacker is granted; by default the least that the attack needs.
        batch_norm: "running" statistics, which are part of the model; or clients train with those of their "batch",
            which the attacker does not know; or these are "sent" with the update and the attacker uses them as fixed.
            By default what the threat model says, which is "running" unless you say otherwise there.
        seed: names every random stream.
        device: where the attack runs.
        dtype: float32 or float64.
        budget: bytes that the victims attacked at once may take.
        workers: threads, by default one a core.
        compiled: run straight networks through torch.compile, on one thread.
        way: how gradients are compared, where it must be a certain one; the fastest that works by default.
        rounds: how many updates of the same batch at the same weights the server sees; clients draw anew for each.
        same_client: how many victims in a row are updates of one client, which keeps its private numbers.
        explain: say in the result which tensor is compared in which way and why.
        threshold: SSIM from which an image counts as read.
        decoys: other images (m, C, H, W), among which a reconstruction should point at its own victim.
        lpips: a loaded LPIPS network; that score is left out without it.
        metrics: scores of your own, which then stand in records, tables and pages.
        delta: distance (L2 over pixels) from which on a reconstruction has missed its image; adds the adversarial risk.
        names: what to call model and data in the report.
        progress: show a bar; by default when standard error is a terminal.
    """
    setting = Setting(
        attack=attack,
        defense=defense or NoDefense(),
        server=server or Honest(),
        loss=loss,
        step=step,
        threat=threat,
        batch_norm=batch_norm,
        seed=seed,
        device=device,
        dtype=dtype,
        budget=budget,
        workers=workers,
        compiled=compiled,
        way=way,
        rounds=rounds,
        same_client=same_client,
    )
    yardstick = Yardstick(threshold, decoys, lpips, delta, tuple(metrics))
    return perform(model, victims, setting, yardstick, names=names, explain=explain, progress=progress)


def perform(
    model: nn.Module,
    victims: Victims,
    setting: Setting,
    yardstick: Yardstick,
    *,
    names: dict[str, Any] | None = None,
    explain: bool = False,
    progress: bool | None = None,
    place: Place | None = None,
) -> Result:
    """`audit`, for whoever has its arguments together already; `place` is the attack's in a panel."""
    job = Job(model, victims, setting)
    began = time.perf_counter()
    title = f"{place.title(setting.attack.name) if place else setting.attack.name}, {len(victims.ids)} victims"
    with bar(title, None, show=progress) as advance:
        found, blind = job.run(place.around(advance), limit=place.limit) if place else job.run(advance)
    seconds = time.perf_counter() - began
    reached = victims.take(slice(len(found.stopped)))
    std = job.target.std.cpu()
    verdict = judge(reached, found, blind, yardstick, std=std, trained=job.trained, classes=job.classes)
    made = trained_on(reached, setting)
    if not torch.equal(made, reached.images):
        verdict.summary["transformed"] = judge_transformed(found.images, made, yardstick.threshold)
    result = Result(
        settings=(names or {"model": type(model).__name__, "data": "the caller's"})
        | job.settings()
        | {"victims": len(reached.ids)}
        | yardstick.settings(),
        threat=job.threat,
        records=verdict.records,
        scores=verdict.summary,
        victims=reached,
        images=verdict.images,
        baseline=verdict.baseline,
        curve=found.curve,
        seconds=seconds,
        environment=environment(),
        explanation=job.explain() if explain else [],
        status="interrupted" if found.interrupted or blind.interrupted else "complete",
    )
    if result.status == "interrupted":
        raise Interrupted(result)
    return result


def estimate(model: nn.Module, victims: Victims, setting: Setting) -> dict[str, float]:
    """Time and memory of an audit, from the plan and from the first three steps or victims of a tile, actually run.

    `done` of the `total` of that tile were done within `PATIENCE` seconds; with none of them done, `seconds` is less
    than what it takes.
    """
    job = Job(model, victims, setting)
    marks: list[tuple[float, int]] = []
    whole = 1

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        nonlocal whole
        whole = total
        marks.append((time.perf_counter(), done))
        if done >= marks[0][1] + 3 or marks[-1][0] > marks[0][0] + PATIENCE:
            raise KeyboardInterrupt

    job.attack_first_tile(watch)
    (began, first), (ended, last) = marks[0], marks[-1]
    tiles = -(-len(victims.ids) // job.plan.victims)
    seconds = (ended - began) / max(1, last - first) * whole * -(-tiles // job.plan.workers)
    plan = {"bytes": job.plan.bytes, "tiles": tiles, "tile": job.plan.victims}
    return {"seconds": seconds, "done": last - first, "total": whole, **plan}
