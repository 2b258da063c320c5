"""The audit itself: check everything, then step, attack and judge."""

import copy
import platform
import threading
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from dosimeter import clients, engine, metrics, rng, trees
from dosimeter.auditing.judge import Yardstick, judge
from dosimeter.auditing.target import make_target
from dosimeter.defenses import Defense, Moment, NoDefense
from dosimeter.errors import DataError, SettingError
from dosimeter.progress import Advance, bar
from dosimeter.types import (
    Attack,
    Curve,
    Gradient,
    Loss,
    Observation,
    Reconstruction,
    Record,
    Shape,
    Step,
    Target,
    ThreatModel,
    Victims,
    Watch,
    Way,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """An audit's outcome. `document()` is what a rerun repeats to the byte; times and machine stand apart."""

    settings: dict[str, Any]
    threat: ThreatModel
    records: list[Record]
    scores: dict[str, Any]
    victims: Victims
    images: Tensor  # (V, B, C, H, W) reconstructions, clipped to [0, 1], in the victims' order
    baseline: Tensor  # (V, B, C, H, W) the same without the update
    curve: Curve
    seconds: float
    environment: dict[str, str]
    status: str  # complete or interrupted
    explanation: list[engine.Explanation]  # of the engine's choices, where it was asked for

    def document(self) -> dict[str, Any]:
        """Settings, threat model, scores and records as plain values."""
        return {
            "format": 1,
            "status": self.status,
            "settings": self.settings,
            "threat": vars(self.threat),
            "scores": self.scores,
            "records": self.records,
        }

    def summary(self) -> str:
        """The numbers that matter in a few lines."""
        s, scores, floor = self.settings, self.scores["scores"], self.scores["baseline"]
        lines = [
            f"{s['attack_name']} on {s['model']}, {s['data']}: {s['victims']} updates of {s['batch']} image(s), "
            f"defense {s['defense']}",
            f"  images read (SSIM >= {s['threshold']}): {self.scores['success']['text']}",
        ]
        for key in ("ssim", "psnr", "lpips"):
            if key in scores:
                one = scores[key]
                blind = floor[key]["mean"]
                lines.append(f"  {key.upper():5} {one['mean']:.3f} +- {one['std']:.3f}, without the update {blind:.3f}")
        if "identification" in self.scores:
            found = self.scores["identification"]
            lines.append(f"  identified: {found['text']}, chance {found['chance']:.1%}")
        worst = self.scores["worst"]
        lines.append(f"  most exposed: image {worst['index']} with SSIM {worst['ssim']:.3f}")
        if self.status != "complete":
            lines.append(f"  this audit was {self.status}")
        return "\n".join(lines)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during an audit; `result` holds what was there by then."""

    def __init__(self, result: Result) -> None:
        super().__init__("interrupted")
        self.result = result


def audit(
    model: nn.Module,
    victims: Victims,
    *,
    attack: Attack,
    defense: Defense | None = None,
    loss: Loss | None = None,
    step: Step | None = None,
    threat: ThreatModel | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    budget: int = engine.DEFAULT_BUDGET,
    workers: int | None = None,
    compiled: bool = False,
    way: Way | None = None,
    explain: bool = False,
    threshold: float = 0.5,
    decoys: Tensor | None = None,
    lpips: metrics.Lpips | None = None,
    names: dict[str, Any] | None = None,
    progress: bool | None = None,
) -> Result:
    """Measure how much of the victims' images an attack reads out of the updates they would send.

    Args:
        model: any module that takes images (B, C, H, W) in [0, 1]; it is copied and run in evaluation mode.
        victims: private batches, for instance from `dosimeter.pick`.
        attack: a preset or a `Search` of your own.
        defense: what clients do to their updates; nothing by default.
        loss: (output, labels) -> scalar; cross-entropy by default.
        step: how a client turns a batch into an update, such as `clients.LocalTraining`; one gradient by default.
        threat: what the attacker is granted; by default the least that the attack needs.
        seed: names every random stream.
        device: where the attack runs.
        dtype: float32 or float64.
        budget: bytes that the victims attacked at once may take.
        workers: threads, by default one a core.
        compiled: run straight networks through torch.compile, on one thread.
        way: how gradients are compared, where it must be a certain one; the fastest that works by default.
        explain: say in the result which tensor is compared in which way and why.
        threshold: SSIM from which an image counts as read.
        decoys: other images (m, C, H, W), among which a reconstruction should point at its own victim.
        lpips: a loaded LPIPS network; that score is left out without it.
        names: what to call model and data in the report.
        progress: show a bar; by default when standard error is a terminal.
    """
    job = _Job(
        model,
        victims,
        attack,
        defense,
        loss,
        step,
        threat,
        seed,
        device,
        dtype,
        budget,
        1 if compiled else workers,
        compiled,
        way,
    )
    began = time.perf_counter()
    with bar(f"{attack.name}, {len(victims.ids)} victims", None, show=progress) as advance:
        found, blind = job.run(advance)
    seconds = time.perf_counter() - began
    reached = victims.take(slice(len(found.stopped)))
    verdict = judge(reached, found, blind, Yardstick(threshold, decoys, lpips))
    result = Result(
        settings=(names or {"model": type(model).__name__, "data": "the caller's"})
        | job.settings()
        | {"victims": len(reached.ids), "threshold": threshold, "lpips": lpips.name if lpips else None},
        threat=job.threat,
        records=verdict.records,
        scores=verdict.summary,
        victims=reached,
        images=verdict.images,
        baseline=verdict.baseline,
        curve=found.curve,
        seconds=seconds,
        environment=_environment(),
        explanation=job.explain() if explain else [],
        status="interrupted" if "interrupted" in (*found.stopped, *blind.stopped) else "complete",
    )
    if result.status == "interrupted":
        raise Interrupted(result)
    return result


def reconstruct(
    model: nn.Module,
    update: Gradient,
    *,
    attack: Attack,
    shape: Shape,
    batch: int = 1,
    labels: Tensor | None = None,
    loss: Loss | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Reconstruction:
    """Run an attack on one captured update, with nothing known of the truth.

    Args:
        model: the model before the update.
        update: {parameter name: gradient}, exactly the model's trainable parameters.
        attack: a preset or a `Search` of your own.
        shape: (C, H, W) of the images.
        batch: how many images are behind the update.
        labels: (batch,) where they are known.
        loss: (output, labels) -> scalar; cross-entropy by default.
        seed: names every random stream.
        device: where the attack runs.
        dtype: float32 or float64.
    """
    target = make_target(model, shape, loss=loss, labels=labels, device=device, dtype=dtype)
    trees.check_update(update, target.parameters)
    seen = trees.stack([{name: update[name].to(target.mean) for name in target.parameters}])
    known = None if labels is None else labels.to(device)[None]
    return attack(target, [Observation(seen, batch, ("update",), known)], seed=seed)


def estimate(
    model: nn.Module,
    victims: Victims,
    *,
    attack: Attack,
    steps: int,
    defense: Defense | None = None,
    loss: Loss | None = None,
    step: Step | None = None,
    threat: ThreatModel | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    budget: int = engine.DEFAULT_BUDGET,
    workers: int | None = None,
) -> dict[str, float]:
    """Time and memory of an audit, from the plan and from one tile's first three steps, actually run.

    Args:
        steps: the most that the attack would take; the other arguments are those of `audit`.
    """
    job = _Job(model, victims, attack, defense, loss, step, threat, seed, device, dtype, budget, workers)
    tile = victims.take(slice(job.plan.victims))
    marks: list[float] = []

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        marks.append(time.perf_counter())
        if len(marks) > 3:
            raise KeyboardInterrupt

    with engine.threads.one_thread_each():
        job.attack(job.target, [job.observe(job.target, tile)], seed=seed, watch=watch)
    each = (marks[-1] - marks[0]) / max(1, len(marks) - 1)
    tiles = -(-len(victims.ids) // job.plan.victims)
    seconds = each * steps * -(-tiles // job.plan.workers)
    return {"seconds": seconds, "bytes": job.plan.bytes, "tiles": tiles, "tile": job.plan.victims}


class _Job:
    """An audit whose parts were checked and fit together."""

    def __init__(
        self,
        model: nn.Module,
        victims: Victims,
        attack: Attack,
        defense: Defense | None,
        loss: Loss | None,
        step: Step | None,
        threat: ThreatModel | None,
        seed: int,
        device: str,
        dtype: torch.dtype,
        budget: int,
        workers: int | None,
        compiled: bool = False,
        way: Way | None = None,
    ) -> None:
        low, high = float(victims.images.min()), float(victims.images.max())
        if not (low >= 0 and high <= 1):
            raise DataError(f"Images must be in [0, 1], got values from {low:.4g} to {high:.4g}; divide bytes by 255.")
        self.victims, self.attack, self.defense, self.seed = victims, attack, defense or NoDefense(), seed
        self.threat = _grant(attack, threat)
        self.target = make_target(
            model,
            victims.shape,
            loss=loss,
            labels=victims.labels[0],
            highest=int(victims.labels.max()),
            step=step,
            compiled=compiled,
            way=way,
            device=device,
            dtype=dtype,
        )
        restarts = getattr(attack, "restarts", 1)
        n = len(victims.ids)
        self.plan = engine.plan(
            self.target, victims=n, batch=victims.batch, restarts=restarts, budget=budget, workers=workers
        )
        self.budget = budget

    def settings(self) -> dict[str, Any]:
        """What was set, as plain values."""
        target = self.target
        loss = target.loss
        return {
            "parameters": sum(p.numel() for p in target.parameters.values()),
            "shape": list(target.shape),
            "attack_name": self.attack.name,
            "attack": repr(self.attack),
            "defense": "none" if self.defense == NoDefense() else repr(self.defense),
            "step": "gradient" if target.step is None else repr(target.step),
            "loss": "cross-entropy" if target.classification else getattr(loss, "__name__", type(loss).__name__),
            "batch": self.victims.batch,
            "seed": self.seed,
            "dtype": str(target.mean.dtype).removeprefix("torch."),
            "device": str(target.mean.device),
            "budget": self.budget,
            "tile": self.plan.victims,
            "workers": self.plan.workers,
        }

    def observe(self, target: Target, victims: Victims) -> Observation:
        """What the server sees of the victims' steps."""
        updates = []
        for images, labels, name in zip(victims.images, victims.labels, victims.ids, strict=True):
            sent: Gradient = clients.gradient(target, images.to(target.mean), _like(labels, target))
            sent = self.defense.on_gradient(sent, Moment(batch=len(images)), rng.stream(self.seed, "defense", name))
            trees.check_update(sent, target.parameters)
            updates.append(sent)
        labels_seen = _like(victims.labels, target) if self.threat.labels else None
        return Observation(trees.stack(updates), victims.batch, victims.ids, labels_seen)

    def explain(self) -> list[engine.Explanation]:
        """Which tensor is compared in which way and why, found out on the first victim."""
        seen = self.observe(self.target, self.victims.take(slice(1)))
        exact = getattr(getattr(self.attack, "likelihood", None), "exact", False)
        matcher = engine.Matcher(self.target, seen.gradient, exact=exact)
        grey = torch.full_like(self.victims.images[:1], 0.5).to(self.target.mean)
        first = torch.zeros(1, dtype=torch.long, device=grey.device)
        matcher(grey, _like(self.victims.labels[:1], self.target), first)
        return matcher.explain()

    def run(self, advance: Advance) -> tuple[Reconstruction, Reconstruction]:
        """The attack's and the blind attack's images of all victims, or of those reached before Ctrl-C."""
        size, n = self.plan.victims, len(self.victims.ids)
        stop = threading.Event()
        watches = _Watches(advance, stop, tiles=-(-n // size))

        def work(first: int) -> tuple[Reconstruction, Reconstruction]:
            # A model of its own: while torch.func runs a model, its parameters are exchanged for all threads.
            target = replace(self.target, model=copy.deepcopy(self.target.model))
            seen = self.observe(target, self.victims.take(slice(first, first + size)))
            found = self.attack(target, [seen], seed=self.seed, watch=watches.of(first // size))
            if "interrupted" in found.stopped:
                stop.set()
            return found, self.attack.blind()(target, [seen], seed=self.seed)

        done = engine.threads.run(work, range(0, n, size), workers=self.plan.workers, stop=stop)
        if not done:
            raise KeyboardInterrupt
        return _join([found for found, _ in done]), _join([blind for _, blind in done])


class _Watches:
    """Several searches' steps as one share of the whole audit; a watch also passes Ctrl-C on to its search."""

    def __init__(self, advance: Advance, stop: threading.Event, tiles: int) -> None:
        self._advance, self._stop = advance, stop
        self._lock = threading.Lock()
        self._shares, self._matches, self._active = [0.0] * tiles, [torch.nan] * tiles, [0] * tiles

    def of(self, tile: int) -> Watch:
        def watch(*, done: int, total: int, match: float, active: int) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt
            with self._lock:
                self._shares[tile], self._matches[tile], self._active[tile] = done / total, match, active
                known = [m for m in self._matches if m == m]
                share = sum(self._shares) / len(self._shares)
                note = f"loss {sum(known) / max(1, len(known)):.4f}, {sum(self._active)} running"
                self._advance(round(1000 * share), note, total=1000)

        return watch


def _grant(attack: Attack, threat: ThreatModel | None) -> ThreatModel:
    """The threat model of the audit: given, or the least that the attack needs; refused when it grants too little."""
    needed = attack.needs()
    granted = threat or needed
    if needed.labels and not granted.labels:
        raise SettingError(
            f"The attack {attack.name!r} needs the labels, which the threat model does not grant; "
            "grant them or let the attack recover them (labels=idlg)."
        )
    return granted


def _like(labels: Tensor, target: Target) -> Tensor:
    """Labels on the target's device; targets that are not classes also in its precision."""
    return labels.to(target.mean) if labels.is_floating_point() else labels.to(target.mean.device)


def _join(parts: list[Reconstruction]) -> Reconstruction:
    """Chunks one after another, on the CPU; a curve that ended early keeps its last value."""
    steps = tuple(sorted({step for part in parts for step in part.curve.steps}))
    curves = []
    for part in parts:
        at = torch.tensor([sum(s <= step for s in part.curve.steps) - 1 for step in steps])
        curves.append(part.curve.match.cpu()[:, at])
    labels = [part.labels for part in parts if part.labels is not None]
    return Reconstruction(
        images=torch.cat([part.images for part in parts]).cpu().float(),
        labels=torch.cat(labels).cpu() if labels else None,
        match=torch.cat([part.match for part in parts]).cpu(),
        steps=torch.cat([part.steps for part in parts]).cpu(),
        restart=torch.cat([part.restart for part in parts]).cpu(),
        stopped=tuple(why for part in parts for why in part.stopped),
        curve=Curve(steps, torch.cat(curves)),
    )


def _environment() -> dict[str, str]:
    return {
        "dosimeter": version("dosimeter"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }
