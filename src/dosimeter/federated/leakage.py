"""What a training leaks on its way: the same victims attacked at chosen rounds (Bayes, Fig. 2; IG, Sec. 5)."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dosimeter import files, fingerprint, plain, trees
from dosimeter.auditing import Audit, Result, perform
from dosimeter.auditing.job import Job
from dosimeter.auditing.verdict import weigh
from dosimeter.errors import SettingError
from dosimeter.federated.accounting import privacy
from dosimeter.federated.audited import as_audited
from dosimeter.federated.federation import Federation, State
from dosimeter.federated.training import Training, score, train
from dosimeter.servers import Tamper

Point = dict[str, Any]
"""One audit on the way as plain values: round, server, attack, accuracy, ssim, psnr, success, verdict, evidence and
images; `instead_of` has rounds that training ended before. Scores are against what clients trained on, where a defense
made it of their images and it is nearer; those against `originals` then stand beside them."""

POINTS = "leakage.json"


def follow(
    federation: Federation,
    audit: Audit,
    *,
    at: Collection[int],
    servers: Sequence[Tamper],
    folder: str | Path,
) -> list[Point]:
    """Train, and audit the victims' updates of the model as it is after each of these rounds, by each server.

    Args:
        audit: whom to attack how; its model, defense and server are the federation's and `servers`.
        at: numbers of done rounds, 0 being the model before training. Where training ends before some of them, its last
            round is audited in their stead.
        folder: keeps the training and every audit as it is done, and goes on from there.
    """
    check_rounds(federation, at)
    folder, wanted = Path(folder), set(at)
    kept = files.Kept(folder / POINTS, federation.made | audit.made)
    keys = {fingerprint.of(server): server for server in servers}

    def look(done: int, state: State, private: dict[int, State]) -> None:
        there = kept.read()
        missing = {f"{done} {key}": server for key, server in keys.items() if f"{done} {key}" not in there}
        if done not in wanted or not missing:
            return
        defense = as_audited(federation, Training(state, private, []))
        accuracy = score(federation, state, private, done)
        for key, server in missing.items():
            each = replace(audit, model=federation.model, defense=defense, server=server)
            result = perform(each)
            norms = update_norms(each)
            about = {"round": done, "server": server.name, "accuracy": accuracy["accuracy"]}
            kept.add(key, about | privacy(federation, done) | point_of(result, norms))

    kept.read()  # which refuses another's before any work
    workers, progress = audit.resources.workers, audit.resources.progress
    trained = train(federation, folder=folder / "training", tested=at, watch=look, workers=workers, progress=progress)
    last = len(trained.history)
    if missed := sorted(round_ for round_ in at if round_ > last):
        wanted.add(last)
        look(last, trained.state, trained.private)
    found = kept.read().values()
    points = [point | {"instead_of": missed} if missed and point["round"] == last else point for point in found]
    return sorted(points, key=lambda point: (point["round"], point["server"]))


def check_rounds(federation: Federation, at: Collection[int]) -> None:
    """Refuse rounds that a training does not have."""
    beyond = [round_ for round_ in at if not 0 <= round_ <= federation.protocol.rounds]
    if beyond:
        raise SettingError(
            f"Training has {federation.protocol.rounds} rounds, so there is no round {beyond[0]} to audit."
        )


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
