"""What a training leaks on its way: the same victims attacked at chosen rounds (Bayes, Fig. 2; IG, Sec. 5)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from dosimeter import plain, trees
from dosimeter.auditing import Audit, Result, part
from dosimeter.auditing.job import Job
from dosimeter.auditing.verdict import weigh
from dosimeter.federated.accounting import privacy
from dosimeter.sweeps.store import Entry, Status, Store
from dosimeter.sweeps.trial import Course, Trial

Point = dict[str, Any]
"""One audit on the way as plain values: round, server, trial, attack, accuracy, ssim, psnr, success, verdict, evidence
and images; `instead_of` has rounds that training ended before. Scores are against what clients trained on, where a
defense made it of their images and it is nearer; those against `originals` then stand beside them."""

Run = Callable[[Sequence[Trial | Course]], list[Entry]]
"""Runs what a store misses of trials and says what it has of them, as `run_all`."""


Measure = Callable[[Audit], dict[str, Any]]
"""What else is said of the updates of an audit, as plain values."""


def follow(
    trial: Trial, *, at: Iterable[int], servers: Sequence[str], store: Store, run: Run, measure: Measure | None = None
) -> tuple[list[Point], list[Entry]]:
    """Train, and audit the victims' updates of the model as it is after each of these rounds, by each server.

    Args:
        trial: the training, and whom to attack how.
        at: numbers of done rounds, 0 being the model before training. Where training ends before some of them, its last
            round is audited in their stead.
        run: what runs trials into the store.
        measure: what else is noted of every audit, once.

    Returns:
        What is known of every round and server, and what failed.
    """
    rounds, missed, last = sorted(set(at)), list[int](), None
    moments = [replace(trial, round=each, via=tuple(rounds[:n])) for n, each in enumerate(rounds)]
    training = moments[-1].training
    assert training is not None
    if training.prepare().federation.protocol.patience is not None:  # which may end it at any round
        ended = run([training])
        if ended[0].status is Status.FAILED:
            return [], ended
        last = (ended[0].found or {})["rounds"]
        missed = [each for each in rounds if each > last]
        reached = [each for each in moments if each.round not in missed]
        moments = reached if last in rounds else [*reached, *moments[len(reached) :][:1]]
    trials = [replace(moment, server=server) for moment in moments for server in servers]
    found = list(zip(trials, run(trials), strict=True))
    done = [(each, entry) for each, entry in found if entry.status is Status.DONE]
    points = [_point(each, entry, store, measure) for each, entry in done]
    for point in points:
        if missed and point["round"] == last:
            point["instead_of"] = missed
    failed = [entry for _, entry in found if entry.status is Status.FAILED]
    return sorted(points, key=lambda point: (point["round"], point["server"])), failed


def _point(trial: Trial, entry: Entry, store: Store, measure: Measure | None) -> Point:
    """What is kept of an audit on the way; norms of updates and what else is measured are added the first time."""
    one, found = trial.prepare(), dict(entry.found or {})
    assert one.needs is not None
    if "norms" not in found:
        trained = one.needs.read(store.place(one.needs.digest))
        found["norms"] = update_norms(one.loaded().at(trained))
        store.note(entry.digest, found)
    if measure is not None and "measured" not in found:
        found["measured"] = measure(one.loaded().at(one.needs.read(store.place(one.needs.digest))))
        store.note(entry.digest, found)
    training = store.entry(one.needs.digest)
    numbers = (training and training.found) or {}
    about = {"round": numbers["rounds"], "server": part("server", trial.server).name}
    about |= {"accuracy": numbers["last_accuracy"], "trial": entry.digest}
    spent = privacy(one.needs.federation, numbers["rounds"])
    more = found.get("measured", {}) if measure is not None else {}
    return about | spent | more | point_of(store.result(entry.digest), found["norms"])


def early_words(points: Sequence[Point]) -> str:
    """Which rounds were not reached, as it is printed; nothing where all were."""
    early = next((point for point in points if "instead_of" in point), None)
    if early is None:
        return ""
    missed = ", ".join(map(str, early["instead_of"]))
    rounds = "rounds" if len(early["instead_of"]) > 1 else "round"
    return f"Training ended after round {early['round']}, which is attacked instead of {rounds} {missed}."


def point_of(result: Result, norms: Sequence[float] = ()) -> Point:
    """A result in the figures that a curve or a scatter needs."""
    scores, near = result.scores, result.scores.nearest
    point: Point = {
        "attack": result.settings["attack_name"],
        "ssim": near["ssim"].mean,
        "psnr": near["psnr"].mean,
        "blind_ssim": near.baseline["ssim"].mean,
        "success": plain.of(scores.success),
        "verdict": weigh(result).kind.value,
        "evidence": scores.evidence,
        "seconds": result.seconds,
    }
    if scores.transformed:
        point["originals"] = {key: scores[key].mean for key in ("ssim", "psnr")}
    if norms:
        batch = len(result.records) // len(norms)
        point["images"] = [
            {"index": record.index, "norm": norms[at // batch], "ssim": record.ssim, "psnr": record.nearest["psnr"]}
            for at, record in enumerate(result.records)
        ]
    return point


def update_norms(audit: Audit) -> list[float]:
    """The L2 norm of every victim's update, as the server sees it."""
    job = Job(audit)
    norms: list[float] = []
    for first in range(0, len(job.victims.ids), 8):
        seen = job.observe(job.victims.take(slice(first, first + 8)))[0].gradient
        norms += sum(trees.flat(g).square().sum(1) for g in seen.values()).sqrt().tolist()  # type: ignore[union-attr]
    return norms
